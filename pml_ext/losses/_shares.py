"""Which losses the ranks of a process group can divide by anchors, and the share of each rank: sums and counts."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from pml_ext._checks import check_in_range, check_switch
from pml_ext._pml import (
    AvgNonZeroReducer,
    BaseMetricLossFunction,
    DotProductSimilarity,
    MeanReducer,
    losses,
    reducers,
    regularizers,
)
from pml_ext.distances.injected import twin_of
from pml_ext.functional.tuples import every_triplet, same_and_different
from pml_ext.losses._facts import KNOWN, PML_FACTS, LossFacts, Part, Sums, facts_of, needs, own_facts


def sample_sums(loss: Any, x: Tensor, labels: Tensor, part: Part) -> Sums:
    """Returns the sums of a loss that compares each sample with class vectors."""
    return sums_of_terms(loss, x, part, lambda twin: twin(x[part.own], labels[part.own]))


def tuple_sums(loss: Any, x: Tensor, labels: Tensor, part: Part) -> Sums:
    """Returns the sums of a pair or triplet loss: its anchors with all samples."""

    def call(twin: Any) -> Any:
        same, different = pair_masks_of(labels, part)
        anchors, positives = same.nonzero(as_tuple=True)
        return twin(x[part.own], labels[part.own], tuples_for(loss, anchors, positives, different), x, labels)

    return sums_of_terms(loss, x, part, call)


def anchors_first_sums(loss: Any, x: Tensor, labels: Tensor, part: Part) -> Sums:
    """Returns the sums of a loss of this package that needs no pair list (a third of PairWeightingLoss's memory).

    The anchors come first in ref_emb, so that their comparisons with themselves are on the diagonal.
    """

    def call(twin: Any) -> Any:
        own = part.own
        anchors_first = [torch.cat([every[own], every[: own.start], every[own.stop :]]) for every in (x, labels)]
        twin.__dict__.update(reference_begins_with_batch=True, _has_warned=True)
        return twin(x[own], labels[own], None, *anchors_first)

    return sums_of_terms(loss, x, part, call)


def pair_masks_of(labels: Tensor, part: Part) -> tuple[Tensor, Tensor]:
    """Returns the (anchors, B) masks of the anchors' positive and negative pairs."""
    same, different = same_and_different(labels[part.own], labels)
    same[:, part.own].fill_diagonal_(False)
    return same, different


def tuples_for(loss: Any, anchors: Tensor, positives: Tensor, different: Tensor) -> tuple[Tensor, ...]:
    """Returns pairs, or for a triplet loss each positive pair with every negative of its anchor."""
    if not facts_of(type(loss)).makes_triplets:
        return anchors, positives, *different.nonzero(as_tuple=True)
    return every_triplet(anchors, positives, different)


def sums_of_terms(loss: Any, x: Tensor, part: Part, call: Callable[[Any], dict[str, Any]]) -> Sums:
    """Returns the sums of the values that a loss passes to its reducer.

    call: calls a copy of the loss, which reduces nothing, on the anchors.
    """
    names = loss.sub_loss_names()
    if not part.size:
        none = x.new_zeros(len(names))
        return none, none
    terms = call(twin_of(loss, {"reducer": reducers.DoNothingReducer()}))
    empty = part.size if facts_of(type(loss)).term_of_each_anchor else 0
    sums: list[Tensor] = []
    counts: list[Any] = []
    for name, reducer in zip(names, reducers_of(loss), strict=True):
        values = terms[name]["losses"]
        if not isinstance(values, Tensor) or values.ndim == 0:  # no pair
            sums.append(x[:0].sum())
            counts.append(empty if type(reducer) is MeanReducer else 0)
        elif type(reducer) is MeanReducer:
            sums.append(values.sum())
            counts.append(len(values))
        else:
            is_counted = values > 0
            sums.append(torch.where(is_counted, values, 0).sum())
            counts.append(is_counted.sum())
    return torch.stack(sums), torch.stack([torch.as_tensor(count, device=x.device) for count in counts]).to(x.dtype)


def reducers_of(loss: Any) -> list[Any]:
    """Returns the reducer of each term."""
    reducer = loss.reducer
    if not isinstance(reducer, reducers.MultipleReducers):
        return [reducer]
    named = dict(reducer.reducers.items())
    return [named.get(name, reducer.default_reducer) for name in loss.sub_loss_names()]


def require_divisible(loss: nn.Module) -> None:
    """Raises a TypeError with the reason if ranks cannot divide the loss or one of its settings."""
    if why := why_undivided(loss):
        raise TypeError(
            f"{type(loss).__name__} cannot be divided over ranks: {why}. Losses that can be: "
            f"{', '.join(divisible())}, with MeanReducer or AvgNonZeroReducer and without an embedding or weight "
            "regularizer. PML's DistributedLossWrapper accepts any loss, and computes all of it on every rank"
        )


def divisible() -> list[str]:
    """Returns the names of the losses that ranks can divide."""
    return sorted(name for name, kind in KNOWN.items() if (own_facts(kind) or LossFacts()).sums)


def why_undivided(loss: Any) -> str:
    """Returns why ranks cannot divide a loss; empty if they can."""
    facts = own_facts(type(loss))
    if facts is None or facts.sums is None:
        return "its anchors are not known to be independent of each other"
    if why := facts.undivided(loss):
        return why
    if any(getattr(loss, kind, None) is not None for kind in ("embedding_regularizer", "weight_regularizer")):
        return "it has a regularizer"
    if getattr(loss, "collect_stats", False):
        return "collect_stats must be False; it is True"
    if any(type(reducer) not in (MeanReducer, AvgNonZeroReducer) for reducer in reducers_of(loss)):
        return "its reducer is neither MeanReducer nor AvgNonZeroReducer"
    return ""


def why_inner_undivided(wrapper: Any) -> str:
    """Like `why_undivided`, for the loss in a wrapper."""
    name = type(wrapper.loss).__name__
    if not isinstance(wrapper.loss, BaseMetricLossFunction):
        return f"it contains {name}"
    why = why_undivided(wrapper.loss)
    return f"the {name} in it cannot ({why})" if why else ""


def sums_of(loss: nn.Module, x: Tensor, labels: Tensor, part: Part) -> Sums:
    """Returns a rank's share of a loss that can be divided."""
    facts = own_facts(type(loss))
    assert facts is not None and facts.sums is not None
    return facts.sums(loss, x, labels, part)


def _dot_products(options: dict[str, Any], *_: Any) -> dict[str, Any]:
    check_switch(options["normalize"], "normalize")
    check_in_range(options["reg_weight"], 0, float("inf"), "reg_weight")
    return {
        "distance": DotProductSimilarity(normalize_embeddings=options["normalize"]),
        "embedding_regularizer": regularizers.LpRegularizer(power=2),
        "embedding_reg_weight": options["reg_weight"],
    }


_ANCHOR_BY_ANCHOR = LossFacts(sums=tuple_sums, term_of_each_anchor=True)
_PAIR_BY_PAIR = LossFacts(sums=tuple_sums)
_CLASS_VECTORS = LossFacts(compares="class vectors", sums=sample_sums)
_TRIPLETS = LossFacts(makes_triplets=True)

_BY_NAME = {
    "AngularLoss": LossFacts(reads_no_pairs="it reads the embeddings themselves, not pair distances"),
    "ArcFaceLoss": _CLASS_VECTORS,
    "CircleLoss": _ANCHOR_BY_ANCHOR,
    "ContrastiveLoss": _PAIR_BY_PAIR,
    "CosFaceLoss": _CLASS_VECTORS,
    "DynamicSoftMarginLoss": _TRIPLETS,
    "FastAPLoss": LossFacts(takes_all_positives="it ranks all positives of a sample; a tuple only weights the samples"),
    "HistogramLoss": _TRIPLETS,
    "InstanceLoss": LossFacts(reads_no_pairs="it reads column c of the matrix as class c, so it has no negative pairs"),
    "LargeMarginSoftmaxLoss": LossFacts(compares="class vectors"),
    "MarginLoss": _TRIPLETS,
    "MultiSimilarityLoss": _ANCHOR_BY_ANCHOR,
    "NCALoss": LossFacts(takes_all_positives="it takes all positives of a sample; a tuple only weights the samples"),
    "NormalizedSoftmaxLoss": _CLASS_VECTORS,
    "NPairsLoss": LossFacts(arguments=_dot_products),
    "NTXentLoss": _PAIR_BY_PAIR,
    "P2SGradLoss": LossFacts(compares="class vectors"),
    "PNPLoss": LossFacts(takes_all_positives="it ranks all positives of a sample and takes no tuples"),
    "ProxyAnchorLoss": LossFacts(compares="class vectors"),
    "ProxyNCALoss": _CLASS_VECTORS,
    "RankedListLoss": LossFacts(takes_all_positives="it takes all positives of a sample and no tuples"),
    "SmoothAPLoss": LossFacts(
        takes_all_positives="it ranks all positives of a sample; a tuple only weights the samples"
    ),
    "SoftTripleLoss": _CLASS_VECTORS,
    "SphereFaceLoss": LossFacts(compares="class vectors"),
    "SubCenterArcFaceLoss": LossFacts(compares="class vectors"),
    "SupConLoss": _ANCHOR_BY_ANCHOR,
    "ThresholdConsistentMarginLoss": LossFacts(
        reads_no_pairs="it computes its cosines itself; TCMLoss is the same loss and works"
    ),
    "TripletMarginLoss": LossFacts(
        makes_triplets=True,
        sums=tuple_sums,
        undivided=needs(triplets_per_anchor="all", swap=False),
    ),
    "VICRegLoss": LossFacts(reads_no_pairs="it has no labels and no pair distances"),
}
# PML 2.8 lacks some of these losses.
PML_FACTS.update({getattr(losses, name): facts for name, facts in _BY_NAME.items() if hasattr(losses, name)})
