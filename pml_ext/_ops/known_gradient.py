"""A value whose gradients are known before the backward pass."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def with_gradients(
    value: Tensor, tensors: Sequence[Tensor], gradients: Sequence[Tensor], *, scale: Tensor | None = None
) -> Tensor:
    """Give a scalar known gradients by some tensors, which already include `scale`; no second derivatives."""
    known: Tensor = _WithGradients.apply(value.detach(), scale, gradients, *tensors)
    return known


class _WithGradients(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, scale: Tensor | None, gradients: Sequence[Tensor], *tensors: Tensor) -> Tensor:
        ctx.scale, ctx.gradients = scale, gradients
        return value.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, weight: Tensor) -> tuple[Tensor | None, ...]:
        factor = weight if ctx.scale is None else weight / ctx.scale
        return (None, None, None, *((gradient * factor).to(gradient.dtype) for gradient in ctx.gradients))
