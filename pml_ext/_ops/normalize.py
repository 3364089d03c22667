"""Normalisation for losses and metrics (networks and exports use torch's own layer).

`to_sphere` is for training, `unit_rows` for measurements (any length, no gradient); the rest is for kernels with their
own gradient.
"""

from typing import Any

import torch
from torch import Tensor

from pml_ext._ops.own_gradient import under_transform


def to_sphere(embeddings: Tensor) -> Tensor:
    """Returns (..., D) of norm 1 (or zero): `torch.nn.functional.normalize` with a gradient three times as fast.

    Differentiable any number of times.
    """
    unit: Tensor = embeddings / _norms(embeddings) if under_transform() else _ToSphere.apply(embeddings)
    return unit


def unit_rows(embeddings: Tensor) -> Tensor:
    """Returns (N, D) rows scaled to length 1 in float32 or better; zero rows stay zero (cosine 0 with everything)."""
    return normalise_(embeddings.detach().to(torch.promote_types(embeddings.dtype, torch.float32), copy=True))


def normalise_(x: Tensor) -> Tensor:
    """Apply `unit_rows` in place, for float32 or float64."""
    # Divide by the largest entry first, to keep the squares of tiny and huge rows in range. vector_norm of order
    # infinity takes ten times as long on the CPU.
    largest = torch.maximum(x.amax(dim=1, keepdim=True), x.amin(dim=1, keepdim=True).neg_())
    x /= largest.clamp_min_(torch.finfo(x.dtype).tiny)
    x /= torch.linalg.vector_norm(x, dim=1, keepdim=True).clamp_min_(torch.finfo(x.dtype).tiny)
    return x


def unit_and_inverse_norms(x: Tensor) -> tuple[Tensor, Tensor]:
    """Returns (N, D) normalised rows and their (N, 1) factors, for kernels with their own gradient."""
    inverse = inverse_norms(x)
    return x * inverse, inverse


def inverse_norms(x: Tensor) -> Tensor:
    """Returns (N, 1) inverse norms 1/‖x‖, at most 1e12."""
    return _norms(x).reciprocal_()


def through_sphere_(grad: Tensor, unit: Tensor, factor: Tensor) -> Tensor:
    """Turn a gradient g by unit rows u into factor (g − u (g·u)), in place; factor: (N, 1)."""
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
    return norms.clamp_min(1e-12)  # F.normalize's default eps
