"""The frame of functions with their own gradient, rows of norm 1, and the modes of torch that they respect."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.jit._trace import is_tracing


def under_transform() -> bool:
    """Returns whether torch.func.grad, vmap, jacrev, jvp etc. or torch.jit.trace is active.

    They need setup_context (40 µs per call), tracing needs tensor inputs; small functions use ordinary operations here.
    """
    # Private, but in every release since 2.0: torch.autograd.Function itself uses it.
    return bool(torch._C._are_functorch_transforms_active()) or bool(is_tracing())


def no_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Turn autocast off, but only if it is on: the context takes a tenth of a small loss's time."""
    kind = device.type
    is_on = kind != "meta" and torch.is_autocast_enabled(kind)
    return torch.autocast(kind, enabled=False) if is_on else nullcontext()


def to_sphere(embeddings: Tensor) -> Tensor:
    """Returns (..., D) of norm 1 (or zero): the value of `torch.nn.functional.normalize`, in 0.7 times the time."""
    return embeddings / _norms(embeddings).expand_as(embeddings)  # a quotient of one shape has the faster gradient


def unit_and_inverse_norms(x: Tensor) -> tuple[Tensor, Tensor]:
    """Returns (N, D) normalised rows and their (N, 1) factors, for kernels with their own gradient."""
    inverse = torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp_min_(1e-12).reciprocal_()
    return x * inverse, inverse


def inverse_norms(x: Tensor) -> Tensor:
    """Returns (N, 1) inverse norms 1/‖x‖, at most 1e12."""
    return _norms(x).reciprocal_()


def _norms(x: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return norms.clamp_min(1e-12)  # F.normalize's default eps


def through_sphere_(grad: Tensor, unit: Tensor, factor: Tensor) -> Tensor:
    """Turn a gradient g by unit rows u into factor (g − u (g·u)), in place; factor: (N, 1)."""
    along = torch.linalg.vecdot(grad, unit).unsqueeze(1)
    return grad.addcmul_(unit, along, value=-1).mul_(factor)


class ValueAndGradient:
    """A differentiable function of x from a kernel that computes value and gradient together.

    Backward multiplies the kernel's gradient by the incoming one. With create_graph=True it is the gradient of `plain`,
    which may be differentiated; torch.func uses `plain`, too.

    Args:
        kernel: (x, *inputs, needs_gradient) -> the value, a scalar or one number per row of x that depends on that row
            only, and its gradient, of x's shape (None if needs_gradient is False).
        plain: (x, *inputs) -> the same value by differentiable operations.
    """

    def __init__(self, kernel: Callable[..., tuple[Tensor, Tensor | None]], plain: Callable[..., Tensor]) -> None:
        self.kernel = kernel
        self.plain = plain

    def __call__(self, x: Tensor, *inputs: Any) -> Tensor:
        """Returns the value; inputs as those of kernel and plain."""
        if under_transform():
            return self.plain(x, *inputs)
        value: Tensor = _KernelGradient.apply(x, self, inputs, torch.is_grad_enabled())
        return value


class _KernelGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, function: ValueAndGradient, inputs: tuple[Any, ...], is_grad_on: bool) -> Tensor:
        value, gradient = function.kernel(x, *inputs, needs_gradient=is_grad_on and ctx.needs_input_grad[0])
        ctx.save_for_backward(x, gradient)
        ctx.function, ctx.inputs = function, inputs
        return value

    @staticmethod
    def backward(ctx: Any, by_value: Tensor) -> tuple[Tensor | None, ...]:
        x, gradient = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph=True
            value = ctx.function.plain(x, *ctx.inputs)
            (by_x,) = torch.autograd.grad(value, x, by_value, create_graph=True)
        else:
            by_x = gradient * (by_value if by_value.ndim == 0 else by_value.unsqueeze(1))
        return by_x, None, None, None
