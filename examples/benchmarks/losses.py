"""Time and memory of the losses against PML's nearest and the floor of two matrix products.

    python examples/benchmarks/losses.py [--quick] [--sizes 64 256] [--cases CIT TCM] [--results FILE]

A size is samples × dimensions × samples of a class; a step is forward and backward on random embeddings. Steps are not
warmed between the rounds: in training, too, a network runs between two steps of a loss and leaves it cold caches.
"""

from collections.abc import Callable
from functools import partial

import torch
from measure import Case, Method, Size, Step, parser_of_cases, run
from pytorch_metric_learning import losses as pml
from pytorch_metric_learning.distances import CosineSimilarity
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from pml_ext.functional import loop_pairs
from pml_ext.losses import CITLoss, DiscriminativeLoss, LoOp, RecallAtKSurrogateLoss, SmoothAPLoss, TCMLoss

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


def arcs(x: Tensor, labels: Tensor) -> Tensor:
    """The mean of LoOp's cosines of unit embeddings."""
    return loop_pairs(x @ x.T, labels).mean()


def triplets_bytes(size: Size) -> float:
    """PML writes all B³ combinations as booleans (below 2³¹ of them), then every triplet in about 54 bytes."""
    count, _, per_class = size
    combinations = count**3 if count**3 < 2**31 else 0
    return combinations + 54 * count * (per_class - 1) * (count - per_class)


def pairs_bytes(each: float) -> Callable[[Size], float]:
    return lambda size: each * size[0] ** 2


def with_classes(build: Callable[[], torch.nn.Module]) -> Make:
    """The step of a loss with parameters for CLASSES classes, on embeddings of EMBEDDED dimensions."""

    def make(size: Size, device: torch.device) -> Step:
        x, labels = batch_of((size[0], EMBEDDED, size[2]), device)
        loss = build().to(device)
        inputs = [x, *loss.parameters()]
        return lambda: torch.autograd.grad(loss(x, labels), inputs)

    return make


class LinearCrossEntropy(torch.nn.Linear):
    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(super().forward(x), labels)


def around(loss: torch.nn.Module, dim: int, per_class: int) -> Case:
    """LoOp around a loss, with the paper's positives, and the loss alone."""
    name = type(loss).__name__
    alone, with_arcs = Method(embedding_step(loss)), Method(embedding_step(LoOp(loss, positives="arc")))
    methods = {f"PML {name}": alone, f"LoOp({name}), arcs": with_arcs}
    return Case(methods, f"PML {name}", ((128, dim, per_class),), (SMALL, dim, per_class))


CLASSES, EMBEDDED = 10_000, 512
SMALL = 16  # the batch that warms a process up before its memory is measured
TRIPLETS = pml.TripletMarginLoss(triplets_per_anchor="all")
LINEAR = "linear layer + F.cross_entropy"
NAMES = (
    "CIT",
    "TCM",
    "LoOp arcs",
    "LoOp around triplet",
    "LoOp around contrastive",
    "LoOp around multi-similarity",
    "Recall@k and SmoothAP",
    "Discriminative",
)


def cases_of(sizes: list[int], dim: int, per_class: int) -> dict[str, Case]:
    """CIT and TCM at the sizes of the command line, and other losses at their own."""
    batches = tuple((size, dim, per_class) for size in sizes)
    small = (SMALL, dim, min(per_class, SMALL // 4))
    floor = {FLOOR: Method(two_products)}
    cit = {
        "CITLoss(gamma=1)": Method(embedding_step(CITLoss())),
        "PML TripletMarginLoss(all)": Method(embedding_step(TRIPLETS), needs=triplets_bytes),
    }
    # The same value as TCM's, see examples/guides/LOSSES.md
    contrastive = pml.ContrastiveLoss(pos_margin=0.9, neg_margin=0.5, distance=CosineSimilarity())
    pml_tcm = embedding_step(pml.ThresholdConsistentMarginLoss())
    tcm = {
        "TCMLoss": Method(embedding_step(TCMLoss())),
        "PML ThresholdConsistentMarginLoss": Method(pml_tcm, needs=pairs_bytes(30 * dim)),
        "PML ContrastiveLoss on cosines": Method(embedding_step(contrastive), needs=pairs_bytes(100)),
    }
    ranking = {
        "RecallAtKSurrogateLoss": Method(embedding_step(RecallAtKSurrogateLoss())),
        "SmoothAPLoss": Method(embedding_step(SmoothAPLoss())),
        "PML SmoothAPLoss": Method(embedding_step(pml.SmoothAPLoss()), needs=lambda size: 16 * size[0] ** 3),
    }
    ranking_sizes = tuple((size, 128, per_class) for size in (256, 1024, 4000))
    loop_sizes = tuple((size, dim, per_class) for size in (128, 1024))
    discriminative = {
        LINEAR: Method(with_classes(partial(LinearCrossEntropy, EMBEDDED, CLASSES, bias=False))),
        "DiscriminativeLoss": Method(with_classes(partial(DiscriminativeLoss, CLASSES, EMBEDDED))),
    }
    class_size = (256, CLASSES, per_class)
    loop = {"consecutive": Method(embedding_step(arcs))}
    cases = {
        "CIT": Case(floor | cit, FLOOR, batches, small),
        "TCM": Case(floor | tcm, FLOOR, batches, small),
        "LoOp arcs": Case(floor | loop, FLOOR, loop_sizes, small),
        "LoOp around triplet": around(TRIPLETS, dim, per_class),
        "LoOp around contrastive": around(pml.ContrastiveLoss(), dim, per_class),
        "LoOp around multi-similarity": around(pml.MultiSimilarityLoss(), dim, per_class),
        "Recall@k and SmoothAP": Case(floor | ranking, FLOOR, ranking_sizes, (SMALL, 128, per_class)),
        "Discriminative": Case(discriminative, LINEAR, (class_size,), (SMALL, CLASSES, per_class)),
    }
    return cases


def main() -> None:
    parser = parser_of_cases(__doc__, NAMES)
    parser.add_argument("--sizes", type=int, nargs="+", help="batch sizes (default: 64 256 1024 4096)")
    parser.add_argument("--dim", type=int, default=512, help="of the embeddings (default: 512)")
    parser.add_argument("--per-class", type=int, default=4, help="samples a class (default: 4)")
    options = parser.parse_args()
    sizes = options.sizes or ([64, 256] if options.quick else [64, 256, 1024, 4096])
    cases = cases_of(sizes, options.dim, options.per_class)
    run("losses", {name: cases[name] for name in options.cases}, options)


if __name__ == "__main__":
    main()
