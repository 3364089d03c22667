"""What one rank computes of a loss over the batch of all ranks: sums over its anchors, and over how many terms.

Which anchors are whose is decided in pml_ext/distributed.py.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, distributed, nn

from pml_ext._ops.distributed import add_transpose_of_ranks_
from pml_ext._pml import AvgNonZeroReducer, BaseMetricLossFunction, MeanReducer, losses, reducers
from pml_ext.distances.injected import twin_of
from pml_ext.functional.loop.partners import consecutive_pairs
from pml_ext.functional.losses.cit_rows import concordance_sum_of_rows
from pml_ext.functional.losses.tcm_rows import threshold_consistency_sums_of_rows
from pml_ext.functional.tuples.pairs import class_spans, same_and_different
from pml_ext.losses._base import is_mean_of_cosines
from pml_ext.losses._tuple_loss import compares_triplets
from pml_ext.losses.cit import CITLoss
from pml_ext.losses.discriminative import DiscriminativeLoss
from pml_ext.losses.loop import LoOp
from pml_ext.losses.pair_weighting import PairWeightingLoss
from pml_ext.losses.recall_at_k import RecallAtKSurrogateLoss
from pml_ext.losses.smooth_ap import SmoothAPLoss
from pml_ext.losses.tcm import TCMLoss
from pml_ext.losses.tcm_regularizer import TCMRegularizer

Sums = tuple[Tensor, Tensor]
"""(T,) sums of the loss's T terms over a rank's anchors, with a graph, and (T,) how many they are of."""


class Part(NamedTuple):
    """Which samples are the anchors of every rank; the embeddings of all are in this order, class by class."""

    of_ranks: list[slice]
    rank: int

    @property
    def own(self) -> slice:
        return self.of_ranks[self.rank]

    @property
    def size(self) -> int:
        return int(self.own.stop - self.own.start)


Share = Callable[[Any, Tensor, Tensor, Part], Sums]
"""(loss, embeddings and labels of all ranks, the anchors) -> the sums. Called by every rank."""

_OF_ANCHORS = (losses.MultiSimilarityLoss, losses.CircleLoss, losses.SupConLoss, PairWeightingLoss)
_OF_PAIRS = (losses.ContrastiveLoss, losses.NTXentLoss)
_OF_SAMPLES = (
    DiscriminativeLoss, losses.ArcFaceLoss, losses.CosFaceLoss, losses.NormalizedSoftmaxLoss, losses.SoftTripleLoss,
    losses.ProxyNCALoss,
)  # fmt: skip
_OF_RANKINGS = (SmoothAPLoss, RecallAtKSurrogateLoss)

DIVISIBLE = sorted(
    kind.__name__
    for kind in (
        CITLoss, TCMLoss, TCMRegularizer, LoOp, losses.TripletMarginLoss,
        *_OF_ANCHORS, *_OF_PAIRS, *_OF_SAMPLES, *_OF_RANKINGS,
    )
)  # fmt: skip
"""The losses that `share_of` divides, by name."""


def share_of(loss: nn.Module) -> Share:
    """How a rank computes its share of a loss.

    Raises:
        TypeError: the loss, or a setting of it, mixes the anchors.
    """
    why = _not_divisible(loss)
    if why:
        raise TypeError(
            f"{type(loss).__name__} cannot be divided over ranks: {why}. What can: {', '.join(DIVISIBLE)}, with "
            "MeanReducer or AvgNonZeroReducer and without a regularizer of embeddings or weights; PML's "
            "DistributedLossWrapper takes any loss, and computes all of it on every rank"
        )
    if isinstance(loss, TCMRegularizer):
        return _regularized
    if isinstance(loss, LoOp):
        return _on_arcs
    if isinstance(loss, CITLoss):
        return _concordance
    if isinstance(loss, TCMLoss):
        return _threshold_consistency
    if isinstance(loss, losses.TripletMarginLoss):
        return _triplets
    if isinstance(loss, _OF_RANKINGS):
        return _rankings
    return _samples if isinstance(loss, _OF_SAMPLES) else _pairs


def compares_samples(loss: nn.Module) -> bool:
    """Whether a term of the loss needs other samples than its own, and the class by which anchors are shared out."""
    return type(loss) not in _OF_SAMPLES


def has_both_kinds_of_pairs(sizes: Sequence[int]) -> bool:
    """Whether classes of these sizes have a positive and a negative pair.

    PML's losses and ours have each their way with a batch that does not, and a rank cannot see it in its share.
    """
    return 1 < max(sizes) < sum(sizes)


def _not_divisible(loss: Any) -> str:
    """Why a loss cannot be divided; empty where it can."""
    if isinstance(loss, (TCMRegularizer, LoOp)):
        if not isinstance(loss.loss, BaseMetricLossFunction):
            return f"it contains {type(loss.loss).__name__}"
        inner = _not_divisible(loss.loss)
        return f"the {type(loss.loss).__name__} in it cannot ({inner})" if inner else ""
    name = type(loss).__name__
    if name not in DIVISIBLE or type(loss) not in _KINDS:
        return "its anchors are not known to be independent of each other"
    if (
        getattr(loss, "embedding_regularizer", None) is not None
        or getattr(loss, "weight_regularizer", None) is not None
    ):
        return "it has a regularizer"
    if isinstance(loss, (CITLoss, TCMLoss)) and not is_mean_of_cosines(loss):
        return "it is divided with CosineSimilarity and MeanReducer only"
    unfit = {
        "triplets_per_anchor": "all", "swap": False, "paper_scale": False, "mining": None, "collect_stats": False,
    }  # fmt: skip
    for setting, needed in unfit.items():
        if getattr(loss, setting, needed) != needed:
            return f"{setting} must be {needed!r}; it is {getattr(loss, setting)!r}"
    if any(kind not in (MeanReducer, AvgNonZeroReducer) for kind in map(type, _reducers(loss))):
        return "its reducer is another one"
    if getattr(loss, "weighting", "") == "histogram":
        return "the weighting 'histogram' is of all pairs together"
    return ""


_KINDS = {CITLoss, TCMLoss, losses.TripletMarginLoss, *_OF_ANCHORS, *_OF_PAIRS, *_OF_SAMPLES, *_OF_RANKINGS}


def _reducers(loss: Any) -> list[nn.Module]:
    """Of each sub-loss."""
    if not isinstance(loss.reducer, reducers.MultipleReducers):
        return [loss.reducer]
    named = dict(loss.reducer.reducers.items())
    return [named.get(name, loss.reducer.default_reducer) for name in loss.sub_loss_names()]


def _regularized(loss: TCMRegularizer, x: Tensor, labels: Tensor, part: Part) -> Sums:
    both = [share_of(one)(one, x, labels, part) for one in (loss.loss, loss.tcm)]
    sums, counts = (torch.cat(parts) for parts in zip(*both, strict=True))
    return sums, counts


def _concordance(loss: CITLoss, x: Tensor, labels: Tensor, part: Part) -> Sums:
    spans, everyone = class_spans(labels), distributed.group.WORLD
    assert everyone is not None
    total = concordance_sum_of_rows(
        x, part.own, spans, loss.gamma, loss.similarity, loss.hinge_partial_likelihood,
        add_transpose=lambda rows: add_transpose_of_ranks_(rows, part.of_ranks, everyone),
    )  # fmt: skip
    size = spans.size[part.own]
    return total.view(1), (size - 1).mul(len(labels) - size).sum().to(total.dtype).view(1)


def _threshold_consistency(loss: TCMLoss, x: Tensor, labels: Tensor, part: Part) -> Sums:
    spans, margins = class_spans(labels), (loss.margin_plus, loss.margin_minus)
    sums, counts = threshold_consistency_sums_of_rows(x, part.own, spans, *margins, indicator=loss.indicator)
    weights = sums.new_tensor([loss.lambda_plus, loss.lambda_minus])
    if loss.divide_by == "all":
        size = spans.size[part.own]
        counts = torch.stack([(size - 1).sum(), (len(labels) - size).sum()]).to(sums.dtype)
    return sums * weights, counts


def _rankings(loss: Any, x: Tensor, labels: Tensor, part: Part) -> Sums:
    """With the anchors first in the reference, where a sample's comparison with itself is on the diagonal."""
    own, before, after = part.own, slice(0, part.own.start), slice(part.own.stop, None)
    if not part.size:
        return _nothing(loss, x)
    terms = _Terms(loss, empty=0)
    twin = twin_of(loss, {"reducer": terms}, reference_begins_with_batch=True, _has_warned=True)
    first = [torch.cat([every[own], every[before], every[after]]) for every in (x, labels)]
    twin(x[own], labels[own], None, *first)
    return terms.sums, terms.counts


def _samples(loss: Any, x: Tensor, labels: Tensor, part: Part) -> Sums:
    terms = _Terms(loss, empty=part.size)
    twin_of(loss, {"reducer": terms})(x[part.own], labels[part.own])
    return terms.sums, terms.counts


def _pairs(loss: Any, x: Tensor, labels: Tensor, part: Part) -> Sums:
    if not part.size:
        return _nothing(loss, x)
    terms = _Terms(loss, empty=part.size if isinstance(loss, _OF_ANCHORS) else 0)
    same, different = _masks(labels, part.own)
    tuples = (*same.nonzero(as_tuple=True), *different.nonzero(as_tuple=True))
    twin_of(loss, {"reducer": terms})(x[part.own], labels[part.own], tuples, x, labels)
    return terms.sums, terms.counts


def _triplets(loss: Any, x: Tensor, labels: Tensor, part: Part) -> Sums:
    if not part.size:
        return _nothing(loss, x)
    terms = _Terms(loss, empty=0)
    same, different = _masks(labels, part.own)
    anchors, positives = same.nonzero(as_tuple=True)
    tuples = _all_negatives(anchors, positives, different)
    twin_of(loss, {"reducer": terms})(x[part.own], labels[part.own], tuples, x, labels)
    return terms.sums, terms.counts


def _on_arcs(loss: LoOp, x: Tensor, labels: Tensor, part: Part) -> Sums:
    """Anchors are whole classes, so an arc's two ends are anchors of one rank."""
    inner = loss.loss
    if not part.size:
        return _nothing(inner, x)
    terms = _Terms(inner, empty=part.size if isinstance(inner, _OF_ANCHORS) else 0)
    same, different = _masks(labels, part.own)
    anchors, positives = same.nonzero(as_tuple=True)
    if loss.positives == "arc" and loss.pairing == "consecutive":
        anchors, partners = consecutive_pairs(labels[part.own])
        positives = part.own.start + partners
    tuples: tuple[Tensor, ...] = (anchors, positives, *different.nonzero(as_tuple=True))
    if compares_triplets(inner):
        tuples = _all_negatives(anchors, positives, different)
    inside = twin_of(inner, {"reducer": terms})
    twin_of(loss, {"loss": inside})(x[part.own], labels[part.own], tuples, x, labels)
    return terms.sums, terms.counts


def _masks(labels: Tensor, rows: slice) -> tuple[Tensor, Tensor]:
    """(rows, B): which pairs of an anchor are of one class, and which of two."""
    same, different = same_and_different(labels[rows], labels)
    same[:, rows].fill_diagonal_(False)
    return same, different


def _nothing(loss: Any, x: Tensor) -> Sums:
    """Of a rank without anchors."""
    none = x.new_zeros(len(loss.sub_loss_names()))
    return none, none


def _all_negatives(anchors: Tensor, positives: Tensor, different: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Triplets: each positive pair with every negative of its anchor."""
    pair, negatives = different[anchors].nonzero(as_tuple=True)
    return anchors[pair], positives[pair], negatives


class _Terms(nn.Module):
    """In a reducer's place: keeps the sums of terms and their numbers, which the reducer would divide.

    Args:
        loss: whose reducer is a MeanReducer or AvgNonZeroReducer, or has one of these for each sub-loss.
        empty: as how many terms of value 0 a sub-loss counts that found no pair and so computed none.
    """

    def __init__(self, loss: Any, *, empty: int) -> None:
        super().__init__()
        self.kinds = dict(zip(loss.sub_loss_names(), map(type, _reducers(loss)), strict=True))
        self.empty = empty
        self.sums = self.counts = torch.zeros(0)

    def forward(self, terms: dict[str, dict[str, Any]], embeddings: Tensor, labels: Tensor) -> Tensor:
        sums, counts = [], []
        for name, kind in self.kinds.items():
            values = terms[name]["losses"]
            if terms[name]["reduction_type"] == "already_reduced" or not isinstance(values, Tensor):
                sums.append(embeddings[:0].sum())
                counts.append(torch.tensor(self.empty if kind is MeanReducer else 0, device=embeddings.device))
            elif kind is MeanReducer:
                sums.append(values.sum())
                counts.append(torch.tensor(len(values), device=values.device))
            else:
                found = values > 0
                sums.append(torch.where(found, values, 0).sum())
                counts.append(found.sum())
        self.sums = torch.stack(sums)
        self.counts = torch.stack(counts).to(self.sums.dtype)
        return self.sums.sum()
