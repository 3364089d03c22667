"""Whether a loss compares pairs of samples through its own distance, so that another matrix can be put there."""

from pml_ext._pml import BaseMetricLossFunction
from pml_ext.losses._facts import facts_of


def check_tuple_loss(loss: object, *, cannot: str, nested: str) -> None:
    """A TypeError with the reason unless the loss compares pairs of samples through its own distance.

    Args:
        loss: what was handed in.
        cannot: how the refusal begins: "LoOp cannot wrap".
        nested: what to do with a loss that contains another one.
    """
    name = type(loss).__name__
    if not isinstance(loss, BaseMetricLossFunction):
        raise TypeError(
            f"loss must be a loss with a `distance` (BaseMetricLossFunction); got {name}. Take its inner loss"
        )
    if any(isinstance(part, BaseMetricLossFunction) for part in loss.modules() if part is not loss):
        raise TypeError(f"{name} contains another loss; {nested}")
    if why := facts_of(type(loss)).reads_no_pairs:
        raise TypeError(f"{cannot} {name}: {why}")
    if any(parameter.ndim > 1 for parameter in loss.parameters()):
        raise TypeError(f"{cannot} {name}: it has class weights (proxies), so its negatives are not pairs of samples")
