"""The loss inside another one: an object, a name, or a name with arguments as in configuration files."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from pml_ext._names import closest, hint

KNOWN: dict[str, type[nn.Module]] = {}
"""Every loss of this package and of PML; pml_ext.losses fills it."""

_PACKAGES = ("", "pml_ext.losses", "pytorch_metric_learning.losses")


def loss_by_name(loss: nn.Module | str | Mapping[str, Any]) -> Any:
    """The object itself, whatever its type, or a new loss of pml_ext.losses from its name or jsonargparse's mapping.

    The mapping is {"class_path": "TripletMarginLoss", "init_args": {"margin": 0.1}}. The name may start with
    "pml_ext.losses." or "pytorch_metric_learning.losses.". Nothing else is imported.
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
