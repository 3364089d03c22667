"""What kernels with a gradient of their own share: no wrong second derivative, and batches of torch.func.vmap."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def first_derivative(
    compute: Callable[..., tuple[Tensor, ...]], name: str, *inputs: Tensor | None
) -> tuple[Tensor, ...]:
    """What `backward` of a torch.autograd.Function returns: compute(*inputs), whose own derivative is refused.

    The gradient may be taken with create_graph=True (torch.func.grad always does that); a backward pass through it
    raises a RuntimeError. `once_differentiable` keeps silent where the gradient from above is a constant, and the
    second derivative then is 0.

    Args:
        compute: from the inputs to the gradients.
        name: what has no second derivatives, for the message.
        inputs: the gradient from above and what ctx.saved_tensors holds: all that the gradients depend on.
    """
    if not torch.is_grad_enabled():
        return compute(*inputs)
    gradients: tuple[Tensor, ...] = _FirstDerivative.apply(compute, name, *inputs)
    return gradients


def each_of(function: Callable[..., tuple[Tensor, ...]], info: Any, in_dims: Any, *inputs: Any) -> tuple[Any, Any]:
    """The `vmap` of a torch.autograd.Function that is written for one batch: one call after the other.

    Args:
        function: its `apply`.
        info, in_dims, inputs: what torch hands to `vmap`.
    """
    calls = [
        [x if dim is None else x.select(dim, i) for x, dim in zip(inputs, in_dims, strict=True)]
        for i in range(info.batch_size)
    ]
    outputs = tuple(torch.stack(parts) for parts in zip(*(function(*call) for call in calls), strict=True))
    return outputs, tuple(0 for _ in outputs)


class _FirstDerivative(torch.autograd.Function):
    @staticmethod
    def forward(compute: Callable[..., tuple[Tensor, ...]], name: str, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        return compute(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.name = inputs[1]

    @staticmethod
    def backward(ctx: Any, *grad: Tensor) -> Any:
        raise RuntimeError(
            f"{ctx.name} has no second derivatives: its gradient comes from a closed form that autograd cannot see "
            "through. Take a gradient penalty or a Hessian of another loss"
        )

    @staticmethod
    def vmap(info: Any, in_dims: Any, *inputs: Any) -> tuple[Any, Any]:
        return each_of(_FirstDerivative.apply, info, in_dims, *inputs)
