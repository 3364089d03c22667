"""Whether torch.func or torch.jit looks on."""

import torch


def under_transform() -> bool:
    """Inside of torch.func.grad, vmap, jacrev, jvp and their like, or of torch.jit.trace.

    There a torch.autograd.Function must have a setup_context, which costs one that computes little 40 µs at every call,
    and torch.jit.trace takes none with inputs that are no tensors. So ours have none, and there they step aside for
    ordinary differentiable operations.
    """
    # Private, and in every release since 2.0: torch.autograd.Function itself asks it.
    if torch.compiler.is_compiling():
        return False
    return bool(torch._C._are_functorch_transforms_active()) or torch.jit.is_tracing()
