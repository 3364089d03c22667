"""Which samples form positive pairs, negative pairs and triplets."""

import torch
from torch import Tensor


def same_and_different(labels: Tensor, ref_labels: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Masks of the pairs of one class and of the pairs of two classes.

    Args:
        labels: (B,) class ids.
        ref_labels: (R,) class ids of the other side; None where that is the batch itself, then no sample is a
            pair with itself.
    Returns:
        two (B, R) boolean masks.
    """
    same = labels[:, None] == (labels if ref_labels is None else ref_labels)[None, :]
    different = ~same
    if ref_labels is None:
        same.fill_diagonal_(False)
    return same, different


def count_triplets(same: Tensor, different: Tensor) -> Tensor:
    """How many (anchor, positive, negative) the masks of same_and_different allow, an integer scalar."""
    return (same.sum(1) * different.sum(1)).sum()


def positive_columns(labels: Tensor) -> tuple[Tensor, Tensor]:
    """For every sample the others of its class, as a table padded to the largest class.

    Args:
        labels: (B,) class ids in any order.
    Returns:
        (B, K - 1) indices into the batch and a boolean mask of the same shape, False on the padding;
        K is the size of the largest class.
    """
    _, classes, sizes = torch.unique(labels, return_inverse=True, return_counts=True)
    by_class = torch.argsort(classes, stable=True)
    start = (sizes.cumsum(0) - sizes)[classes]
    rank = torch.empty_like(by_class)
    rank[by_class] = torch.arange(len(labels), device=labels.device)
    rank -= start
    slot = torch.arange(int(sizes.max()) - 1, device=labels.device)
    valid = slot < (sizes[classes] - 1)[:, None]
    place = start[:, None] + slot + (slot >= rank[:, None])  # the sample's own place is stepped over
    return by_class[place.clamp(max=len(labels) - 1)], valid
