"""Full-precision arithmetic for measurements, whatever the training around them runs in."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """No gradients, no autocast and no TF32 inside: 16-bit products move a distance by more than a grid step."""
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.no_grad(), torch.autocast(device.type, enabled=False):
            yield
    finally:
        torch.set_float32_matmul_precision(precision)


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
