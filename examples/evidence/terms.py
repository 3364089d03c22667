"""The losses that the runs compare, by name, built from a run's settings.

A method's name is one term or a sum, "smoothap + tcm". A term takes the settings that begin with its name:
"tcm.margin_plus" is margin_plus of the term tcm. A term's weight in the sum is "tcm.weight", 1 where it is not set.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from pml_ext import losses, miners
from pml_ext._pml import CosineSimilarity, LpDistance, reducers

Settings = Mapping[str, Any]


class Sizes(NamedTuple):
    """The sizes of a run that losses need."""

    classes: int
    dimension: int
    seed: int


class Term(nn.Module):
    """A loss with its miner."""

    def __init__(self, loss: nn.Module, miner: nn.Module | None = None) -> None:
        super().__init__()
        self.loss, self.miner = loss, miner

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        if self.miner is None:
            value: Tensor = self.loss(embeddings, labels)
        else:
            value = self.loss(embeddings, labels, self.miner(embeddings, labels))
        return value


class Softmax(nn.Module):
    """Cross-entropy of a linear layer with bias on unnormalised embeddings."""

    def __init__(self, classes: int, dimension: int) -> None:
        super().__init__()
        self.layer = nn.Linear(dimension, classes)

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(self.layer(embeddings), labels)


class Sum(nn.Module):
    """The weighted sum of the terms."""

    def __init__(self, terms: list[tuple[float, nn.Module]]) -> None:
        super().__init__()
        self.weights = [weight for weight, _ in terms]
        self.terms = nn.ModuleList(term for _, term in terms)

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return sum(
            (weight * term(embeddings, labels) for weight, term in zip(self.weights, self.terms, strict=True)),
            start=embeddings.new_zeros(()),
        )


def of_method(name: str, settings: Settings, sizes: Sizes) -> Sum:
    """The loss of a method.

    Raises:
        SystemExit: an unknown term, or a setting that no term takes.
    """
    parts = name.split("@")[0].split(" + ")
    if unknown := [part for part in parts if part not in TERMS]:
        raise SystemExit(f"unknown term {', '.join(unknown)}; known: {', '.join(TERMS)}")
    built = []
    for part in parts:
        own = {key.split(".", 1)[1]: value for key, value in settings.items() if key.split(".", 1)[0] == part}
        weight = own.pop("weight", 1.0)
        built.append((weight, TERMS[part](sizes, **own)))
    return Sum(built)


def projected(loss: Sum, embeddings: Tensor) -> Tensor:
    """The embeddings after DiscriminativeLoss's own last layer, which it compares with its centroids."""
    inner = loss.terms[0].loss
    layer = inner.layer if isinstance(inner, Softmax) else inner.projection
    return normalize(layer(embeddings))


def _triplet(sizes: Sizes, *, margin: float) -> Term:
    return Term(losses.TripletMarginLoss(margin=margin))


def _triplet_semihard(sizes: Sizes, *, margin: float) -> Term:
    return Term(losses.TripletMarginLoss(margin=margin), miners.TripletMarginMiner(margin, type_of_triplets="semihard"))


def _triplet_disjoint(sizes: Sizes, *, margin: float) -> Term:
    return Term(losses.TripletMarginLoss(margin=margin), miners.DisjointTripletMiner(seed=sizes.seed))


def _triplet_random(sizes: Sizes, *, margin: float) -> Term:
    """One random triplet for each sample as the anchor."""
    return Term(losses.TripletMarginLoss(margin=margin, triplets_per_anchor=1))


def _loop(base: Callable[..., Term]) -> Callable[..., Term]:
    def build(
        sizes: Sizes,
        *,
        pairing: str = "consecutive",
        positives: str = "arc",
        geometry: str = "arc",
        **options: Any,
    ) -> Term:
        term = base(sizes, **options)
        if geometry == "segment":
            term.loss.distance = LpDistance(normalize_embeddings=False)
        loop = losses.LoOp(term.loss, pairing=pairing, positives=positives, geometry=geometry)
        return Term(loop, term.miner)

    return build


def _hphn(sizes: Sizes, *, margin: float, positives: str = "consecutive") -> Term:
    return Term(losses.HPHNTripletLoss(margin=margin, positives=positives))


def _lifted(sizes: Sizes, *, margin: float, positives: str = "consecutive") -> Term:
    return Term(losses.LiftedHingeLoss(margin=margin, positives=positives))


def _ms(sizes: Sizes, *, beta: float, base: float, epsilon: float, alpha: float = 2.0) -> Term:
    loss = losses.MultiSimilarityLoss(alpha=alpha, beta=beta, base=base)
    return Term(loss, miners.MultiSimilarityMiner(epsilon=epsilon))


def _loop_ms(sizes: Sizes, *, epsilon: float, pairing: str = "consecutive", **options: float) -> Term:
    term = _ms(sizes, epsilon=epsilon, **options)
    return Term(term.loss, miners.LoOpMiner(miners.MultiSimilarityMiner(epsilon=epsilon), pairing=pairing))


def _smoothap(sizes: Sizes, *, temperature: float) -> Term:
    return Term(losses.SmoothAPLoss(temperature=temperature))


def _recall(sizes: Sizes, *, temperature: float, rank_temperature: float = 1.0) -> Term:
    return Term(losses.RecallAtKSurrogateLoss(temperature=temperature, rank_temperature=rank_temperature))


def _proxy_nca(sizes: Sizes, *, scale: float) -> Term:
    return Term(losses.ProxyNCALoss(sizes.classes, sizes.dimension, softmax_scale=scale))


def _arcface(sizes: Sizes, *, margin: float, scale: float) -> Term:
    return Term(losses.ArcFaceLoss(sizes.classes, sizes.dimension, margin=margin, scale=scale))


def _id(sizes: Sizes, *, temperature: float) -> Term:
    return Term(losses.NormalizedSoftmaxLoss(sizes.classes, sizes.dimension, temperature=temperature))


def _softmax(sizes: Sizes) -> Term:
    return Term(Softmax(sizes.classes, sizes.dimension))


def _contrastive(sizes: Sizes, *, pos_margin: float, neg_margin: float) -> Term:
    distance = CosineSimilarity()
    return Term(losses.ContrastiveLoss(pos_margin=pos_margin, neg_margin=neg_margin, distance=distance))


def _cit(sizes: Sizes, *, gamma: float, similarity: str = "unit") -> Term:
    return Term(losses.CITLoss(gamma=gamma, similarity=similarity))


def _angular(sizes: Sizes, *, degrees: float) -> Term:
    return Term(losses.AngularLoss(alpha=degrees))


def _circle(sizes: Sizes, *, m: float, gamma: float) -> Term:
    return Term(losses.CircleLoss(m=m, gamma=gamma))


def _centroid_triplet(sizes: Sizes, *, margin: float) -> Term:
    """As in pytorch-metric-learning ≤ 1.7.3: Euclidean distances, mean over the non-zero terms."""
    distance, reducer = LpDistance(), reducers.AvgNonZeroReducer()
    return Term(losses.CentroidTripletLoss(margin=margin, distance=distance, reducer=reducer))


def _soft_triple(sizes: Sizes, *, la: float, gamma: float, margin: float = 0.01, centers: int = 2) -> Term:
    options = {"centers_per_class": centers, "la": la, "gamma": gamma, "margin": margin}
    return Term(losses.SoftTripleLoss(sizes.classes, sizes.dimension, **options))


def _discriminative(sizes: Sizes, *, centroids: str = "one_hot") -> Term:
    size = sizes.classes  # the paper's last layer always has C nodes
    loss = losses.DiscriminativeLoss(
        sizes.classes, sizes.dimension, centroids=centroids, centroid_size=size, seed=sizes.seed
    )
    return Term(loss)


def _tcm(
    sizes: Sizes,
    *,
    margin_plus: float,
    margin_minus: float,
    lambda_plus: float = 1.0,
    lambda_minus: float = 1.0,
    **options: Any,
) -> Term:
    return Term(losses.TCMLoss(lambda_plus, lambda_minus, margin_plus, margin_minus, **options))


def _gpw(sizes: Sizes, *, weighting: str, mining: float | None = None, **options: float) -> Term:
    return Term(losses.PairWeightingLoss(weighting, mining, **options))


TERMS: dict[str, Callable[..., Term]] = {
    "triplet": _triplet,
    "triplet_semihard": _triplet_semihard,
    "triplet_disjoint": _triplet_disjoint,
    "triplet_random": _triplet_random,
    "loop_triplet": _loop(_triplet),
    "loop_triplet_semihard": _loop(_triplet_semihard),
    "hphn": _hphn,
    "loop_hphn": _loop(_hphn),
    "lifted": _lifted,
    "loop_lifted": _loop(_lifted),
    "ms": _ms,
    "loop_ms": _loop_ms,
    "smoothap": _smoothap,
    "recall": _recall,
    "proxy_nca": _proxy_nca,
    "arcface": _arcface,
    "id": _id,
    "softmax": _softmax,
    "contrastive": _contrastive,
    "cit": _cit,
    "angular": _angular,
    "circle": _circle,
    "centroid_triplet": _centroid_triplet,
    "soft_triple": _soft_triple,
    "discriminative": _discriminative,
    "tcm": _tcm,
    "gpw": _gpw,
}


def fingerprint(name: str, settings: Settings) -> str:
    """Value and gradient of a method's loss on a fixed batch, to six digits: changes with its arithmetic."""
    sizes = Sizes(classes=8, dimension=12, seed=0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        loss = of_method(name, settings, sizes)
        labels = torch.arange(8).repeat_interleave(4)
        embeddings = 0.5 * torch.randn(8, 12)[labels] + torch.randn(32, 12)
        embeddings.requires_grad_()
        value = loss(embeddings, labels)
        (gradient,) = torch.autograd.grad(value, embeddings)
    return f"{value.item():.6g} {gradient.norm().item():.6g}"
