"""Label errors that embeddings show: wrong labels, identities with two labels, labels of two identities, and copies."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pml_ext._ops.numerics import product_blocks, rows_of_a_block, unit_rows
from pml_ext.thresholds.fields import DoubtfulLabel, LabelError
from pml_ext.thresholds.samples import Copies, SampleSource

_MIN_LABELS = 10
_SEPARATE = 3.0  # median deviations of the cosine with the nearest sample of the label, in a typical gap
_SMALLEST = 4  # samples of a label of two identities

# Chosen on the sets of 300 people of examples/evidence/checks.py: 99 % of 10 % wrong labels are listed, and 93 % of
# 10 % people enrolled twice; a label in 2 of 30 clean sets with heavy tails, 2 of uneven quality and 7 with siblings.
_TYPICAL = 0.75
"""Quantile of a typical gap. With 0.5, 16 % of wrong labels are listed; with 0.9, labels of 22 uneven sets."""
_ALIKE = 0.5
"""Typical gaps that two labels of one identity may lack. With 0.25, 75 % are listed; with 1, a third wrongly."""
_FITS = 1.0
"""Typical gaps that a wrong label's sample may lack. With 0.5, 94 % are listed; with 2, labels of 13 uneven sets."""
_CLEAR = 0.5
"""Share of these limits for the median. With 0.25, 78 % are listed; with 1, labels of 73 of 90 clean sets."""
_REJECTED = 1e-6
"""Weight of rejected samples in the means of labels. With 1, 68 % of wrong labels get the right one, not 95 %."""


class _Nearest(NamedTuple):
    """Highest cosine of each of N samples with another sample of its label, and with a sample of another label."""

    unit: Tensor  # (N, D) of length 1
    same: Tensor  # −inf for the only sample of a label
    other: Tensor
    label: Tensor  # id of the other label


def find_doubtful_labels(
    embeddings: Tensor,
    ids: Tensor,
    names: Sequence[int | str],
    source: SampleSource,
    copies: Copies,
) -> tuple[tuple[DoubtfulLabel, ...], Tensor]:
    """Find labels that the embeddings contradict, by the nearest samples of the same and of other labels.

    The gap of a sample is its highest cosine with another sample of its label, less that with a sample of another
    label. A wrong label has a gap as far below 0 as typical gaps are above. Two labels of one identity are as alike as
    the samples of one label, up to half of a typical gap. What is found is listed if most of it is clear: the tail of
    identities that look alike lies near these limits. Nothing but copies is listed for fewer than 10 labels, nor if a
    typical gap is small.

    Args:
        embeddings: (N, D); cosines are compared, also if a cohort normalises the scores.
        ids, names: (N,) ids of the labels, on the CPU, and the name of each id.
        copies: rows whose embedding equals that of an earlier row, and that row.
    Returns:
        Doubtful labels, and an (N,) mask of the samples that remain without them. Of an identity with two labels, the
        label with more samples remains.
    Source: Wilson, IEEE Transactions on Systems, Man and Cybernetics 2 (1972): samples that their nearest neighbours
        contradict. Paper: the majority of k neighbours; here: the gap.
    """
    doubtful = list[DoubtfulLabel]()
    remaining = torch.ones(len(ids), dtype=torch.bool, device="cpu")

    def add(kind: LabelError, rows: Tensor, other: int | None, cosine: float, left_out: Tensor) -> None:
        samples = tuple(source.sample(row, names[int(ids[row])]) for row in rows.tolist())
        other_name = None if other is None else names[other]
        doubtful.append(DoubtfulLabel(kind, samples[0].label, other_name, cosine, samples))
        remaining[left_out] = False

    for row, first in copies:
        if ids[row] != ids[first]:
            rows = torch.tensor([row, first], device="cpu")
            add("copies", rows, int(ids[first]), 1.0, rows)
    sizes = torch.bincount(ids)
    if int((sizes > 1).sum()) < _MIN_LABELS:
        return tuple(doubtful), remaining
    nearest = _nearest(embeddings, ids)
    unit, same, gaps = nearest.unit, nearest.same, nearest.same - nearest.other
    has_gap = same.isfinite()
    level = same[has_gap].median()
    # Wrong labels also lower the gaps of right ones nearby: the median gap may be one of these.
    typical = gaps[has_gap].quantile(_TYPICAL)
    if typical < _SEPARATE * (same[has_gap] - level).abs().median():
        return tuple(doubtful), remaining
    rows_of = torch.argsort(ids, stable=True).split(sizes.tolist())
    for rows in rows_of:
        cosine = _cosine_of_parts(unit[rows], typical) if len(rows) >= _SMALLEST else None
        if cosine is not None:
            add("two identities, one label", rows, None, float(cosine), rows)
    others, between, expected = _nearest_labels(nearest, ids, rows_of, sizes)
    for label in _clear((expected - between) / typical, _ALIKE):
        pair = sorted((label, int(others[label])), key=lambda one: (int(sizes[one]), -one))
        left_out = rows_of[pair[0]]
        if remaining[left_out].any():
            add("one identity, two labels", left_out, pair[1], float(between[label]), left_out)
    rejected = (remaining & has_gap & (gaps <= -typical)).nonzero().flatten()
    if len(rejected) < 2:  # a single one is often an image that resembles another identity
        return tuple(doubtful), remaining
    means = _means_without(unit, ids, rejected, len(names))
    for place in _clear((level - nearest.other[rejected]) / typical, _FITS):
        rows = rejected[place, None]
        cosines = means @ unit[rows[0]]
        cosines[ids[rows]] = -torch.inf
        add("wrong label", rows, int(cosines.argmax()), float(cosines.max()), rows)
    return tuple(doubtful), remaining


def _nearest_labels(
    nearest: _Nearest, ids: Tensor, rows_of: Sequence[Tensor], sizes: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns for each of T labels the nearest other label, their mean cosine, and the one expected of one identity.

    The expected cosine is the mean of those inside both labels, or the median label's if that is higher.
    """
    unit = nearest.unit
    sums = unit.new_zeros(len(rows_of), unit.shape[1]).index_add(0, ids, unit)
    inside = ((sums * sums).sum(dim=1) - sizes) / (sizes * (sizes - 1))  # mean cosine; nan for one sample
    others = torch.stack([nearest.label[rows].mode().values for rows in rows_of])
    between = (sums * sums[others]).sum(dim=1) / (sizes * sizes[others])
    expected = torch.stack([inside, inside[others]]).nanmean(dim=0).fmax(inside.nanmedian())
    return others, between, expected


def _means_without(unit: Tensor, ids: Tensor, rejected: Tensor, count: int) -> Tensor:
    """Returns the (count, D) means of the labels' samples, in which rejected ones hardly count."""
    weights = unit.new_ones(len(ids)).index_fill(0, rejected, _REJECTED)
    totals = unit.new_zeros(count).index_add(0, ids, weights)
    sums = unit.new_zeros(count, unit.shape[1]).index_add(0, ids, weights[:, None] * unit)
    return sums / totals[:, None]


def _nearest(embeddings: Tensor, ids: Tensor) -> _Nearest:
    unit = unit_rows(embeddings.detach().cpu().double())
    parts = []
    for rows, cosines in product_blocks(unit, unit, rows_of_a_block(len(unit), unit.device)):
        is_same = ids[rows, None] == ids
        other, place = cosines.masked_fill(is_same, -torch.inf).max(dim=1)
        cosines.diagonal(rows.start).fill_(-torch.inf)
        same = cosines.masked_fill(~is_same, -torch.inf).amax(dim=1)
        parts.append((same, other, ids[place]))
    return _Nearest(unit, *(torch.cat(part) for part in zip(*parts, strict=True)))


def _clear(missing: Tensor, limit: float) -> list[int]:
    """Returns the places of values up to a limit; none unless most of these values are clear of it.

    Identities that look alike have values near the limit, in all sets. Label errors have values around 0.
    """
    places = (missing <= limit).nonzero().flatten()
    if not len(places) or missing[places].median() > limit * _CLEAR:
        return []
    listed: list[int] = places.tolist()
    return listed


def _cosine_of_parts(unit: Tensor, typical: Tensor) -> Tensor | None:
    """Returns the mean cosine between two unrelated parts of a label; None for a label of one identity.

    The parts are the samples nearest to either of the two least similar ones. Each sample has a typical gap.
    """
    cosines = unit @ unit.T
    first, second = divmod(int(cosines.argmin()), len(unit))
    is_second = cosines[second] > cosines[first]
    is_inside = is_second[:, None] == is_second
    between = cosines[~is_inside].mean()
    other = cosines.masked_fill(is_inside, -torch.inf).amax(dim=1)
    same = cosines.fill_diagonal_(-torch.inf).masked_fill(~is_inside, -torch.inf).amax(dim=1)
    return between if bool((same - other >= typical).all()) else None
