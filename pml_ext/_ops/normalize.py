"""Rows of length 1 for measurements, without a gradient. `to_sphere` in custom_gradient.py is for training."""

import torch
from torch import Tensor


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
