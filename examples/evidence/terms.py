"""The losses that the runs compare, by name, built from a run's settings.

A method's name is one term or a sum, "smoothap + tcm". A term takes the settings that begin with its name:
"tcm.margin_plus" is margin_plus of the term tcm. A term's weight in the sum is "tcm.weight", 1 where it is not set; or
"tcm.ratio", the norm of its gradient over the first term's, on the first batch.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from pml_ext import losses, miners
from pml_ext._pml import CosineSimilarity, LpDistance, reducers
from pml_ext.functional.loop.partners import consecutive_pairs
from pml_ext.inspection import gradient_shares

Settings = Mapping[str, Any]


class Sizes(NamedTuple):
    """The sizes of a run that losses need."""

    classes: int
    dimension: int
    seed: int


class Mined(nn.Module):
    """A loss with its miner."""

    def __init__(self, loss: nn.Module, miner: nn.Module) -> None:
        super().__init__()
        self.loss, self.miner = loss, miner

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        value: Tensor = self.loss(embeddings, labels, self.miner(embeddings, labels))
        return value


class ConsecutivePairs(nn.Module):
    """Triplets of LoOp's positive pairs, both ways, with all negatives: 1st and 2nd image of a class, 3rd and 4th, …"""

    def forward(self, embeddings: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        anchors, positives = consecutive_pairs(labels)
        triplet, negatives = (labels[anchors][:, None] != labels).nonzero(as_tuple=True)
        return anchors[triplet], positives[triplet], negatives


class ConsecutivePairsWithNegatives(nn.Module):
    """The same positive pairs, each with all pairs of its anchor and a negative, for losses of pairs."""

    def forward(self, embeddings: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        anchors, positives = consecutive_pairs(labels)
        anchors_of_negatives, negatives = (labels[:, None] != labels).nonzero(as_tuple=True)
        return anchors, positives, anchors_of_negatives, negatives


class LinearCrossEntropy(nn.Module):
    """Cross-entropy of a linear layer with bias on unnormalised embeddings."""

    def __init__(self, classes: int, dimension: int) -> None:
        super().__init__()
        self.layer = nn.Linear(dimension, classes)

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(self.layer(embeddings), labels)


class Sum(nn.Module):
    """The weighted sum of the terms.

    ratios: by a term's number, the norm of its weighted gradient over the first term's, on the first batch.
    """

    def __init__(self, terms: list[tuple[float, nn.Module]], ratios: dict[int, float]) -> None:
        super().__init__()
        self.weights = [weight for weight, _ in terms]
        self.terms = nn.ModuleList(term for _, term in terms)
        self.ratios = ratios

    def _weigh(self, embeddings: Tensor, labels: Tensor) -> None:
        losses = {str(number): term for number, term in enumerate(self.terms)}
        shares = gradient_shares(losses, embeddings, labels)
        for number, ratio in self.ratios.items():
            self.weights[number] = ratio * shares["0"] / shares[str(number)]
        self.ratios = {}

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        if self.ratios:
            self._weigh(embeddings, labels)
        total = embeddings.new_zeros(())
        for weight, term in zip(self.weights, self.terms, strict=True):
            total = total + weight * term(embeddings, labels)
        return total


def of_method(name: str, settings: Settings, sizes: Sizes) -> Sum:
    """The loss of a method.

    Raises:
        SystemExit: an unknown term.
    """
    terms, ratios = [], {}
    for number, part in enumerate(name.split("@")[0].split(" + ")):
        own = {key.removeprefix(f"{part}."): value for key, value in settings.items() if key.startswith(f"{part}.")}
        weight = own.pop("weight", 1.0)
        if "ratio" in own:
            ratios[number] = own.pop("ratio")
        terms.append((weight, _term(part, own, sizes)))
    return Sum(terms, ratios)


def _term(name: str, options: dict[str, Any], sizes: Sizes) -> nn.Module:
    inner = name.removeprefix("loop_")
    if inner == "ms":
        miner: nn.Module = miners.MultiSimilarityMiner(epsilon=options.pop("epsilon"))
        if name == "loop_ms":
            miner = miners.LoOpMiner(miner, pairing="consecutive")
        return Mined(losses.MultiSimilarityLoss(alpha=2.0, **options), miner)
    if name == "triplet_semihard":
        miner = miners.TripletMarginMiner(options["margin"], type_of_triplets="semihard")
        return Mined(losses.TripletMarginLoss(**options), miner)
    if name == "triplet_consecutive":  # the positive pairs of LoOp's arcs
        return Mined(losses.TripletMarginLoss(**options), ConsecutivePairs())
    if name == "n_pair":
        return Mined(_loss(name, options, sizes), ConsecutivePairsWithNegatives())
    if name == "triplet_disjoint":
        return Mined(losses.TripletMarginLoss(**options), miners.DisjointTripletMiner(seed=sizes.seed))
    if name.startswith("loop_"):
        positives = options.pop("positives", "arc")
        return losses.LoOp(_loss(inner, options, sizes), pairing="consecutive", positives=positives)
    return _loss(name, options, sizes)


def _loss(name: str, options: dict[str, Any], sizes: Sizes) -> nn.Module:
    """A loss without miner."""
    over_classes = (sizes.classes, sizes.dimension)
    match name:
        case "triplet":
            return losses.TripletMarginLoss(**options)
        case "triplet_random":  # one random triplet for each sample as the anchor
            return losses.TripletMarginLoss(triplets_per_anchor=1, **options)
        case "multi_similarity":  # of all pairs, without a miner
            return losses.MultiSimilarityLoss(alpha=2.0, **options)
        case "n_pair" | "nt_xent":  # over cosines, as NPairsLoss has no temperature
            return losses.NTXentLoss(**options)
        case "hphn":
            return losses.HPHNTripletLoss(positives="consecutive", **options)
        case "lifted":
            return losses.LiftedHingeLoss(positives="consecutive", **options)
        case "smoothap":
            return losses.SmoothAPLoss(**options)
        case "recall":
            return losses.RecallAtKSurrogateLoss(rank_temperature=1.0, **options)
        case "proxy_nca":
            return losses.ProxyNCALoss(*over_classes, softmax_scale=options["scale"])
        case "arcface":
            return losses.ArcFaceLoss(*over_classes, **options)
        case "id":
            return losses.NormalizedSoftmaxLoss(*over_classes, **options)
        case "softmax":
            return LinearCrossEntropy(*over_classes)
        case "soft_triple":
            return losses.SoftTripleLoss(*over_classes, centers_per_class=2, margin=0.01, **options)
        case "discriminative":  # the paper's last layer always has C nodes
            return losses.DiscriminativeLoss(*over_classes, centroid_size=sizes.classes, seed=sizes.seed, **options)
        case "contrastive":
            return losses.ContrastiveLoss(distance=CosineSimilarity(), **options)
        case "cit":
            return losses.CITLoss(**options)
        case "angular":
            return losses.AngularLoss(alpha=options["degrees"])
        case "circle":
            return losses.CircleLoss(**options)
        case "centroid_triplet":  # as in pytorch-metric-learning ≤ 1.7.3
            distance, reducer = LpDistance(), reducers.AvgNonZeroReducer()
            return losses.CentroidTripletLoss(distance=distance, reducer=reducer, **options)
        case "tcm":
            return losses.TCMLoss(**options)
        case "gpw":
            return losses.PairWeightingLoss(**options)
    raise SystemExit(f"unknown term {name}")


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
