"""Which losses compare pairs of samples through their own distance, so that another matrix can be put there."""

from pml_ext._pml import BaseMetricLossFunction

# Losses without class weights that do not, by class name, and why.
_REFUSED = {
    "AngularLoss": "it reads the embeddings themselves, not pair distances",
    "CentroidTripletLoss": "it compares samples with centroids, not with samples",
    "DiscriminativeLoss": "it compares samples with class centroids, so it has no negative pairs",
    "InstanceLoss": "it reads column c of the matrix as class c, so it has no negative pairs",
    "ThresholdConsistentMarginLoss": "it computes its cosines itself; TCMLoss is the same loss and works",
    "VICRegLoss": "it has no labels and no pair distances",
}

_ALL_POSITIVES = {
    "FastAPLoss": "it ranks all positives of a sample; a tuple only weights the samples",
    "NCALoss": "it takes all positives of a sample; a tuple only weights the samples",
    "PNPLoss": "it ranks all positives of a sample and takes no tuples",
    "RankedListLoss": "it takes all positives of a sample and no tuples",
    "RecallAtKSurrogateLoss": "it ranks all positives of a sample; a tuple only weights the samples",
    "SmoothAPLoss": "it ranks all positives of a sample; a tuple only weights the samples",
    "TCMLoss": "it is defined over all positive pairs",
}

_OF_TRIPLETS = ("CITLoss", "DynamicSoftMarginLoss", "HistogramLoss", "MarginLoss", "TripletMarginLoss")


def check_limits_positives(loss: object, *, cannot: str, instead: str) -> None:
    """A TypeError unless an indices_tuple says which positives the loss takes.

    Args:
        loss: what `check_tuple_loss` accepts.
        cannot, instead: the beginning of the refusal and what to do.
    """
    for kind in type(loss).__mro__:
        if kind.__name__ in _ALL_POSITIVES:
            raise TypeError(f"{cannot} {kind.__name__}: {_ALL_POSITIVES[kind.__name__]}. {instead}")


def compares_triplets(loss: object) -> bool:
    """The loss makes triplets of a tuple (PML's way from pairs to triplets takes memory of B³)."""
    return any(kind.__name__ in _OF_TRIPLETS for kind in type(loss).__mro__)


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
    for kind in type(loss).__mro__:
        if kind.__name__ in _REFUSED:
            raise TypeError(f"{cannot} {name}: {_REFUSED[kind.__name__]}")
    if any(parameter.ndim > 1 for parameter in loss.parameters()):
        raise TypeError(f"{cannot} {name}: it has class weights (proxies), so its negatives are not pairs of samples")
