"""Which losses the ranks divide among themselves by anchors, and what a rank then computes of each.

Which anchors are whose is decided in pml_ext/distributed.py.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pml_ext._pml import AvgNonZeroReducer, BaseMetricLossFunction, MeanReducer, losses
from pml_ext.losses._anchor_sums import (
    OF_ANCHORS,
    Part,
    Sums,
    anchors_first_sums,
    arc_sums,
    concordance_sums,
    pair_sums,
    reducers_of,
    sample_sums,
    threshold_consistency_sums,
    triplet_sums,
)
from pml_ext.losses._base import is_mean_of_cosines
from pml_ext.losses.cit import CITLoss
from pml_ext.losses.discriminative import DiscriminativeLoss
from pml_ext.losses.loop import LoOp
from pml_ext.losses.pair_weighting import PairWeightingLoss
from pml_ext.losses.recall_at_k import RecallAtKSurrogateLoss
from pml_ext.losses.smooth_ap import SmoothAPLoss
from pml_ext.losses.tcm import TCMLoss
from pml_ext.losses.tcm_regularizer import TCMRegularizer

Share = Callable[[Any, Tensor, Tensor, Part], Sums]
"""(loss, embeddings and labels of all ranks, the anchors) -> the sums. Called by every rank."""

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
        *OF_ANCHORS, *_OF_PAIRS, *_OF_SAMPLES, *_OF_RANKINGS,
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
        return arc_sums
    if isinstance(loss, CITLoss):
        return concordance_sums
    if isinstance(loss, TCMLoss):
        return threshold_consistency_sums
    if isinstance(loss, losses.TripletMarginLoss):
        return triplet_sums
    if isinstance(loss, (*_OF_RANKINGS, PairWeightingLoss)):
        return anchors_first_sums
    return sample_sums if isinstance(loss, _OF_SAMPLES) else pair_sums


def compares_samples(loss: nn.Module) -> bool:
    """Whether the loss compares samples: then a rank needs all embeddings, and its anchors are whole classes."""
    return type(loss) not in _OF_SAMPLES


def has_both_kinds_of_pairs(sizes: Sequence[int]) -> bool:
    """Whether classes of these sizes have a positive and a negative pair.

    Losses differ in what they do with a batch without them, and a rank cannot see from its part that it is one.
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
    if any(kind not in (MeanReducer, AvgNonZeroReducer) for kind in map(type, reducers_of(loss))):
        return "its reducer is neither MeanReducer nor AvgNonZeroReducer"
    if getattr(loss, "weighting", "") == "histogram":
        return "the weighting 'histogram' is of all pairs together"
    return ""


_KINDS = {CITLoss, TCMLoss, losses.TripletMarginLoss, *OF_ANCHORS, *_OF_PAIRS, *_OF_SAMPLES, *_OF_RANKINGS}


def _regularized(loss: TCMRegularizer, x: Tensor, labels: Tensor, part: Part) -> Sums:
    both = [share_of(one)(one, x, labels, part) for one in (loss.loss, loss.tcm)]
    sums, counts = (torch.cat(parts) for parts in zip(*both, strict=True))
    return sums, counts
