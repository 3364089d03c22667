"""Time and memory of the losses against PML's nearest, their own plain versions and the two-matrix-product floor.

    python examples/benchmarks/losses.py [--quick] [--sizes 64 256] [--cases CIT TCM] [--out FOLDER]
    python examples/benchmarks/losses.py --cases CIT --sizes 4096 --per-class 512 --methods "CITLoss(gamma=0.5)"

A size is samples × dimensions × samples of a class; a step is forward and backward on random embeddings. Steps are not
warmed between the rounds: in training, too, a network runs between two steps of a loss and leaves it cold caches.
"""

from collections.abc import Callable
from functools import partial

import torch
from measure import Case, Goal, Method, Size, Step, parser_of, run
from pytorch_metric_learning import losses as pml
from pytorch_metric_learning.distances import CosineSimilarity
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from pml_ext._ops.numerics import inner_products
from pml_ext.functional.loop.cosine_kernel import loop_cosines
from pml_ext.functional.loop.pair_matrix import loop_pairs
from pml_ext.functional.losses.cit import concordance_loss
from pml_ext.functional.losses.discriminative import discriminative_loss
from pml_ext.functional.losses.tcm import shortfall_and_excess
from pml_ext.functional.tuples import same_and_different
from pml_ext.losses import (
    CITLoss,
    DiscriminativeLoss,
    LoOp,
    RecallAtKSurrogateLoss,
    SmoothAPLoss,
    TCMLoss,
)

FLOOR = "two matrix products"


Value = Callable[[Tensor, Tensor], Tensor]
Make = Callable[[Size, torch.device], Step]


def batch_of(size: Size, device: torch.device) -> tuple[Tensor, Tensor]:
    """B unit embeddings in R^D, K of each class in random order."""
    count, dim, per_class = size
    generator = torch.Generator().manual_seed(0)
    x = normalize(torch.randn(count, dim, generator=generator))
    labels = (torch.arange(count) // per_class)[torch.randperm(count, generator=generator)]
    return x.to(device).requires_grad_(), labels.to(device)


def embedding_step(value: Value) -> Make:
    """The step of a loss without parameters: value and gradient by the embeddings."""

    def make(size: Size, device: torch.device) -> Step:
        x, labels = batch_of(size, device)
        return lambda: torch.autograd.grad(value(x, labels), x)

    return make


def two_products(size: Size, device: torch.device) -> Step:
    """The minimum for a loss over all pairs: the similarities, and their gradient times the embeddings."""
    x = batch_of(size, device)[0].detach()
    return lambda: (x @ x.T) @ x


def plain_cit(gamma: float) -> Value:
    def value(x: Tensor, labels: Tensor) -> Tensor:
        unit = normalize(x)
        similarities = (1 + unit @ unit.T) / 2
        return concordance_loss(similarities, similarities, *same_and_different(labels), gamma)

    return value


def plain_tcm(x: Tensor, labels: Tensor) -> Tensor:
    unit = normalize(x)
    cosines = unit @ unit.T
    same, different = same_and_different(labels)
    return sum(
        shortfall_and_excess(cosines[same], cosines[different], 0.9, 0.5),
        x.new_zeros(()),
    )


def arcs(pairing: str) -> Value:
    """The LoOp matrix of unit embeddings between the two products, the mean over its pairs as the loss."""

    def value(x: Tensor, labels: Tensor) -> Tensor:
        if pairing == "consecutive":
            return loop_cosines(x, labels).mean()
        return loop_pairs(inner_products(x), labels, pairing=pairing).mean()

    return value


def triplets_bytes(size: Size) -> float:
    """PML writes all B³ combinations as booleans (below 2³¹ of them), then every triplet in about 54 bytes."""
    count, _, per_class = size
    combinations = count**3 if count**3 < 2**31 else 0
    return combinations + 54 * count * (per_class - 1) * (count - per_class)


def pairs_bytes(each: float) -> Callable[[Size], float]:
    return lambda size: each * size[0] ** 2


def with_classes(build: Callable[[], torch.nn.Module]) -> Make:
    """The step of a loss with parameters for CLASSES classes on embeddings of EMBEDDED dimensions."""

    def make(size: Size, device: torch.device) -> Step:
        x, labels = batch_of((size[0], EMBEDDED, size[2]), device)
        loss = build().to(device)
        inputs = [x, *loss.parameters()]
        return lambda: torch.autograd.grad(loss(x, labels), inputs)

    return make


class LinearCrossEntropy(torch.nn.Linear):
    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(super().forward(x), labels)


def centroid_products(size: Size, device: torch.device) -> Step:
    x = batch_of(size, device)[0].detach()
    centroids = normalize(torch.randn(MANY_CLASSES, size[1])).to(device)
    return lambda: (x @ centroids.T) @ centroids


def given_centroids(size: Size, device: torch.device) -> Step:
    """Random unit vectors instead of k-means centroids, with the same cost in training."""
    x, labels = batch_of(size, device)
    centroids = normalize(torch.randn(MANY_CLASSES, size[1])).to(device)
    return lambda: torch.autograd.grad(discriminative_loss(normalize(x), labels, centroids).mean(), x)


def around(loss: torch.nn.Module, dim: int, per_class: int) -> Case:
    """LoOp around a loss, and the loss alone."""
    name = type(loss).__name__
    alone, with_arcs = f"PML {name}", f"LoOp({name})"
    methods = {
        alone: Method(embedding_step(loss)),
        with_arcs: Method(embedding_step(LoOp(loss))),
    }
    goals = (Goal(with_arcs, alone, ratio=1.7),)
    return Case(methods, alone, ((128, dim, per_class),), (SMALL, dim, per_class), goals=goals)


CLASSES, MANY_CLASSES, EMBEDDED = 10_000, 100_000, 512
SMALL = 16  # the batch that warms a process up before its memory is measured
PML_TRIPLETS, PML_TCM = (
    "PML TripletMarginLoss(all)",
    "PML ThresholdConsistentMarginLoss",
)
TRIPLETS = pml.TripletMarginLoss(triplets_per_anchor="all")
ONE_HOT, KMEANS = (
    f"Discriminative one-hot, {CLASSES} classes",
    f"Discriminative k-means, {MANY_CLASSES} classes",
)
PROJECTED, LINEAR = (
    "DiscriminativeLoss with its projection",
    "linear layer + F.cross_entropy",
)
NAMES = [
    "CIT",
    "TCM",
    "LoOp arcs",
    "LoOp around triplet",
    "LoOp around contrastive",
    "LoOp around multi-similarity",
    "Recall@k and SmoothAP",
    ONE_HOT,
    KMEANS,
]


def all_pairs_cases(sizes: list[int], dim: int, per_class: int) -> dict[str, Case]:
    """CIT and TCM at the sizes of the command line, and other losses over all pairs at their own."""
    batches = tuple((size, dim, per_class) for size in sizes)
    small = (SMALL, dim, min(per_class, SMALL // 4))
    floor = {FLOOR: Method(two_products)}
    cit = {
        "CITLoss(gamma=1)": Method(embedding_step(CITLoss())),
        "CITLoss(gamma=0.5)": Method(embedding_step(CITLoss(gamma=0.5))),
        "plain gamma=1": Method(embedding_step(plain_cit(1.0)), needs=pairs_bytes(50)),
        "plain gamma=0.5": Method(embedding_step(plain_cit(0.5)), needs=pairs_bytes(50)),
        PML_TRIPLETS: Method(embedding_step(TRIPLETS), needs=triplets_bytes),
    }
    cit_goals = []
    for name in ("CITLoss(gamma=1)", "CITLoss(gamma=0.5)"):
        cit_goals.append(Goal(name, FLOOR, ratio=2, at=256))
        cit_goals.append(Goal(name, PML_TRIPLETS, ratio=1, at=64))
        cit_goals.append(Goal(name, PML_TRIPLETS, ratio=1 / 30, memory_ratio=1 / 40, at=1024))
    # The same value as TCM's, see examples/LOSSES.md
    contrastive = pml.ContrastiveLoss(pos_margin=0.9, neg_margin=0.5, distance=CosineSimilarity())
    tcm = {
        "TCMLoss": Method(embedding_step(TCMLoss())),
        "plain": Method(embedding_step(plain_tcm), needs=pairs_bytes(50)),
        PML_TCM: Method(
            embedding_step(pml.ThresholdConsistentMarginLoss()),
            needs=pairs_bytes(30 * dim),
        ),
        "PML ContrastiveLoss on cosines": Method(embedding_step(contrastive), needs=pairs_bytes(100)),
    }
    tcm_goals = (
        Goal("TCMLoss", PML_TCM, ratio=1, at=64),
        Goal("TCMLoss", PML_TCM, ratio=1 / 500, at=256),
        Goal("TCMLoss", megabytes=100, at=4096),
    )
    loop = {name: Method(embedding_step(arcs(name))) for name in ("consecutive", "all")}
    loop_goals = (Goal("consecutive", FLOOR, ratio=2, at=1024),)
    ranking = {
        "RecallAtKSurrogateLoss": Method(embedding_step(RecallAtKSurrogateLoss())),
        "SmoothAPLoss": Method(embedding_step(SmoothAPLoss())),
        "PML SmoothAPLoss": Method(embedding_step(pml.SmoothAPLoss()), needs=lambda size: 16 * size[0] ** 3),
    }
    ranking_sizes = tuple((size, 128, per_class) for size in (256, 1024, 4000))
    loop_sizes = tuple((size, dim, per_class) for size in (128, 1024))
    return {
        "CIT": Case(floor | cit, FLOOR, batches, small, goals=tuple(cit_goals)),
        "TCM": Case(floor | tcm, FLOOR, batches, small, goals=tcm_goals),
        "LoOp arcs": Case(floor | loop, FLOOR, loop_sizes, small, goals=loop_goals),
        "LoOp around triplet": around(TRIPLETS, dim, per_class),
        "LoOp around contrastive": around(pml.ContrastiveLoss(), dim, per_class),
        "LoOp around multi-similarity": around(pml.MultiSimilarityLoss(), dim, per_class),
        "Recall@k and SmoothAP": Case(floor | ranking, FLOOR, ranking_sizes, (SMALL, 128, per_class)),
    }


def class_cases(dim: int, per_class: int) -> dict[str, Case]:
    """Losses whose cost grows with the number of classes."""
    logits, embedded = (
        "F.cross_entropy of logits",
        "DiscriminativeLoss of C-dim embeddings",
    )
    one_hot = {
        logits: Method(embedding_step(cross_entropy)),
        embedded: Method(embedding_step(DiscriminativeLoss(CLASSES, CLASSES))),
        LINEAR: Method(with_classes(partial(LinearCrossEntropy, EMBEDDED, CLASSES, bias=False))),
        PROJECTED: Method(with_classes(partial(DiscriminativeLoss, CLASSES, EMBEDDED))),
        "PML ArcFaceLoss": Method(with_classes(partial(pml.ArcFaceLoss, CLASSES, EMBEDDED))),
    }
    one_hot_goals = (Goal(embedded, logits, ratio=1), Goal(PROJECTED, LINEAR, ratio=1))
    k_means = {
        FLOOR: Method(centroid_products),
        "discriminative_loss": Method(given_centroids),
    }
    k_means_goals = (
        Goal("discriminative_loss", FLOOR, ratio=1.2),
        Goal("discriminative_loss", megabytes=10),
    )
    small = (SMALL, CLASSES, per_class)
    return {
        ONE_HOT: Case(one_hot, logits, ((256, CLASSES, per_class),), small, goals=one_hot_goals),
        KMEANS: Case(
            k_means,
            FLOOR,
            ((256, dim, per_class),),
            (SMALL, dim, per_class),
            goals=k_means_goals,
        ),
    }


def main() -> None:
    parser = parser_of(__doc__, NAMES)
    parser.add_argument("--sizes", type=int, nargs="+", help="batch sizes (default: 64 256 1024 4096)")
    parser.add_argument("--dim", type=int, default=512, help="of the embeddings (default: 512)")
    parser.add_argument("--per-class", type=int, default=4, help="samples a class (default: 4)")
    options = parser.parse_args()
    sizes = options.sizes or ([64, 256] if options.quick else [64, 256, 1024, 4096])
    cases = all_pairs_cases(sizes, options.dim, options.per_class)
    cases |= class_cases(options.dim, options.per_class)
    run({name: cases[name] for name in options.cases}, options)


if __name__ == "__main__":
    main()
