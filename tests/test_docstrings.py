"""Everything public has an example in its docstring, which pytest runs (--doctest-modules)."""

import inspect
from types import ModuleType

from pml_ext import functional, inspection, large_batch, losses, metrics, miners, thresholds

OURS: dict[ModuleType, list[str]] = {
    functional: functional.__all__,
    inspection: ["gradient_shares", "pair_weights", "similarity_dependence"],
    large_batch: ["step"],
    losses: [*losses.OURS, *losses.CORRECTED, *losses.PARTS],
    metrics: metrics.__all__,
    miners: miners.OURS,
    thresholds: thresholds.__all__,
}


def public():
    for module, names in OURS.items():
        for name in names:
            thing = getattr(module, name)
            if inspect.isfunction(thing) or inspect.isclass(thing):
                yield f"{module.__name__}.{name}", thing


def test_everything_public_has_an_example():
    names = dict(public())
    assert len(names) > 70
    assert [name for name, thing in names.items() if ">>> " not in (inspect.getdoc(thing) or "")] == []
