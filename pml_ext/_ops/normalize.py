"""Rows of length 1: where losses and metrics normalise them (networks and exports use torch's own layer).

`to_sphere` for training (it has a gradient), `unit_rows` for measurements (rows of any length, no gradient), and the
parts of both for kernels that compute their own gradient.
"""

from typing import Any

import torch
from torch import Tensor

from pml_ext._ops.transforms import under_transform


def to_sphere(embeddings: Tensor) -> Tensor:
    """Each row divided by its norm: `torch.nn.functional.normalize` with a gradient that costs a third of its time.

    Args:
        embeddings: (..., D), float32 or float64.
    Returns:
        (..., D) of norm 1; a row of zeros stays one. Differentiable as often as wanted.
    """
    unit: Tensor = embeddings / _norms(embeddings) if under_transform() else _ToSphere.apply(embeddings)
    return unit


def unit_rows(embeddings: Tensor) -> Tensor:
    """(N, D) rows scaled to length 1 in float32 or better; a zero row stays zero (cosine 0 with everything)."""
    return normalise_(embeddings.detach().to(torch.promote_types(embeddings.dtype, torch.float32), copy=True))


def normalise_(x: Tensor) -> Tensor:
    """`unit_rows` in the place of a float32 or float64 tensor."""
    # By the largest entry first, so that the squares of tiny and of huge rows stay in range.
    # vector_norm of order infinity takes ten times as long on a processor.
    largest = torch.maximum(x.amax(dim=1, keepdim=True), x.amin(dim=1, keepdim=True).neg_())
    x /= largest.clamp_min_(torch.finfo(x.dtype).tiny)
    x /= torch.linalg.vector_norm(x, dim=1, keepdim=True).clamp_min_(torch.finfo(x.dtype).tiny)
    return x


def unit_and_inverse_norms(x: Tensor) -> tuple[Tensor, Tensor]:
    """The rows on the sphere (N, D) and the factors (N, 1) that put them there, for kernels with their own gradient."""
    inverse = inverse_norms(x)
    return x * inverse, inverse


def inverse_norms(x: Tensor) -> Tensor:
    """(N, 1): 1/‖x‖ of each row, at most 1e12."""
    return _norms(x).reciprocal_()


def through_sphere_(grad: Tensor, unit: Tensor, factor: Tensor) -> Tensor:
    """A gradient by `unit` becomes, in place, factor (N, 1) times its part along the sphere: factor (g − u (g·u))."""
    along = torch.linalg.vecdot(grad, unit).unsqueeze(1)
    return grad.addcmul_(unit, along, value=-1).mul_(factor)


class _ToSphere(torch.autograd.Function):
    """∂L/∂x = (g − u (g·u)) / ‖x‖ for g = ∂L/∂u, in two passes over the embeddings."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        unit = x / _norms(x)
        ctx.save_for_backward(x, unit)
        return unit

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        x, unit = ctx.saved_tensors
        along = torch.linalg.vecdot(grad, unit).unsqueeze(-1)
        return torch.addcmul(grad, unit, along, value=-1) / _norms(x)


def _norms(x: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return norms.clamp_min(1e-12)  # the smallest of F.normalize
