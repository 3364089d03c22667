"""Facts about each loss, and `loss_by_name` for a loss that wraps another one."""

from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from pml_ext._pml import BaseMetricLossFunction, losses
from pml_ext._shared.checks import check_object
from pml_ext._shared.names import class_name, closest, hint

KNOWN: dict[str, type[nn.Module]] = {}
"""Every loss of this package and of PML, by name; pml_ext.losses fills it."""


def loss_by_name(loss: nn.Module | str) -> Any:
    """Returns a new loss of pml_ext.losses from its name, and any other object unchanged; refuses a class."""
    if not isinstance(loss, str):
        check_object(loss, object, "loss", "an object, or a name")
        return loss
    if loss not in KNOWN:
        near = hint(loss, KNOWN) if closest(loss, KNOWN) else "; dir(pml_ext.losses) lists the known ones"
        raise ValueError(f"unknown loss {loss!r}{near}")
    return KNOWN[loss]()


@dataclass(frozen=True, kw_only=True)
class LossFacts:
    """The class attribute `facts` of a loss, inherited by subclasses. The defaults fit a loss over a batch's pairs.

    compares: what a sample is compared with: other "samples"; learned or fixed "class vectors" (the constructor then
        takes num_classes and embedding_size); or "class scores", for the runner's identity losses.
    reads_distance: it reads its pairs from `self.distance`, so LoOp can replace them.
    takes_all_positives: an indices_tuple does not select the positives, so the runner passes no miner.
    makes_triplets: it converts an indices_tuple to triplets (PML's conversion from pairs needs B³ memory).
    """

    compares: Literal["samples", "class vectors", "class scores"] = "samples"
    reads_distance: bool = True
    takes_all_positives: bool = False
    makes_triplets: bool = False

    @property
    def takes_miner(self) -> bool:
        return self.compares == "samples" and not self.takes_all_positives


_ALL_POSITIVES = ("FastAPLoss", "NCALoss", "PNPLoss", "RankedListLoss", "SmoothAPLoss")
_CLASS_VECTORS = (
    "ArcFaceLoss", "CosFaceLoss", "LargeMarginSoftmaxLoss", "NormalizedSoftmaxLoss", "P2SGradLoss", "ProxyAnchorLoss",
    "ProxyNCALoss", "SoftTripleLoss", "SphereFaceLoss", "SubCenterArcFaceLoss",
)  # fmt: skip
_NO_DISTANCE = ("AngularLoss", "InstanceLoss", "ThresholdConsistentMarginLoss", "VICRegLoss")
_TRIPLETS = ("DynamicSoftMarginLoss", "HistogramLoss", "MarginLoss", "TripletMarginLoss")
_FACTS_OF_PML = {
    **dict.fromkeys(_ALL_POSITIVES, LossFacts(takes_all_positives=True)),
    **dict.fromkeys(_CLASS_VECTORS, LossFacts(compares="class vectors")),
    **dict.fromkeys(_NO_DISTANCE, LossFacts(reads_distance=False)),
    **dict.fromkeys(_TRIPLETS, LossFacts(makes_triplets=True)),
}
PML_FACTS = {getattr(losses, name): facts for name, facts in _FACTS_OF_PML.items() if hasattr(losses, name)}
"""Facts about pytorch-metric-learning's losses, of which 2.8 lacks some."""


def facts_of(kind: type) -> LossFacts:
    """Returns the facts of a loss class, or of its nearest base class."""
    known = (vars(base).get("facts", PML_FACTS.get(base)) for base in kind.__mro__)
    return next((facts for facts in known if facts), LossFacts())


def check_tuple_loss(loss: object, *, cannot: str, nested: str) -> None:
    """Raises a TypeError with the reason unless the loss compares pairs of samples by its `distance`.

    cannot: start of the message ("LoOp cannot wrap"); nested: advice for a loss that contains another one.
    """
    name = type(loss).__name__
    parts = list(loss.modules())[1:] if isinstance(loss, nn.Module) else []
    if any(isinstance(part, BaseMetricLossFunction) for part in parts):
        raise TypeError(f"{name} contains another loss; {nested}")
    if not isinstance(loss, BaseMetricLossFunction):
        raise TypeError(
            "loss must compare pairs by a `distance`: a loss of pml_ext.losses or pytorch-metric-learning, or your "
            "subclass of BaseMetricLossFunction whose compute_loss calls self.distance(embeddings, ref_emb); got "
            f"{class_name(loss)}"
        )
    if not facts_of(type(loss)).reads_distance:
        raise TypeError(f"{cannot} {name}: it does not compare pairs of samples by its distance")
    if any(parameter.ndim > 1 for parameter in loss.parameters()):
        raise TypeError(f"{cannot} {name}: it has class weights (proxies), so its negatives are not pairs of samples")
