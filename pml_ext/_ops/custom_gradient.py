"""Operators with their own gradient: rows of norm 1, losses with a kernel; and the modes of torch that they respect."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.jit._trace import is_tracing as _is_tracing


def under_transform() -> bool:
    """Returns whether torch.func.grad, vmap, jacrev, jvp etc. or torch.jit.trace is active.

    They need setup_context (40 µs per call), tracing needs tensor inputs; small functions use ordinary operations here.
    """
    # Private, but in every release since 2.0: torch.autograd.Function itself uses it.
    return bool(torch._C._are_functorch_transforms_active()) or is_traced()


def is_traced() -> bool:
    """Returns whether torch.jit.trace is active."""
    traced: bool = _is_tracing()
    return traced


def no_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Turn autocast off, but only if it is on: the context takes a tenth of a small loss's time."""
    kind = device.type
    is_on = kind != "meta" and torch.is_autocast_enabled(kind)
    return torch.autocast(kind, enabled=False) if is_on else nullcontext()


def to_sphere(embeddings: Tensor) -> Tensor:
    """Returns (..., D) of norm 1 (or zero): `torch.nn.functional.normalize` with a gradient three times as fast.

    Differentiable any number of times.
    """
    unit: Tensor = embeddings / _norms(embeddings) if under_transform() else _ToSphere.apply(embeddings)
    return unit


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


class _ToSphere(torch.autograd.Function):
    """∂L/∂x = (g − u (g·u)) / ‖x‖ for g = ∂L/∂u, in two passes over the embeddings."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        norms = _norms(x)
        unit = x / norms
        ctx.save_for_backward(x, unit, norms)
        return unit

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        x, unit, norms = ctx.saved_tensors
        if torch.is_grad_enabled():  # the gradient may be differentiated
            norms = _norms(x)
        along = (grad * unit).sum(-1, keepdim=True)
        by_x: Tensor = torch.addcmul(grad, unit, along, value=-1) / norms
        return by_x


class CustomGradient(torch.autograd.Function):
    """A torch.autograd.Function with `setup_context`, written for one batch. Call it by `call` with all inputs.

    torch.func.vmap computes one batch after another.
    """

    @classmethod
    def call(cls, *inputs: Any) -> tuple[Tensor, ...]:
        if is_traced():  # tracing cannot call it; a gradient of the trace is an error
            traced: tuple[Tensor, ...] = cls.forward(*inputs)
            return traced
        outputs: tuple[Tensor, ...] = cls.apply(*inputs)
        return outputs

    @classmethod
    def vmap(cls, info: Any, in_dims: Any, *inputs: Any) -> tuple[Any, Any]:
        results = []
        for i in range(info.batch_size):
            of_sample = [x if dim is None else x.select(dim, i) for x, dim in zip(inputs, in_dims, strict=True)]
            results.append(cls.call(*of_sample))
        outputs = tuple(torch.stack(parts) for parts in zip(*results, strict=True))
        return outputs, tuple(0 for _ in outputs)


def first_derivative(
    compute: Callable[..., tuple[Tensor, ...]], name: str, *inputs: Tensor | None
) -> tuple[Tensor, ...]:
    """Run compute(*inputs) in `backward` of a torch.autograd.Function; differentiating it again is a RuntimeError.

    create_graph=True alone (torch.func.grad always sets it) is fine. `once_differentiable` would silently return 0 if
    the incoming gradient is a constant. inputs: the incoming gradient and everything else the gradients depend on.
    """
    return _FirstDerivative.call(compute, name, *inputs) if torch.is_grad_enabled() else compute(*inputs)


class _FirstDerivative(CustomGradient):
    @staticmethod
    def forward(compute: Callable[..., tuple[Tensor, ...]], name: str, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        return compute(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.name = inputs[1]

    @staticmethod
    def backward(ctx: Any, *grad: Tensor) -> Any:
        raise RuntimeError(
            f"{ctx.name} has no second derivatives: its gradient is a closed form that autograd cannot differentiate. "
            "Use another loss for gradient penalties and Hessians"
        )


class ValueAndGradient:
    """A differentiable function of embeddings from a kernel that computes value and gradient together.

    Higher derivatives and torch.func use `plain`.

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
        value: Tensor = _Differentiable.apply(x, self, inputs, torch.is_grad_enabled())[0]
        return value


class _Differentiable(torch.autograd.Function):
    """Returns value and gradient; differentiating the gradient uses `plain`."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, frame: ValueAndGradient, inputs: tuple[Any, ...], is_grad_on: bool
    ) -> tuple[Tensor, Tensor | None]:
        value, gradient = frame.kernel(x, *inputs, needs_gradient=is_grad_on and ctx.needs_input_grad[0])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, gradient)
        ctx.frame, ctx.inputs = frame, inputs
        ctx.may_write, ctx.is_written = True, False
        return value, gradient

    @staticmethod
    def backward(ctx: Any, by_value: Tensor | None, by_gradient: Tensor | None) -> tuple[Tensor | None, ...]:
        x, gradient = ctx.saved_tensors
        result = None
        if by_value is not None:
            factor = by_value if by_value.ndim == 0 else by_value.unsqueeze(1)
            if torch.is_grad_enabled():
                ctx.may_write = False  # the result may be differentiated
                result = factor * (_plain_gradient(ctx, x) if ctx.is_written else gradient)
            elif ctx.may_write and not ctx.is_written:
                # In place: a new tensor of this size takes 17 % of the one-hot loss's time.
                ctx.is_written = True
                result = gradient.data.mul_(factor)
            else:  # a second backward pass
                if ctx.is_written:
                    gradient = ctx.frame.kernel(x, *ctx.inputs, needs_gradient=True)[1]
                result = factor * gradient
        if by_gradient is not None:
            second = _second_derivative(ctx, x, by_gradient)
            result = second if result is None else result + second
        return result, None, None, None


def _plain_gradient(ctx: Any, x: Tensor) -> Tensor:
    with torch.enable_grad():
        gradient: Tensor
        (gradient,) = torch.autograd.grad(ctx.frame.plain(x, *ctx.inputs).sum(), x, create_graph=True)
    return gradient


def _second_derivative(ctx: Any, x: Tensor, along: Tensor) -> Tensor:
    """Returns the derivative by x of the gradient's product with `along`; differentiable if grad mode is on."""
    again = torch.is_grad_enabled()
    gradient = _plain_gradient(ctx, x)
    with torch.enable_grad():
        result: Tensor
        (result,) = torch.autograd.grad(gradient, x, along, create_graph=again)
    return result
