"""When a loss may take its own kernel in place of the reducer that it was given."""

from pml_ext._pml import BaseMetricLossFunction, MeanReducer, reducers


def reduces_by_mean(loss: BaseMetricLossFunction) -> bool:
    """Every sub-loss but the embedding regularizer is reduced by PML's MeanReducer."""
    reducer = loss.reducer
    if type(reducer) is not reducers.MultipleReducers:
        return type(reducer) is MeanReducer
    named = dict(reducer.reducers.items())
    return all(type(named.get(name, reducer.default_reducer)) is MeanReducer for name in loss._sub_loss_names())
