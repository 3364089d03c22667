"""The discriminative loss against one-hot centroids, from embeddings of any length in few passes over cached rows."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

_BLOCK = 2**17  # entries of the rows at work: they stay in a processor's cache
_SHORTEST = 1e-12  # norm, as in torch.nn.functional.normalize


def one_hot_discriminative_loss(embeddings: Tensor, labels: Tensor) -> Tensor:
    """`discriminative_loss(normalize(embeddings), labels, None)`, in less time than a cross-entropy takes.

    ‖u − e_m‖ = sqrt(2 − 2 u_m) for unit vectors u. The normalisation is part of the gradient, which is computed in
    the backward pass: nothing of size (B, C) is kept but the embeddings. No double backward.

    Args:
        embeddings: (B, C), float32 or float64, 2 columns or more.
        labels: (B,) integer class ids in [0, C).
    Returns:
        (B,), each in [−2/3, 2].
    Source: Do et al., CVPR 2019, the bracket of eq. 8.
    """
    values: Tensor = _OneHot.apply(embeddings, labels.long()[:, None])
    return values


class _OneHot(torch.autograd.Function):
    """With n = ‖x‖ the distance is sqrt(2/n) sqrt(n − x_m): one factor a row, and no pass over x/n.

    Instead of clamping n − x_m, n is taken a few roundings longer than any x_m can be.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, labels: Tensor) -> Tensor:
        own_entry = x.gather(1, labels)
        rest, norm, others = (torch.empty_like(own_entry) for _ in range(3))
        longer = 1 + 4 * torch.finfo(x.dtype).eps
        for some, own_class, own, its_rest, its_norm, its_others in _row_blocks(
            x, labels, own_entry, rest, norm, others
        ):
            # The own class apart: near its centroid n − x_y has no digits left.
            part = some.scatter(1, own_class, 0)
            torch.linalg.vector_norm(part, dim=1, keepdim=True, out=its_rest)
            torch.hypot(its_rest, own, out=its_norm).clamp_(min=_SHORTEST)
            torch.sub(its_norm * longer, part, out=part).scatter_(1, own_class, 0)
            torch.sum(part.sqrt_(), 1, keepdim=True, out=its_others)
        own = torch.hypot(rest / norm, own_entry / norm - 1)
        ctx.save_for_backward(x, labels, norm, own)
        return (own - others.mul_((2 / norm).sqrt_()).mul_(_share(x)))[:, 0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        x, labels, norm, own = ctx.saved_tensors
        # By u = x/n it is share/‖u − e_m‖ and −1/‖u − e_y‖, but for a multiple of u, which the projection takes away.
        scale = grad.unsqueeze(1) / norm
        # On a centroid there is no direction to go: no gradient from it.
        by_own = torch.where(own > 0, -scale / own, 0)
        by_others = scale * (norm / 2).sqrt_() * _share(x)
        longer, inverse_square = norm * (1 + 4 * torch.finfo(x.dtype).eps), -1 / norm.square()
        by_x = torch.empty_like(x, memory_format=torch.contiguous_format)
        blocks = _row_blocks(x, labels, by_own, by_others, longer, inverse_square, by_x)
        for some, own_class, its_own, its_others, its_norm, its_inverse, part in blocks:
            torch.sub(its_norm, some, out=part).sqrt_()
            torch.div(its_others, part, out=part).scatter_(1, own_class, its_own)
            part.addcmul_(some, torch.linalg.vecdot(part, some).unsqueeze(1).mul_(its_inverse))
        return by_x, None


def _share(x: Tensor) -> float:
    return 1 / (3 * (x.shape[1] - 1))


def _row_blocks(x: Tensor, *others: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The same rows of x and of the others, some at a time; on a device all at once."""
    step = max(1, _BLOCK // x.shape[1]) if x.device.type == "cpu" else len(x)
    return zip(*(tensor.split(step) for tensor in (x, *others)), strict=True)
