"""Whether the ranks of a process group can divide a loss by anchors, and each rank's share of it."""

from typing import Any

from torch import Tensor, nn

from pml_ext._pml import AvgNonZeroReducer, BaseMetricLossFunction, MeanReducer
from pml_ext.losses._anchor_sums import reducers_of
from pml_ext.losses._by_name import KNOWN
from pml_ext.losses._facts import LossFacts, Part, Sums, own_facts


def require_divisible(loss: nn.Module) -> None:
    """Raises a TypeError with the reason if the loss, or a setting of it, mixes the anchors."""
    if why := why_undivided(loss):
        raise TypeError(
            f"{type(loss).__name__} cannot be divided over ranks: {why}. What can: {', '.join(divisible())}, with "
            "MeanReducer or AvgNonZeroReducer and without a regularizer of embeddings or weights; PML's "
            "DistributedLossWrapper takes any loss, and computes all of it on every rank"
        )


def divisible() -> list[str]:
    """Names of the losses that ranks can divide."""
    return sorted(name for name, kind in KNOWN.items() if (own_facts(kind) or LossFacts()).sums)


def why_undivided(loss: Any) -> str:
    """Why ranks cannot divide a loss; empty where they can."""
    facts = own_facts(type(loss))
    if facts is None or facts.sums is None:
        return "its anchors are not known to be independent of each other"
    if why := facts.undivided(loss):
        return why
    if any(getattr(loss, kind, None) is not None for kind in ("embedding_regularizer", "weight_regularizer")):
        return "it has a regularizer"
    if loss.collect_stats:
        return "collect_stats must be False; it is True"
    if any(type(reducer) not in (MeanReducer, AvgNonZeroReducer) for reducer in reducers_of(loss)):
        return "its reducer is neither MeanReducer nor AvgNonZeroReducer"
    return ""


def why_inner_undivided(wrapper: Any) -> str:
    """As `why_undivided`, of the loss in a wrapper."""
    name = type(wrapper.loss).__name__
    if not isinstance(wrapper.loss, BaseMetricLossFunction):
        return f"it contains {name}"
    why = why_undivided(wrapper.loss)
    return f"the {name} in it cannot ({why})" if why else ""


def sums_of(loss: nn.Module, x: Tensor, labels: Tensor, part: Part) -> Sums:
    """A rank's share of a loss that can be divided."""
    facts = own_facts(type(loss))
    assert facts is not None and facts.sums is not None
    return facts.sums(loss, x, labels, part)
