"""Positive pairs, negative pairs and triplets from class labels."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from pml_ext._ops.numerics import rows_of_a_block
from pml_ext._shared.checks import check_choice, check_floating, check_in_range, check_mask, check_switch


def same_and_different(
    labels: Tensor,
    ref_labels: Tensor | None = None,
    copies: Tensor | None = None,
    *,
    device: torch.device | None = None,
) -> tuple[Tensor, Tensor]:
    """Returns two (B, R) masks: same-class and different-class pairs. Without ref_labels: (B, B), no self-pairs.

    copies: (B,) columns that hold the batch itself; a sample does not pair with its copy. device: None for the
    labels'.
    """
    labels = labels.to(device, non_blocking=True)
    others = labels if ref_labels is None else ref_labels.to(device, non_blocking=True)
    same = labels[:, None] == others[None, :]
    different = ~same
    if ref_labels is None:
        same.fill_diagonal_(0)  # torch.jit.trace rejects False
    elif copies is not None:
        same.scatter_(1, copies[:, None], False)
    return same, different


def count_triplets(same: Tensor, different: Tensor) -> Tensor:
    """Returns the number of triplets in the masks of same_and_different, an integer scalar."""
    return (same.sum(1) * different.sum(1)).sum()


def class_sizes(labels: Tensor) -> list[int]:
    """Returns the size of each class, in any order. Counting in Python takes one read from the device."""
    return list(Counter(labels.tolist()).values())


def count_pairs(labels: Tensor, ref_labels: Tensor | None = None) -> tuple[int, int]:
    """Returns the numbers of positive and negative pairs in the masks of same_and_different."""
    sizes = Counter(labels.tolist())
    other = sizes if ref_labels is None else Counter(ref_labels.tolist())
    together = sum(size * other[label] for label, size in sizes.items())
    negatives = sizes.total() * other.total() - together
    return together - (sizes.total() if ref_labels is None else 0), negatives


class ClassSpans(NamedTuple):
    """Start, size and order of the classes in a batch sorted by class."""

    order: Tensor
    """(B,) indices into the batch, sorted by class."""
    start: Tensor
    """(B, 1) index in `order` where the sample's class begins."""
    rank: Tensor
    """(B, 1) number of samples of its class before it in `order`."""
    size: Tensor
    """(B, 1) size of the sample's class."""
    sizes: list[int]
    """The size of each class; the only read from the device."""

    @property
    def largest(self) -> int:
        return max(self.sizes)

    @property
    def triplets(self) -> int:
        return sum(size * (size - 1) * (len(self.order) - size) for size in self.sizes)


def class_spans(labels: Tensor, device: torch.device | None = None) -> ClassSpans:
    """Returns the class spans of a batch, on `device` (None: the labels').

    Labels on the CPU avoid synchronising with a GPU.
    """
    in_order, order = labels.sort(stable=True)
    column = labels.contiguous().unsqueeze(1)  # searchsorted warns if not contiguous
    start = torch.searchsorted(in_order, column)
    size = torch.searchsorted(in_order, column, right=True).sub_(start)
    rank = order.argsort().unsqueeze(1).sub_(start)
    order, start, rank, size = (table.to(device, non_blocking=True) for table in (order, start, rank, size))
    return ClassSpans(order, start, rank, size, class_sizes(labels))


def same_class_pairs(labels: Tensor, ref_labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns (rows, columns) of the entries where labels[:, None] == ref_labels, and the count of each row.

    For labels on the CPU; the mask's nonzero would synchronise with a GPU.
    """
    in_order, order = ref_labels.sort(stable=True)
    start = torch.searchsorted(in_order, labels)
    counts = torch.searchsorted(in_order, labels, right=True) - start
    rows = torch.arange(len(labels), device="cpu").repeat_interleave(counts)
    step = torch.arange(len(rows), device="cpu") - (counts.cumsum(0) - counts)[rows]
    return rows, order[start[rows] + step], counts


def class_columns(spans: ClassSpans, rows: slice = slice(None)) -> tuple[Tensor, Tensor]:
    """Returns, per sample, the others of its class, then itself, padded with itself to the largest class size K.

    Returns (rows, K) indices into the batch, and (rows, K - 1) bool, False for padding.
    """
    size = spans.size[rows]
    step = torch.arange(1, spans.largest + 1, device=size.device)
    valid = step < size
    # Cyclically through the class, starting after the sample itself.
    place = spans.start[rows] + (spans.rank[rows] + step * valid) % size
    return torch.take(spans.order, place), valid[:, :-1]


Tuples = tuple[Tensor, ...]
"""(anchor, positive, negative) or (anchor, positive, anchor, negative) indices."""


def pairs_of(indices_tuple: Tuples) -> Tuples:
    """Returns anchors and positives, and anchors and negatives."""
    if len(indices_tuple) == 4:
        return indices_tuple
    anchors, positives, negatives = indices_tuple
    return anchors, positives, anchors, negatives


def triplets_of(
    indices_tuple: Tuples | None,
    labels: Tensor | None,
    ref_labels: Tensor | None = None,
    *,
    device: torch.device | None = None,
) -> Tuples:
    """Returns anchors, positives and negatives: every positive with every negative pair of its anchor.

    indices_tuple None: all triplets of the labels; ref_labels None: of the batch with itself.
    """
    if indices_tuple is None:
        assert labels is not None
        same, different = same_and_different(labels, ref_labels, device=device)
        anchors, positives = same.nonzero(as_tuple=True)
        return every_triplet(anchors, positives, different)
    if len(indices_tuple) == 3:
        return indices_tuple
    anchors, positives, others, negatives = indices_tuple
    pair, other = torch.where(anchors[:, None] == others)
    return anchors[pair], positives[pair], negatives[other]


def every_triplet(anchors: Tensor, positives: Tensor, different: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns each positive pair with every negative of its anchor; different: (B, R), the negative pairs."""
    pair, negatives = different[anchors].nonzero(as_tuple=True)
    return anchors[pair], positives[pair], negatives


def weights_of(indices_tuple: Tuples | None, labels: Tensor, like: Tensor, *, with_itself: bool = True) -> Tensor:
    """Returns (B,) sample frequencies in the tuples, relative to the most frequent; all 1 if there is no tuple.

    with_itself: positives and negatives come from the batch, and count too.
    """
    if indices_tuple is None or all(len(part) == 0 for part in indices_tuple):
        return torch.ones(len(labels), dtype=like.dtype, device=like.device)
    parts = indices_tuple if with_itself else pairs_of(indices_tuple)[::2]
    counts = torch.bincount(torch.cat(parts), minlength=len(labels))
    return counts.to(like.dtype) / counts.max()


# By the gap S_ap − S_an. A tie is hard, as in PML's TripletMarginMiner, but it is not discordant.
KINDS: dict[str, Callable[[Tensor, float], Tensor]] = {
    "discordant": lambda gap, margin: gap < 0,
    "hard": lambda gap, margin: gap <= 0,
    "semihard": lambda gap, margin: (gap > 0) & (gap <= margin),
    "easy": lambda gap, margin: gap > margin,
}


def triplets_of_kind(
    similarities: Tensor, same: Tensor, different: Tensor, kind: str, margin: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns all (anchor, positive, negative) triplets of one kind, ordered by anchor, then positive, then negative.

    Works in blocks of positive pairs, without a (B, R, R) tensor.

    Args:
        similarities: (B, R), larger = more alike (pass negated distances).
        same, different: (B, R) bool, the positive and the negative pairs.
        kind: by the gap g = S_ap − S_an: "discordant" g < 0, "hard" g <= 0, "semihard" 0 < g <= margin,
            "easy" g > margin. Each triplet is one of the last three.
        margin: in the unit of the similarities, >= 0.
    Returns:
        three index tensors of equal length.

    >>> similarities = torch.tensor([[1, 0.6, 0.7], [0.6, 1, 0.2], [0.7, 0.2, 1]])
    >>> same = torch.tensor([[False, True, False], [True, False, False], [False, False, False]])
    >>> different = torch.tensor([[False, False, True], [False, False, True], [True, True, False]])
    >>> triplets = triplets_of_kind(similarities, same, different, "hard", margin=0.2)
    >>> [indices.tolist() for indices in triplets]
    [[0], [1], [2]]
    """
    check_choice(kind, KINDS, "kind")
    is_kind = KINDS[kind]
    parts = []
    for anchors, positives, gap, negative in _gaps(similarities, same, different, margin):
        pair, n = torch.nonzero(is_kind(gap, margin) & negative, as_tuple=True)
        parts.append((anchors[pair], positives[pair], n))
    a, p, n = (torch.cat(part) for part in zip(*parts, strict=True))
    return a, p, n


def count_triplet_kinds(similarities: Tensor, same: Tensor, different: Tensor, margin: float) -> dict[str, int]:
    """Returns the number of triplets of each kind; see `triplets_of_kind`.

    The concordance index is 1 − (discordant + hard)/(2 · all triplets), which counts a tie as one half.

    >>> similarities = torch.tensor([[1, 0.6, 0.7], [0.6, 1, 0.2], [0.7, 0.2, 1]])
    >>> same = torch.tensor([[False, True, False], [True, False, False], [False, False, False]])
    >>> different = torch.tensor([[False, False, True], [False, False, True], [True, True, False]])
    >>> count_triplet_kinds(similarities, same, different, margin=0.2)
    {'discordant': 1, 'hard': 1, 'semihard': 0, 'easy': 1}
    """
    counts = dict.fromkeys(KINDS, 0)
    for _, _, gap, negative in _gaps(similarities, same, different, margin):
        for kind, is_kind in KINDS.items():
            counts[kind] += int((is_kind(gap, margin) & negative).sum())
    return counts


def _gaps(
    similarities: Tensor, same: Tensor, different: Tensor, margin: float
) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Yield blocks of positive pairs: anchors, positives, the gaps to all columns, and the mask of negative columns."""
    check_floating(similarities, "similarities", "(B, R)")
    check_mask(same, similarities.shape, "same")
    check_mask(different, similarities.shape, "different")
    check_in_range(margin, 0, float("inf"), "margin")
    anchors, positives = torch.nonzero(same, as_tuple=True)
    rows = rows_of_a_block(similarities.shape[1], similarities.device)
    for a, p in zip(anchors.split(rows), positives.split(rows), strict=True):
        yield a, p, similarities[a, p][:, None] - similarities[a], different[a]


def hardest_triplets(
    distances: Tensor, positive: Tensor, negative: Tensor, *, among_themselves: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns, per row, its farthest positive and the nearest negative of either sample. Not differentiable.

    Args:
        distances: (B, R), larger = further apart (pass negated similarities).
        positive, negative: (B, R) bool, the pairs to choose from.
        among_themselves: rows and columns are the same samples, so the positive has negatives too; if its nearest one
            is nearer than the row's, it becomes the anchor and the row the positive. If False, the row's nearest
            negative counts.
    Returns:
        (anchors, positives, negatives), one triplet per row with a positive and a negative (of either sample), in the
        order of the rows. Ties go to the first, and to the row before its positive. Two samples that are each other's
        farthest positive give the same triplet twice.

    >>> similarities = torch.tensor([[1, 0.6, 0.7], [0.6, 1, 0.2], [0.7, 0.2, 1]])
    >>> same = torch.tensor([[False, True, False], [True, False, False], [False, False, False]])
    >>> different = torch.tensor([[False, False, True], [False, False, True], [True, True, False]])
    >>> triplets = hardest_triplets(1 - similarities, same, different, among_themselves=True)
    >>> [indices.tolist() for indices in triplets]
    [[0, 0], [1, 1], [2, 2]]
    """
    check_floating(distances, "distances", "(B, R)")
    check_mask(positive, distances.shape, "positive")
    check_mask(negative, distances.shape, "negative")
    check_switch(among_themselves, "among_themselves")
    distances = distances.detach()
    farthest = distances.masked_fill(~positive, -torch.inf).argmax(dim=1)
    nearest, at = distances.masked_fill(~negative, torch.inf).min(dim=1)
    rows = torch.arange(len(distances), device=distances.device)
    anchors, positives = rows, farthest
    has_negative = negative.any(dim=1)
    if among_themselves:
        turned = nearest[farthest] < nearest
        anchors, positives = torch.where(turned, farthest, rows), torch.where(turned, rows, farthest)
    kept = (positive.any(dim=1) & has_negative[anchors]).nonzero().squeeze(1)
    anchors = anchors[kept]
    return anchors, positives[kept], at[anchors]


def hardest_of_pairs(
    distances: Tensor, positive: Tensor, negative: Tensor, anchors: Tensor, partners: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns, for (P,) pairs of samples, the farthest positive and nearest negative of either. Not differentiable.

    Both samples have a positive, one of them has a negative. Returns four (P,): the sample with the farthest positive
    and that positive; the sample with the nearest negative and that negative.
    """
    distances = distances.detach()
    farthest, far_at = distances.masked_fill(~positive, -torch.inf).max(dim=1)
    nearest, near_at = distances.masked_fill(~negative, torch.inf).min(dim=1)
    far_end = torch.where(farthest[partners] > farthest[anchors], partners, anchors)
    near_end = torch.where(nearest[partners] < nearest[anchors], partners, anchors)
    return far_end, far_at[far_end], near_end, near_at[near_end]
