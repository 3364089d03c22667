"""Facts about each loss, and `loss_by_name` for a loss that wraps another one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from torch import Tensor, nn

from pml_ext._names import class_name, closest, hint
from pml_ext._pml import BaseMetricLossFunction

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


class Part(NamedTuple):
    """The anchors of every rank: complete classes, because the embeddings of all ranks are sorted by class."""

    of_ranks: list[slice]
    rank: int

    @property
    def own(self) -> slice:
        return self.of_ranks[self.rank]

    @property
    def size(self) -> int:
        return int(self.own.stop - self.own.start)


Sums = tuple[Tensor, Tensor]
"""(T,) sums of the loss's T terms over a rank's anchors, with a graph, and (T,) the number of summands in each."""


@dataclass(frozen=True, kw_only=True)
class LossFacts:
    """The class attribute `facts` of a loss. The defaults fit a loss over the pairs of a batch.

    A subclass inherits all facts except `sums`: it may compute something else, so it must set its own `sums`.

    compares: what a sample is compared with: other "samples"; learned or fixed "class vectors" (the constructor then
        takes num_classes and embedding_size); or "class scores", for the runner's identity losses.
    takes_all_positives: why an indices_tuple does not select the positives, so the runner passes no miner; or empty.
    reads_no_pairs: why LoOp cannot replace the pair distances; empty if it can.
    makes_triplets: the loss converts an indices_tuple to triplets (PML's conversion from pairs needs B³ memory).
    sums: (loss, embeddings and labels of all ranks, the anchors) -> one rank's share of the loss; every rank calls it.
        None: the anchors depend on each other, so ranks cannot divide the loss.
    term_of_each_anchor: an anchor without a pair counts as a term of 0.
    undivided: why ranks cannot divide a loss with these settings; empty if they can.
    arguments: (a YAML node's options, keys in lower case; build) -> arguments of the constructor.
        build(name, **arguments) builds another loss of the config.
    partial_fc: (these options) -> arguments of the `PartialFC` that shards its classes over ranks. Raises ValueError
        if these options prevent it. None: the loss cannot be sharded.
    """

    compares: Literal["samples", "class vectors", "class scores"] = "samples"
    takes_all_positives: str = ""
    reads_no_pairs: str = ""
    makes_triplets: bool = False
    sums: Callable[[Any, Tensor, Tensor, Part], Sums] | None = None
    term_of_each_anchor: bool = False
    undivided: Callable[[Any], str] = lambda loss: ""
    arguments: Callable[[dict[str, Any], Callable[..., Any]], dict[str, Any]] = lambda options, build: options
    partial_fc: Callable[[dict[str, Any]], dict[str, Any]] | None = None

    @property
    def takes_miner(self) -> bool:
        return self.compares == "samples" and not self.takes_all_positives


def needs(**settings: Any) -> Callable[[Any], str]:
    """For `undivided`: ranks divide a loss only if its attributes have these values."""

    def undivided(loss: Any) -> str:
        for name, needed in settings.items():
            if getattr(loss, name) != needed:
                return f"{name} must be {needed!r}; it is {getattr(loss, name)!r}"
        return ""

    return undivided


PML_FACTS: dict[type, LossFacts] = {}
"""Facts about pytorch-metric-learning's losses; `_shares` fills it."""


def facts_of(kind: type) -> LossFacts:
    """Returns the facts of a loss class: its own, or those of its nearest base class."""
    return next((facts for base in kind.__mro__ if (facts := own_facts(base))), LossFacts())


def own_facts(kind: type) -> LossFacts | None:
    """Returns the facts of exactly this class, without those of its base classes."""
    facts: LossFacts | None = vars(kind).get("facts", PML_FACTS.get(kind))
    return facts


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
