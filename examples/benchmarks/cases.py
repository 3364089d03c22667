"""The cases of the loss benchmark: each step is forward and backward on a batch of random embeddings."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from measure import Step
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


@dataclass(frozen=True)
class Batch:
    """B unit embeddings in R^D, K of each class in random order."""

    size: int
    dim: int
    per_class: int
    device: torch.device

    def tensors(self) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(0)
        x = normalize(torch.randn(self.size, self.dim, generator=generator))
        labels = (torch.arange(self.size) // self.per_class)[torch.randperm(self.size, generator=generator)]
        return x.to(self.device).requires_grad_(), labels.to(self.device)


@dataclass(frozen=True)
class Method:
    """`make` prepares a step; `needs` estimates its bytes, to skip sizes that do not fit."""

    make: Callable[[Batch], Step]
    needs: Callable[[Batch], float] = lambda batch: 0.0


@dataclass(frozen=True)
class Case:
    """Methods timed together; ratios are to `floor`. `sizes` defaults to the command line's."""

    methods: dict[str, Method]
    floor: str
    sizes: tuple[int, ...] = ()
    dim: int | None = None


def embedding_step(value: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Batch], Step]:
    """The step of a loss without parameters: value and gradient by the embeddings."""

    def make(batch: Batch) -> Step:
        x, labels = batch.tensors()
        return lambda: torch.autograd.grad(value(x, labels), x)

    return make


def two_products(batch: Batch) -> Step:
    """The minimum for a loss over all pairs: the similarities, and their gradient times the embeddings."""
    x = batch.tensors()[0].detach()
    return lambda: (x @ x.T) @ x


def plain_cit(gamma: float) -> Callable[[Tensor, Tensor], Tensor]:
    def value(x: Tensor, labels: Tensor) -> Tensor:
        unit = normalize(x)
        similarities = (1 + unit @ unit.T) / 2
        return concordance_loss(similarities, similarities, *same_and_different(labels), gamma)

    return value


def plain_tcm(x: Tensor, labels: Tensor) -> Tensor:
    unit = normalize(x)
    cosines = unit @ unit.T
    same, different = same_and_different(labels)
    return sum(shortfall_and_excess(cosines[same], cosines[different], 0.9, 0.5), x.new_zeros(()))


def arcs(pairing: str) -> Callable[[Tensor, Tensor], Tensor]:
    """The LoOp matrix of unit embeddings between the two products, the mean over its pairs as the loss."""

    def value(x: Tensor, labels: Tensor) -> Tensor:
        if pairing == "consecutive":
            return loop_cosines(x, labels).mean()
        return loop_pairs(inner_products(x), labels, pairing=pairing).mean()

    return value


def _triplets_bytes(batch: Batch) -> float:
    """PML writes all B³ combinations as booleans (below 2³¹ of them), then every triplet in about 54 bytes."""
    all_of_them = batch.size**3 if batch.size**3 < 2**31 else 0
    return all_of_them + 54 * batch.size * (batch.per_class - 1) * (batch.size - batch.per_class)


def _plain_bytes(batch: Batch) -> float:
    return 50 * batch.size**2


def _pml_tcm_bytes(batch: Batch) -> float:
    return 30 * batch.size**2 * batch.dim


def _contrastive_bytes(batch: Batch) -> float:
    """The indices of every pair, and what is gathered by them."""
    return 100 * batch.size**2


def _pml_smooth_ap_bytes(batch: Batch) -> float:
    return 16 * batch.size**3


def _one_hot_classes(size: int) -> Callable[[Batch], Step]:
    """DiscriminativeLoss as users call it: embeddings of `size` dimensions, batch.dim classes."""

    def make(batch: Batch) -> Step:
        x, labels = Batch(batch.size, size, batch.per_class, batch.device).tensors()
        loss = DiscriminativeLoss(batch.dim, size).to(batch.device)
        inputs = [x, *loss.parameters()]
        return lambda: torch.autograd.grad(loss(x, labels), inputs)

    return make


def _linear_and_cross_entropy(size: int) -> Callable[[Batch], Step]:
    def make(batch: Batch) -> Step:
        x, labels = Batch(batch.size, size, batch.per_class, batch.device).tensors()
        layer = torch.nn.Linear(size, batch.dim, bias=False, device=batch.device)
        inputs = [x, *layer.parameters()]
        return lambda: torch.autograd.grad(cross_entropy(layer(x), labels), inputs)

    return make


def _arcface(size: int) -> Callable[[Batch], Step]:
    def make(batch: Batch) -> Step:
        x, labels = Batch(batch.size, size, batch.per_class, batch.device).tensors()
        loss = pml.ArcFaceLoss(batch.dim, size).to(batch.device)
        inputs = [x, *loss.parameters()]
        return lambda: torch.autograd.grad(loss(x, labels), inputs)

    return make


def _given_centroids(num_classes: int, whole_loss: bool) -> Callable[[Batch], Step]:
    """Random unit vectors instead of k-means centroids, with the same cost in training."""

    def make(batch: Batch) -> Step:
        x, labels = batch.tensors()
        centroids = normalize(torch.randn(num_classes, batch.dim)).to(batch.device)
        if not whole_loss:
            return lambda: (x.detach() @ centroids.T) @ centroids
        return lambda: torch.autograd.grad(discriminative_loss(normalize(x), labels, centroids).mean(), x)

    return make


def _around(loss: torch.nn.Module) -> dict[str, Method]:
    name = type(loss).__name__
    return {
        f"PML {name}": Method(embedding_step(loss)),
        f"LoOp({name})": Method(embedding_step(LoOp(loss))),
    }


CLASSES, MANY_CLASSES = 10_000, 100_000

CASES = {
    "CIT": Case(
        {
            FLOOR: Method(two_products),
            "CITLoss(gamma=1)": Method(embedding_step(CITLoss())),
            "CITLoss(gamma=0.5)": Method(embedding_step(CITLoss(gamma=0.5))),
            "plain gamma=1": Method(embedding_step(plain_cit(1.0)), _plain_bytes),
            "plain gamma=0.5": Method(embedding_step(plain_cit(0.5)), _plain_bytes),
            "PML TripletMarginLoss(all)": Method(
                embedding_step(pml.TripletMarginLoss(triplets_per_anchor="all")), _triplets_bytes
            ),
        },
        FLOOR,
    ),
    "TCM": Case(
        {
            FLOOR: Method(two_products),
            "TCMLoss": Method(embedding_step(TCMLoss())),
            "plain": Method(embedding_step(plain_tcm), _plain_bytes),
            "PML ThresholdConsistentMarginLoss": Method(
                embedding_step(pml.ThresholdConsistentMarginLoss()), _pml_tcm_bytes
            ),
            # The same value, see examples/LOSSES.md
            "PML ContrastiveLoss on cosines": Method(
                embedding_step(pml.ContrastiveLoss(pos_margin=0.9, neg_margin=0.5, distance=CosineSimilarity())),
                _contrastive_bytes,
            ),
        },
        FLOOR,
    ),
    "LoOp arcs": Case(
        {
            FLOOR: Method(two_products),
            "consecutive": Method(embedding_step(arcs("consecutive"))),
            "all": Method(embedding_step(arcs("all"))),
        },
        FLOOR,
        sizes=(128, 1024),
    ),
    "LoOp around triplet": Case(
        _around(pml.TripletMarginLoss(triplets_per_anchor="all")), "PML TripletMarginLoss", sizes=(128,)
    ),
    "LoOp around contrastive": Case(_around(pml.ContrastiveLoss()), "PML ContrastiveLoss", sizes=(128,)),
    "LoOp around multi-similarity": Case(_around(pml.MultiSimilarityLoss()), "PML MultiSimilarityLoss", sizes=(128,)),
    "Recall@k and SmoothAP": Case(
        {
            FLOOR: Method(two_products),
            "RecallAtKSurrogateLoss": Method(embedding_step(RecallAtKSurrogateLoss())),
            "SmoothAPLoss": Method(embedding_step(SmoothAPLoss())),
            "PML SmoothAPLoss": Method(embedding_step(pml.SmoothAPLoss()), _pml_smooth_ap_bytes),
        },
        FLOOR,
        sizes=(256, 1024, 4000),
        dim=128,
    ),
    f"Discriminative one-hot, {CLASSES} classes": Case(
        {
            "F.cross_entropy of logits": Method(embedding_step(cross_entropy)),
            "DiscriminativeLoss of C-dim embeddings": Method(embedding_step(DiscriminativeLoss(CLASSES, CLASSES))),
            "linear layer + F.cross_entropy": Method(_linear_and_cross_entropy(512)),
            "DiscriminativeLoss with its projection": Method(_one_hot_classes(512)),
            "PML ArcFaceLoss": Method(_arcface(512)),
        },
        "F.cross_entropy of logits",
        sizes=(256,),
        dim=CLASSES,
    ),
    f"Discriminative k-means, {MANY_CLASSES} classes": Case(
        {
            FLOOR: Method(_given_centroids(MANY_CLASSES, whole_loss=False)),
            "discriminative_loss": Method(_given_centroids(MANY_CLASSES, whole_loss=True)),
        },
        FLOOR,
        sizes=(256,),
    ),
}
