"""Whether torch.func looks on."""

import torch


def under_transform() -> bool:
    """Inside of torch.func.grad, vmap, jacrev, jvp and their like.

    There a torch.autograd.Function must have a setup_context, which costs one that computes little 40 µs at every call.
    So ours have none, and there they step aside for ordinary differentiable operations.
    """
    # Private, and in every release since 2.0: torch.autograd.Function itself asks it.
    return not torch.compiler.is_compiling() and bool(torch._C._are_functorch_transforms_active())
