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
    """The size of each class, in any order. Counted in Python: one read from their device, and little for a batch."""
    return list(Counter(labels.tolist()).values())


def count_pairs(labels: Tensor, ref_labels: Tensor | None = None) -> tuple[int, int]:
    """How many positive and how many negative pairs same_and_different finds. Counted as in class_sizes."""
    own = Counter(labels.tolist())
    other = own if ref_labels is None else Counter(ref_labels.tolist())
    together = sum(size * other[label] for label, size in own.items())
    negatives = own.total() * other.total() - together
    return together - (own.total() if ref_labels is None else 0), negatives


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


def class_spans(labels: Tensor, device: torch.device | None = None) -> ClassSpans:
    """The spans of a batch.

    Args:
        labels: (B,) class ids in any order; on the CPU nothing waits for a device.
        device: where the spans are wanted; None: where the labels are.
    """
    in_order, order = labels.sort(stable=True)
    column = labels.contiguous().unsqueeze(1)  # searchsorted warns of others
    start = torch.searchsorted(in_order, column)
    size = torch.searchsorted(in_order, column, right=True).sub_(start)
    rank = order.argsort().unsqueeze(1).sub_(start)
    order, start, rank, size = (table.to(device, non_blocking=True) for table in (order, start, rank, size))
    return ClassSpans(order, start, rank, size, class_sizes(labels))


def every_negative(labels: Tensor, anchors: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
    """(rows, negatives) as `nonzero` finds them in `same_and_different(labels)[1][anchors]`, but for their order.

    nonzero must be waited for on a GPU. Here the number of negatives is counted from the labels, which may be on the
    CPU, and their places follow from it.

    Args:
        labels: (B,) class ids.
        anchors: (A,) indices into the batch, on the device of the labels.
        device: where the result is wanted.
    """
    spans = class_spans(labels)
    start, size = spans.start[anchors, 0], spans.size[anchors, 0]
    counts = len(labels) - size
    total, begin = int(counts.sum()), counts.cumsum(0) - counts
    tables = (start, size, counts, begin, spans.order)
    start, size, counts, begin, order = (table.to(device, non_blocking=True) for table in tables)
    rows = torch.arange(len(anchors), device=device).repeat_interleave(counts, output_size=total)
    place = torch.arange(total, device=device) - begin[rows]
    place += size[rows] * (place >= start[rows])  # past the anchor's own class
    return rows, order[place]


def class_columns(spans: ClassSpans, rows: slice = slice(None)) -> tuple[Tensor, Tensor]:
    """For every sample the others of its class and then itself, as a table as wide as the largest class, K.

    Args:
        spans: of the batch.
        rows: the samples whose rows of the table are wanted.
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
