"""The losses of this package, and every loss of pytorch-metric-learning under the same roof."""

import inspect

from pml_ext import _pml

_PML_LOSSES = {name: loss for name, loss in vars(_pml.losses).items() if inspect.isclass(loss)}
globals().update(_PML_LOSSES)

# Ours; each also registers into PML, see pml_ext.registration.
OURS: list[str] = []

__all__ = [*OURS, *sorted(_PML_LOSSES)]
