"""Positive pairs, negative pairs and triplets from class labels."""

from collections import Counter
from typing import NamedTuple

import torch
from torch import Tensor


def same_and_different(labels: Tensor, ref_labels: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Two (B, R) masks: pairs of one class, and of two classes; without ref_labels (B, B), no sample with itself."""
    same = labels[:, None] == (labels if ref_labels is None else ref_labels)[None, :]
    different = ~same
    if ref_labels is None:
        same.fill_diagonal_(0)  # torch.jit.trace rejects False
    return same, different


def count_triplets(same: Tensor, different: Tensor) -> Tensor:
    """The number of triplets in the masks of same_and_different, an integer scalar."""
    return (same.sum(1) * different.sum(1)).sum()


def class_sizes(labels: Tensor) -> list[int]:
    """The size of each class, in any order. Counting in Python takes one read from the device."""
    return list(Counter(labels.tolist()).values())


def count_pairs(labels: Tensor, ref_labels: Tensor | None = None) -> tuple[int, int]:
    """The numbers of positive and negative pairs in the masks of same_and_different."""
    own = Counter(labels.tolist())
    other = own if ref_labels is None else Counter(ref_labels.tolist())
    together = sum(size * other[label] for label, size in own.items())
    negatives = own.total() * other.total() - together
    return together - (own.total() if ref_labels is None else 0), negatives


class ClassSpans(NamedTuple):
    """Where the classes of a batch are once it is sorted by class."""

    order: Tensor
    """(B,) indices into the batch, sorted by class."""
    start: Tensor
    """(B, 1) index in `order` where the sample's class begins."""
    rank: Tensor
    """(B, 1) number of samples of its class before it in `order`."""
    size: Tensor
    """(B, 1) size of the sample's class."""
    sizes: list[int]
    """The size of each class, once; the only read from the device."""

    @property
    def largest(self) -> int:
        return max(self.sizes)

    @property
    def triplets(self) -> int:
        return sum(size * (size - 1) * (len(self.order) - size) for size in self.sizes)


def class_spans(labels: Tensor, device: torch.device | None = None) -> ClassSpans:
    """The spans of a batch, on `device` (None: the labels'). Labels on the CPU avoid synchronising with a GPU."""
    in_order, order = labels.sort(stable=True)
    column = labels.contiguous().unsqueeze(1)  # searchsorted warns if not contiguous
    start = torch.searchsorted(in_order, column)
    size = torch.searchsorted(in_order, column, right=True).sub_(start)
    rank = order.argsort().unsqueeze(1).sub_(start)
    order, start, rank, size = (table.to(device, non_blocking=True) for table in (order, start, rank, size))
    return ClassSpans(order, start, rank, size, class_sizes(labels))


def every_negative(labels: Tensor, anchors: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
    """`same_and_different(labels)[1][anchors].nonzero()` in another order, on `device`, as (rows, negatives).

    Unlike nonzero it does not synchronise with a GPU if the labels and anchors are on the CPU.
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
    """For each sample the others of its class, then itself, padded with itself to the size K of the largest class.

    Returns (rows, K) indices into the batch, and (rows, K - 1) bool, False for padding.
    """
    size = spans.size[rows]
    step = torch.arange(1, spans.largest + 1, device=size.device)
    valid = step < size
    # Cyclically through the class, starting after the sample itself.
    place = spans.start[rows] + (spans.rank[rows] + step * valid) % size
    return torch.take(spans.order, place), valid[:, :-1]
