"""When a loss may take its own kernel in place of the reducer that it was given, and how its one value gets through."""

from typing import Any

from torch import Tensor

from pml_ext._pml import BaseMetricLossFunction, MeanReducer, reducers
from pml_ext.distances.plain_cosine import is_plain_cosine


class ReducersOfTerms(reducers.MultipleReducers):
    """PML's MultipleReducers, which leaves a single term to its reducer at once: no buffer of terms, no sum of one."""

    def forward(self, loss_dict: dict[str, Any], embeddings: Tensor, labels: Tensor | None) -> Any:
        if len(loss_dict) > 1:
            return super().forward(loss_dict, embeddings, labels)
        (name,) = loss_dict
        return self.reducers[name](loss_dict, embeddings, labels)


def reduces_by_mean(loss: BaseMetricLossFunction) -> bool:
    """Every sub-loss but the embedding regularizer is reduced by PML's MeanReducer."""
    reducer = loss.reducer
    if type(reducer) not in (reducers.MultipleReducers, ReducersOfTerms):
        return type(reducer) is MeanReducer
    named = dict(reducer.reducers.items())
    return all(type(named.get(name, reducer.default_reducer)) is MeanReducer for name in loss._sub_loss_names())


def goes_direct(loss: BaseMetricLossFunction) -> bool:
    """Nobody can tell whether the loss of a batch with itself went through PML's dict of terms and its reducer.

    So where a mean over cosines is all there is: no regularizer, no statistics, no hook on a reducer.
    """
    return (
        loss.embedding_regularizer is None
        and not loss.collect_stats
        and reduces_by_mean(loss)
        and is_plain_cosine(loss.distance)
        and not any(_is_watched(module) for module in loss.reducer.modules())
    )


def _is_watched(module: Any) -> bool:
    hooks = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    return bool(hooks) or getattr(module, "collect_stats", False)
