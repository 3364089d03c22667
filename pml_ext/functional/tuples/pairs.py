"""Which samples form positive pairs, negative pairs and triplets."""

from collections import Counter
from typing import NamedTuple

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
        same.fill_diagonal_(0)  # False would do, but for torch.jit.trace
    return same, different


def count_triplets(same: Tensor, different: Tensor) -> Tensor:
    """How many (anchor, positive, negative) the masks of same_and_different allow, an integer scalar."""
    return (same.sum(1) * different.sum(1)).sum()


def class_sizes(labels: Tensor) -> list[int]:
    """The size of each class, in any order. Counted in Python: one read from the device, and little for a batch."""
    return list(Counter(labels.tolist()).values())


class ClassSpans(NamedTuple):
    """Where the classes of a batch lie once it is sorted by class: those of one class are neighbours there."""

    order: Tensor
    """(B,) indices into the batch, sorted by class."""
    start: Tensor
    """(B, 1) for every sample, the place in `order` where its class begins."""
    rank: Tensor
    """(B, 1) for every sample, how many of its class come before it there."""
    size: Tensor
    """(B, 1) for every sample, the size of its class."""
    sizes: list[int]
    """The size of each class, once: all that is read from the device."""

    @property
    def largest(self) -> int:
        return max(self.sizes)

    @property
    def triplets(self) -> int:
        """How many (anchor, positive, negative) there are."""
        return sum(size * (size - 1) * (len(self.order) - size) for size in self.sizes)


def class_spans(labels: Tensor) -> ClassSpans:
    """The spans of a batch. labels: (B,) class ids in any order."""
    in_order, order = labels.sort(stable=True)
    column = labels.contiguous().unsqueeze(1)  # searchsorted warns of others
    start = torch.searchsorted(in_order, column)
    size = torch.searchsorted(in_order, column, right=True).sub_(start)
    rank = order.argsort().unsqueeze(1).sub_(start)
    return ClassSpans(order, start, rank, size, class_sizes(labels))


def class_columns(spans: ClassSpans, rows: slice | Tensor = slice(None)) -> tuple[Tensor, Tensor]:
    """For every sample the others of its class and then itself, as a table as wide as the largest class, K.

    Args:
        spans: of the batch.
        rows: the samples whose rows of the table are wanted, a slice or indices.
    Returns:
        (rows, K) indices into the batch, and a boolean (rows, K - 1) that is False where a positive is only padding:
        the index of the sample itself, as in the last column.
    """
    size = spans.size[rows]
    step = torch.arange(1, spans.largest + 1, device=size.device)
    valid = step < size
    # From its own place on through its class, and past the end on from the beginning.
    place = spans.start[rows] + (spans.rank[rows] + step * valid) % size
    return torch.take(spans.order, place), valid[:, :-1]
