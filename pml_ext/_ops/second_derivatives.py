"""For kernels that compute their own gradient: its derivative is refused where one asks for it, never wrong."""

from typing import Any

import torch
from torch import Tensor


def refuse_second_derivatives(gradient: Tensor, of: str, *inputs: Tensor) -> Tensor:
    """The gradient itself; a backward pass through it raises a RuntimeError.

    Call it on what `backward` of a torch.autograd.Function returns. The gradient may be taken with create_graph=True
    (torch.func.grad always does that); only its own derivative is missing. `once_differentiable` keeps silent where
    the gradient from above is a constant, and leaves zeros.

    Args:
        gradient: what was computed.
        of: the name that the message begins with.
        inputs: all that the gradient depends on, as `ctx.saved_tensors` gives it, and the gradient from above.
    """
    if not torch.is_grad_enabled():
        return gradient
    checked: Tensor = _Refuse.apply(gradient.detach(), of, *inputs)
    return checked


class _Refuse(torch.autograd.Function):
    @staticmethod
    def forward(gradient: Tensor, of: str, *inputs: Tensor) -> Tensor:
        return gradient.view_as(gradient)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.of = inputs[1]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        raise RuntimeError(
            f"{ctx.of} has no second derivatives: its gradient comes from a closed form that autograd cannot see "
            "through. Take a gradient penalty or a Hessian of another loss"
        )

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], gradient: Tensor, of: str, *inputs: Tensor) -> tuple[Tensor, Any]:
        return _Refuse.apply(gradient, of, *inputs), in_dims[0]
