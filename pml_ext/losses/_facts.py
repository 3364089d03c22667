"""Facts about each loss, and `loss_by_name` for a loss that wraps another one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from pml_ext._checks import check_in_range, check_switch
from pml_ext._names import class_name, closest, hint
from pml_ext._pml import BaseMetricLossFunction, DotProductSimilarity, losses, regularizers

KNOWN: dict[str, type[nn.Module]] = {}
"""Every loss of this package and of PML, by name; pml_ext.losses fills it."""

_PACKAGES = ("", "pml_ext.losses", "pytorch_metric_learning.losses")


def loss_by_name(loss: nn.Module | str | Mapping[str, Any]) -> Any:
    """Returns a new loss of pml_ext.losses from its name or jsonargparse's mapping, and any other object unchanged.

    The mapping is {"class_path": "TripletMarginLoss", "init_args": {"margin": 0.1}}. The name may start with
    "pml_ext.losses." or "pytorch_metric_learning.losses."; other packages are not imported.
    """
    if isinstance(loss, str):
        loss = {"class_path": loss}
    if not isinstance(loss, Mapping):
        return loss
    path, arguments = loss.get("class_path"), loss.get("init_args", {})
    fits = isinstance(path, str) and isinstance(arguments, Mapping) and set(loss) <= {"class_path", "init_args"}
    if not fits:
        raise TypeError(
            "loss must be a loss, its name, or a mapping {'class_path': its name, 'init_args': {argument: value}}; "
            f"got {dict(loss)!r}"
        )
    package, _, name = str(path).rpartition(".")
    if package not in _PACKAGES:
        raise ValueError(f"class_path must be a loss of pml_ext.losses, such as 'TripletMarginLoss'; got {path!r}")
    if name not in KNOWN:
        near = hint(name, KNOWN) if closest(name, KNOWN) else "; dir(pml_ext.losses) lists the known ones"
        raise ValueError(f"unknown loss {name!r}{near}")
    return KNOWN[name](**arguments)


@dataclass(frozen=True, kw_only=True)
class LossFacts:
    """The class attribute `facts` of a loss, inherited by subclasses. The defaults fit a loss over a batch's pairs.

    compares: what a sample is compared with: other "samples"; learned or fixed "class vectors" (the constructor then
        takes num_classes and embedding_size); or "class scores", for the runner's identity losses.
    takes_all_positives: why an indices_tuple does not select the positives, so the runner passes no miner; or empty.
    reads_no_pairs: why LoOp cannot replace the pair distances; empty if it can.
    makes_triplets: the loss converts an indices_tuple to triplets (PML's conversion from pairs needs B³ memory).
    arguments: (a YAML node's options, keys in lower case; build) -> arguments of the constructor.
        build(name, **arguments) builds another loss of the config.
    partial_fc: (these options) -> arguments of the `PartialFC` that shards its classes over ranks. Raises ValueError
        if these options prevent it. None: the loss cannot be sharded.
    """

    compares: Literal["samples", "class vectors", "class scores"] = "samples"
    takes_all_positives: str = ""
    reads_no_pairs: str = ""
    makes_triplets: bool = False
    arguments: Callable[[dict[str, Any], Callable[..., Any]], dict[str, Any]] = lambda options, build: options
    partial_fc: Callable[[dict[str, Any]], dict[str, Any]] | None = None

    @property
    def takes_miner(self) -> bool:
        return self.compares == "samples" and not self.takes_all_positives


def _dot_products(options: dict[str, Any], *_: Any) -> dict[str, Any]:
    check_switch(options["normalize"], "normalize")
    check_in_range(options["reg_weight"], 0, float("inf"), "reg_weight")
    return {
        "distance": DotProductSimilarity(normalize_embeddings=options["normalize"]),
        "embedding_regularizer": regularizers.LpRegularizer(power=2),
        "embedding_reg_weight": options["reg_weight"],
    }


_CLASS_VECTORS = LossFacts(compares="class vectors")
_TRIPLETS = LossFacts(makes_triplets=True)

_BY_NAME = {
    "AngularLoss": LossFacts(reads_no_pairs="it reads the embeddings themselves, not pair distances"),
    "ArcFaceLoss": _CLASS_VECTORS,
    "CosFaceLoss": _CLASS_VECTORS,
    "DynamicSoftMarginLoss": _TRIPLETS,
    "FastAPLoss": LossFacts(takes_all_positives="it ranks all positives of a sample; a tuple only weights the samples"),
    "HistogramLoss": _TRIPLETS,
    "InstanceLoss": LossFacts(reads_no_pairs="it reads column c of the matrix as class c, so it has no negative pairs"),
    "LargeMarginSoftmaxLoss": _CLASS_VECTORS,
    "MarginLoss": _TRIPLETS,
    "NCALoss": LossFacts(takes_all_positives="it takes all positives of a sample; a tuple only weights the samples"),
    "NormalizedSoftmaxLoss": _CLASS_VECTORS,
    "NPairsLoss": LossFacts(arguments=_dot_products),
    "P2SGradLoss": _CLASS_VECTORS,
    "PNPLoss": LossFacts(takes_all_positives="it ranks all positives of a sample and takes no tuples"),
    "ProxyAnchorLoss": _CLASS_VECTORS,
    "ProxyNCALoss": _CLASS_VECTORS,
    "RankedListLoss": LossFacts(takes_all_positives="it takes all positives of a sample and no tuples"),
    "SmoothAPLoss": LossFacts(
        takes_all_positives="it ranks all positives of a sample; a tuple only weights the samples"
    ),
    "SoftTripleLoss": _CLASS_VECTORS,
    "SphereFaceLoss": _CLASS_VECTORS,
    "SubCenterArcFaceLoss": _CLASS_VECTORS,
    "ThresholdConsistentMarginLoss": LossFacts(
        reads_no_pairs="it computes its cosines itself; TCMLoss is the same loss and works"
    ),
    "TripletMarginLoss": _TRIPLETS,
    "VICRegLoss": LossFacts(reads_no_pairs="it has no labels and no pair distances"),
}
PML_FACTS = {getattr(losses, name): facts for name, facts in _BY_NAME.items() if hasattr(losses, name)}
"""Facts about pytorch-metric-learning's losses, of which 2.8 lacks some."""


def facts_of(kind: type) -> LossFacts:
    """Returns the facts of a loss class: its own, or those of its nearest base class."""
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
            "loss must compare pairs by a `distance`: a loss of pml_ext.losses or pytorch-metric-learning, or your own "
            "subclass of BaseMetricLossFunction whose compute_loss calls self.distance(embeddings, ref_emb); got "
            f"{class_name(loss)}"
        )
    if why := facts_of(type(loss)).reads_no_pairs:
        raise TypeError(f"{cannot} {name}: {why}")
    if any(parameter.ndim > 1 for parameter in loss.parameters()):
        raise TypeError(f"{cannot} {name}: it has class weights (proxies), so its negatives are not pairs of samples")
