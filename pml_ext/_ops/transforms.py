"""Whether torch.func or torch.jit looks on."""

import torch
from torch.jit._trace import is_tracing as _is_tracing


def under_transform() -> bool:
    """Inside of torch.func.grad, vmap, jacrev, jvp and their like, or of torch.jit.trace.

    There a torch.autograd.Function must have a setup_context, which costs 40 µs a call, and torch.jit.trace takes none
    whose inputs are not tensors. Functions that compute little have no setup_context: where this is true, ordinary
    differentiable operations run in their place.
    """
    # Private, and in every release since 2.0: torch.autograd.Function itself asks it.
    if torch.compiler.is_compiling():
        return False
    return bool(torch._C._are_functorch_transforms_active()) or is_traced()


def is_traced() -> bool:
    """Inside of torch.jit.trace."""
    traced: bool = _is_tracing()
    return traced
