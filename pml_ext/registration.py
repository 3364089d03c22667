"""register(): our losses and miners under PML's names, for code that looks them up there; unregister() undoes it."""

import warnings
from typing import Any

from pml_ext import _pml, losses, miners


def register() -> list[str]:
    """Makes our losses and miners part of pytorch_metric_learning.losses and .miners.

    `getattr(losses, name)` and Hydra's `_target_: pytorch_metric_learning.losses.CITLoss` then find them.
    CrossBatchMemory and SelfSupervisedLoss take our losses without it. A second call changes nothing.

    A name that PML has, too, stays PML's, with a warning; ours is then in pml_ext.losses only.

    Returns:
        the names that were added, none in a second call.
    Raises:
        ValueError: an object that is not PML's has one of the names; nothing is added then.

    >>> added = register()
    >>> _pml.losses.CITLoss is losses.CITLoss, register(), unregister() == added
    (True, [], True)
    """
    missing = []
    for module, name, ours in _all_of_ours():
        present = getattr(module, name, ours)
        if present is not ours and str(getattr(present, "__module__", "")).startswith("pytorch_metric_learning."):
            warnings.warn(f"{module.__name__}.{name} stays PML's; ours is {ours!r}", stacklevel=2)
        elif present is not ours:
            raise ValueError(
                f"{module.__name__}.{name} is already {present!r}; register() would put {ours!r} "
                "there. Remove or rename the other one"
            )
        if not hasattr(module, name):
            missing.append((module, name, ours))
    for module, name, ours in missing:
        setattr(module, name, ours)
    return [name for _, name, _ in missing]


def unregister() -> list[str]:
    """Undoes register(); returns the names that were removed. What others put there meanwhile stays.

    >>> unregister()
    []
    """
    removed = []
    for module, name, ours in _all_of_ours():
        if getattr(module, name, None) is ours:
            delattr(module, name)
            removed.append(name)
    return removed


def _all_of_ours() -> list[tuple[Any, str, Any]]:
    """PML's module, name and object of each of our losses and miners."""
    ours = [(_pml.losses, name, getattr(losses, name)) for name in losses.OURS]
    return ours + [(_pml.miners, name, getattr(miners, name)) for name in miners.OURS]
