"""register(): our losses and miners under PML's own names, for code that finds them there; unregister() undoes it."""

from typing import Any

from pml_ext import _pml, losses, miners
from pml_ext.losses._facts import facts_of

_WRAPPERS = (_pml.CrossBatchMemory, _pml.SelfSupervisedLoss)
_replaced: dict[type, tuple[Any, Any]] = {}  # wrapper -> its list of names before and since


def register() -> list[str]:
    """Makes our losses and miners part of pytorch_metric_learning.losses and .miners.

    `getattr(losses, name)` and Hydra's `_target_: pytorch_metric_learning.losses.CITLoss` then find them, and
    CrossBatchMemory and SelfSupervisedLoss accept those that compare embeddings with embeddings.
    A second call changes nothing.

    Returns:
        the names that were added, none in a second call.
    Raises:
        ValueError: another object has one of the names; nothing is added then.

    >>> added = register()
    >>> _pml.losses.CITLoss is losses.CITLoss, register(), unregister() == added
    (True, [], True)
    """
    missing = []
    for module, name, ours in _all_of_ours():
        present = getattr(module, name, ours)
        if present is not ours:
            raise ValueError(
                f"{module.__name__}.{name} is already {_full_name(present)}; register() would put {_full_name(ours)} "
                "there. Remove or rename the other one"
            )
        if not hasattr(module, name):
            missing.append((module, name, ours))
    for module, name, ours in missing:
        setattr(module, name, ours)
    for wrapper in _WRAPPERS:
        if wrapper not in _replaced:
            _add_supported(wrapper)
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
    for wrapper, (before, since) in list(_replaced.items()):
        if vars(wrapper).get("supported_losses") is since:
            wrapper.supported_losses = before  # type: ignore[attr-defined]
        del _replaced[wrapper]
    return removed


def _all_of_ours() -> list[tuple[Any, str, Any]]:
    """PML's module, name and object of each of our losses and miners."""
    found = [(_pml.losses, name, getattr(losses, name)) for name in losses.OURS]
    return found + [(_pml.miners, name, getattr(miners, name)) for name in miners.OURS]


def _add_supported(wrapper: type) -> None:
    before = vars(wrapper)["supported_losses"]

    def supported_losses() -> list[str]:
        names = list(before.__func__())
        # Someone else's patch may keep this function after unregister(): it then adds nothing.
        ours = [getattr(losses, name) for name in losses.OURS if wrapper in _replaced]
        # To a classification loss a memory or a second view adds nothing.
        ours = [kind for kind in ours if facts_of(kind).compares == "samples"]
        known = [name for kind in ours for name in _with_subclasses(kind)]
        return names + [name for name in known if name not in names]

    since = staticmethod(supported_losses)
    _replaced[wrapper] = before, since
    wrapper.supported_losses = since  # type: ignore[attr-defined]


def _with_subclasses(kind: Any) -> list[str]:
    """Its name and those of its subclasses."""
    return [kind.__name__, *(name for derived in kind.__subclasses__() for name in _with_subclasses(derived))]


def _full_name(thing: Any) -> str:
    return f"{getattr(thing, '__module__', type(thing).__module__)}.{getattr(thing, '__qualname__', repr(thing))}"
