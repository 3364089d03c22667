"""The discriminative loss against one-hot centroids, from embeddings of any length in few passes over cached rows."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

_BLOCK = 2**18  # entries of the rows at work: they stay in a processor's cache
_SHORTEST = 1e-12  # norm, as in torch.nn.functional.normalize


def one_hot_discriminative_loss(embeddings: Tensor, labels: Tensor) -> Tensor:
    """`discriminative_loss(normalize(embeddings), labels, None)`, in less time than a cross-entropy takes.

    ‖u − e_m‖ = sqrt(2 − 2 u_m) for unit vectors u. The normalisation is part of the gradient. Between value and
    gradient one (B, C) matrix is kept beside the embeddings, and the gradient takes its place. No double backward.

    Args:
        embeddings: (B, C), float32 or float64, 2 columns or more.
        labels: (B,) integer class ids in [0, C).
    Returns:
        (B,), each in [−2/3, 2].
    Source: Do et al., CVPR 2019, the bracket of eq. 8.
    """
    has_gradient = embeddings.requires_grad and torch.is_grad_enabled()
    values: Tensor = _OneHot.apply(embeddings, labels.long()[:, None], has_gradient)
    return values


class _OneHot(torch.autograd.Function):
    """With n = ‖x‖ the distance is sqrt(2/n) sqrt(n − x_m): one factor a row, and no pass over x/n.

    Instead of clamping n − x_m, n is taken a few roundings longer than any x_m can be.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, labels: Tensor, has_gradient: bool) -> Tensor:
        own_entry = x.gather(1, labels)
        rest, norm, longer, roots, inverses = (torch.empty_like(own_entry) for _ in range(5))
        parts = torch.empty_like(x, memory_format=torch.contiguous_format) if has_gradient else None
        blocks = _row_blocks(x, labels, own_entry, rest, norm, longer, roots, inverses, x if parts is None else parts)
        for some, own_class, own, its_rest, its_norm, its_longer, its_roots, its_inverses, part in blocks:
            if parts is None:
                part = torch.empty_like(some)
            # The own class apart: near its centroid n − x_y has no digits left.
            part.copy_(some).scatter_(1, own_class, 0)
            torch.linalg.vector_norm(part, dim=1, keepdim=True, out=its_rest)
            torch.hypot(its_rest, own, out=its_norm).clamp_(min=_SHORTEST)
            torch.mul(its_norm, 1 + 4 * torch.finfo(x.dtype).eps, out=its_longer)
            torch.sum(torch.sub(its_longer, part, out=part).sqrt_(), 1, keepdim=True, out=its_roots)
            if parts is not None:
                torch.sum(part.reciprocal_(), 1, keepdim=True, out=its_inverses)
        of_own = longer.sqrt()  # what the own class, there with x_y = 0, has put into the sums
        roots -= of_own
        inverses -= 1 / of_own
        own_distance = torch.hypot(rest, own_entry - norm) / norm
        ctx.save_for_backward(x, labels, norm, longer, roots, inverses, own_distance)
        ctx.inverse_roots = parts
        return (own_distance - _share(x) * (2 / norm).sqrt_() * roots)[:, 0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        x, labels, norm, longer, roots, inverses, own_distance = ctx.saved_tensors
        by_x, ctx.inverse_roots = ctx.inverse_roots, None
        if by_x is None:  # a second backward pass
            by_x = (longer - x).rsqrt_()
        grad = grad.unsqueeze(1)
        # By u = x/n it is share/‖u − e_m‖ and −1/‖u − e_y‖, but for a multiple of u, which the projection takes away.
        by_others = grad * _share(x) / (2 * norm).sqrt_()
        # On a centroid there is no direction to go: no gradient from it.
        by_own = torch.where(own_distance > 0, -grad / (norm * own_distance), 0)
        # Σ x_m / sqrt(n − x_m) from the two sums, as x_m = n − (n − x_m).
        along = by_others * (longer * inverses - roots) + by_own * x.gather(1, labels)
        by_radius = -along / norm.square()
        blocks = _row_blocks(x, labels, by_others, by_own, by_radius, by_x)
        for some, own_class, its_others, its_own, its_radius, part in blocks:
            part.mul_(its_others).scatter_(1, own_class, its_own).addcmul_(some, its_radius)
        return by_x, None, None


def _share(x: Tensor) -> float:
    return 1 / (3 * (x.shape[1] - 1))


def _row_blocks(x: Tensor, *others: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The same rows of x and of the others, some at a time; on a device all at once."""
    step = max(1, _BLOCK // x.shape[1]) if x.device.type == "cpu" else len(x)
    return zip(*(tensor.split(step) for tensor in (x, *others)), strict=True)
