"""Detects torch.func transforms and torch.jit.trace."""

import torch
from torch.jit._trace import is_tracing as _is_tracing


def under_transform() -> bool:
    """Whether torch.func.grad, vmap, jacrev, jvp etc. or torch.jit.trace is active.

    They need setup_context (40 µs per call), tracing needs tensor inputs; small functions use ordinary operations here.
    """
    # Private, but in every release since 2.0: torch.autograd.Function itself uses it.
    if torch.compiler.is_compiling():
        return False
    return bool(torch._C._are_functorch_transforms_active()) or is_traced()


def is_traced() -> bool:
    """Whether torch.jit.trace is active."""
    traced: bool = _is_tracing()
    return traced
