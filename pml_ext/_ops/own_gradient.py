"""Base for kernels with their own gradient: works under torch.func and refuses second derivatives."""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from pml_ext._ops.transforms import is_traced, under_transform


class OwnGradient(torch.autograd.Function):
    """A torch.autograd.Function with `setup_context`, written for one batch. Call it by `call` with all inputs.

    torch.func.vmap computes one batch after another. Outside torch.func and torch.compile the older form without
    setup_context runs, because torch inspects the signature at every call otherwise, which takes 50 µs.
    """

    @classmethod
    def call(cls, *inputs: Any) -> tuple[Tensor, ...]:
        if is_traced():  # a trace cannot call it; asking the trace for a gradient is an error
            traced: tuple[Tensor, ...] = cls.forward(*inputs)
            return traced
        newer = torch.compiler.is_compiling() or under_transform()
        outputs: tuple[Tensor, ...] = (cls if newer else _older_form(cls)).apply(*inputs)
        return outputs

    @classmethod
    def vmap(cls, info: Any, in_dims: Any, *inputs: Any) -> tuple[Any, Any]:
        calls = [
            [x if dim is None else x.select(dim, i) for x, dim in zip(inputs, in_dims, strict=True)]
            for i in range(info.batch_size)
        ]
        outputs = tuple(torch.stack(parts) for parts in zip(*(cls.call(*call) for call in calls), strict=True))
        return outputs, tuple(0 for _ in outputs)


def first_derivative(
    compute: Callable[..., tuple[Tensor, ...]], name: str, *inputs: Tensor | None
) -> tuple[Tensor, ...]:
    """compute(*inputs) for `backward` of a torch.autograd.Function; differentiating it again is a RuntimeError.

    create_graph=True alone (torch.func.grad always sets it) is fine. `once_differentiable` would silently return 0 if
    the incoming gradient is a constant. inputs: the incoming gradient and everything else the gradients depend on.
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
            f"{ctx.name} has no second derivatives: its gradient is a closed form that autograd cannot differentiate. "
            "Use another loss for gradient penalties and Hessians"
        )
