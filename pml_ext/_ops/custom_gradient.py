"""The frame of every function with its own gradient, rows of norm 1, and the modes of torch that they respect.

Losses normalise by `to_sphere`; kernels with their own gradient by `unit_and_inverse_norms` or `inverse_norms`. Metrics
need no gradient: `unit_rows` of numerics.py also keeps the squares of tiny and huge rows in range.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.jit._trace import is_tracing
from torch.nn.functional import threshold


def times_gradient(by_value: Tensor, saved: tuple[Tensor, ...], *inputs: Any) -> Tensor:
    """Returns the incoming gradient, a scalar or one number per row of x, times the saved gradient of x's shape."""
    (gradient,) = saved
    return gradient * (by_value if by_value.ndim == 0 else by_value.unsqueeze(1))


class CustomGradient:
    """A function of x whose value and gradient are computed by kernels.

    With create_graph=True the gradient is that of `plain`, which may be differentiated. torch.func uses `plain`, too;
    so does an input that requires a gradient, such as a learned weight.

    Args:
        kernel: (x, *inputs, needs_gradient) -> the value, and any tensors to save for `gradient` (or None).
        plain: (x, *inputs) -> the same value by differentiable operations.
        gradient: (gradient by the value, saved tensors, x, *inputs) -> gradient by x. The default is for a kernel that
            saves the gradient of a scalar, or of one number per row that depends on that row only.
    """

    def __init__(
        self,
        kernel: Callable[..., tuple[Tensor | None, ...]],
        plain: Callable[..., Tensor],
        gradient: Callable[..., Tensor] = times_gradient,
    ) -> None:
        self.kernel = kernel
        self.plain = plain
        self.gradient = gradient

    def __call__(self, x: Tensor, *inputs: Any) -> Tensor:
        """Returns the value; inputs as those of kernel and plain."""
        has_learned = any(isinstance(each, Tensor) and each.requires_grad for each in inputs)
        if (has_learned and torch.is_grad_enabled()) or under_transform():
            return self.plain(x, *inputs)
        value: Tensor = _Kernels.apply(x, self, inputs, torch.is_grad_enabled())
        return value


class _Kernels(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, function: CustomGradient, inputs: tuple[Any, ...], is_grad_on: bool) -> Any:
        value, *saved = function.kernel(x, *inputs, needs_gradient=is_grad_on and ctx.needs_input_grad[0])
        ctx.save_for_backward(x, *saved)
        ctx.function, ctx.inputs = function, inputs
        return value

    @staticmethod
    def backward(ctx: Any, by_value: Tensor) -> tuple[Tensor | None, ...]:
        x, *saved = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph=True
            value = ctx.function.plain(x, *ctx.inputs)
            (by_x,) = torch.autograd.grad(value, x, by_value, create_graph=True)
        else:
            by_x = ctx.function.gradient(by_value, saved, x, *ctx.inputs)
        return by_x, None, None, None


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


_SHORTEST = 1e-12  # F.normalize's default eps


def _norms(x: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return norms.clamp_min(_SHORTEST)


def inverse_norms(x: Tensor) -> Tensor:
    """Returns (N, 1) inverse norms 1/‖x‖, at most 1e12."""
    return _norms(x).reciprocal_()


def unit_and_inverse_norms(x: Tensor) -> tuple[Tensor, Tensor]:
    """Returns (N, D) normalised rows and their (N, 1) factors, for kernels with their own gradient."""
    inverse = inverse_norms(x)
    return x * inverse, inverse


def through_sphere_(grad: Tensor, unit: Tensor, factor: Tensor) -> Tensor:
    """Turn a gradient g by unit rows u into factor (g − u (g·u)), in place; factor: (N, 1)."""
    along = torch.linalg.vecdot(grad, unit).unsqueeze(1)
    return grad.addcmul_(unit, along, value=-1).mul_(factor)


def _unit_and_norms(x: Tensor, *, needs_gradient: bool) -> tuple[Tensor, Tensor, Tensor]:
    norms = _norms(x)
    unit = x / norms
    return unit, unit.view_as(unit), norms  # saving an output itself takes two operators more


def _gradient_through_norm(by_unit: Tensor, saved: tuple[Tensor, ...], x: Tensor) -> Tensor:
    """Returns (g − u (g·u)) / ‖x‖ for the gradient g by the unit vectors u, in two passes; 0 for a row of zeros."""
    unit, norms = saved
    along = (by_unit * unit).sum(-1, keepdim=True)
    return torch.addcmul(by_unit, unit, along, value=-1) / threshold(norms, _SHORTEST, torch.inf)


to_sphere = CustomGradient(_unit_and_norms, lambda x: x / _norms(x), _gradient_through_norm)
"""Rows of norm 1 (or zero): `torch.nn.functional.normalize` of (..., D) with a gradient three times as fast."""
