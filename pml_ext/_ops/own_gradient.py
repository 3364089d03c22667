"""What kernels with a gradient of their own share: torch.func reaches them, and no second derivative is wrong."""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from pml_ext._ops.transforms import is_traced, under_transform


class OwnGradient(torch.autograd.Function):
    """A torch.autograd.Function with `setup_context`, written for one batch; to be called by `call`, with all inputs.

    Under torch.func.vmap one batch is computed after the other. Outside of torch.func and torch.compile it runs in the
    older form, without setup_context: with one, torch inspects the signature at every call, which takes 50 µs.
    """

    @classmethod
    def call(cls, *inputs: Any) -> tuple[Tensor, ...]:
        """The outputs of `forward`."""
        if is_traced():  # which cannot call it; a gradient of the trace is an error, not a wrong one
            traced: tuple[Tensor, ...] = cls.forward(*inputs)
            return traced
        newer = torch.compiler.is_compiling() or under_transform()
        outputs: tuple[Tensor, ...] = (cls if newer else _older_form(cls)).apply(*inputs)
        return outputs

    @classmethod
    def vmap(cls, info: Any, in_dims: Any, *inputs: Any) -> tuple[Any, Any]:
        """The outputs of every batch, stacked."""
        calls = [
            [x if dim is None else x.select(dim, i) for x, dim in zip(inputs, in_dims, strict=True)]
            for i in range(info.batch_size)
        ]
        outputs = tuple(torch.stack(parts) for parts in zip(*(cls.call(*call) for call in calls), strict=True))
        return outputs, tuple(0 for _ in outputs)


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
    return _FirstDerivative.call(compute, name, *inputs) if torch.is_grad_enabled() else compute(*inputs)


@cache
def _older_form(kind: Any) -> Any:
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, ...]:
        outputs: tuple[Tensor, ...] = kind.forward(*inputs)
        kind.setup_context(ctx, inputs, outputs)
        return outputs

    members = {"forward": staticmethod(forward), "setup_context": torch.autograd.Function.setup_context}
    return type(kind)(kind.__name__, (kind,), members)


class _FirstDerivative(OwnGradient):
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
