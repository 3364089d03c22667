"""Verification over all pairs of a labelled set, without storing their scores."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch import distributed as dist

from pml_ext._checks import check_embeddings, check_finite, check_items, check_labels, check_whole
from pml_ext._ops.blocks import SIDE
from pml_ext._ops.normalize import unit_rows
from pml_ext._ops.precision import full_precision
from pml_ext.functional.pairwise.pair_distances import PairDistances
from pml_ext.functional.verification.checks import check_far
from pml_ext.functional.verification.pair_counts import Kept, Range, count_scores
from pml_ext.functional.verification.roc import ROC, place_at_equal_errors, roc_curve
from pml_ext.functional.verification.tar_at_far_rule import place_at_far
from pml_ext.functional.verification.where_rates_fall import expected_ranges

# Most scores stored to resolve one bin: 64 MB.
_KEPT_AT_MOST = 2**24
_EXPECTED_FROM = 2048
_NO_TIE = 1e-10  # share of the area below which a run of scores is left as it is
_ROUNDING = {torch.float32: 2**-22, torch.float64: 2**-46}  # of cosines


def labelled_pairs(embeddings: Tensor, labels: Tensor, *, block_rows: int = SIDE) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the cosine and sameness of all unordered pairs of a set in blocks, always in the same order.

    Args:
        embeddings: (N, D), finite; normalised here, in float32 (float64 for float64 input).
        labels: (N,) integer class ids.
        block_rows: rows of a block; at most block_rows² pairs are yielded at a time.
    Yields:
        scores: (P,) cosines; same: (P,) bool.
    Raises:
        ValueError: embeddings are not (N, D), floating and finite; labels of another length or not integer;
            block_rows below 1.

    >>> scores, same = next(labelled_pairs(torch.eye(3), torch.tensor([0, 0, 1])))
    >>> scores.tolist(), same.tolist()
    ([0.0, 0.0, 0.0], [True, False, False])
    """
    check_embeddings(embeddings)
    labels = check_labels(labels, len(embeddings))
    check_finite(embeddings)
    check_whole(block_rows, "block_rows")
    if block_rows < 1:
        raise ValueError(f"block_rows must be 1 or more; got {block_rows!r}")
    unit, labels = unit_rows(embeddings), labels.to(embeddings.device)
    for i in range(0, len(unit), block_rows):
        rows = slice(i, i + block_rows)
        for j in range(i, len(unit), block_rows):
            columns = slice(j, j + block_rows)
            with full_precision(unit.device):
                scores = unit[rows] @ unit[columns].T
            same = labels[rows, None] == labels[columns]
            if i == j:
                above = torch.ones_like(same).triu(1)
                yield scores[above], same[above]
            else:
                yield scores.view(-1), same.view(-1)


def labelled_pairs_roc(
    embeddings: Tensor,
    labels: Tensor,
    *,
    fars: Sequence[float] = (),
    offsets: Tensor | None = None,
    group: dist.ProcessGroup | None = None,
) -> ROC:
    """The ROC curve of the cosines of all pairs of a set, exact at the points that matter.

    One pass counts the scores in bins of 1.9e-6, and keeps the single scores where a sample of the pairs expects the
    operating points at `fars` and the equal error rate; a second pass looks for those that lie elsewhere. So
    `operating_point` at each of the fars and `equal_error_rate` are exact (unless more than 2^24 pairs share such a
    bin, e.g. of collapsed embeddings). `roc_auc` is within `auc_bounds`. Scores that are
    equal but for rounding, as those of binary embeddings, count as equal.

    Args:
        embeddings, labels: see `labelled_pairs`.
        fars: allowed false accept rates, in (0, 1].
        offsets: (N,) subtracted from the cosines of each sample, see `PairDistances`.
        group: the ranks that share the work, each with the same embeddings and labels; all get the curve, which is that
            of one process. None: this process alone.
    Returns:
        ROC with float64 thresholds.

    >>> from pml_ext.functional import roc_auc
    >>> embeddings = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
    >>> float(roc_auc(labelled_pairs_roc(embeddings, torch.tensor([0, 0, 1, 1]))))
    1.0
    """
    check_items(fars, "fars", "false accept rates")
    return roc_of_all_pairs(embeddings, labels, fars, offsets, group=group)


def roc_of_all_pairs(
    embeddings: Tensor,
    labels: Tensor,
    fars: Sequence[float],
    offsets: Tensor | None = None,
    *,
    group: dist.ProcessGroup | None = None,
    kept_at_most: int = _KEPT_AT_MOST,
    expected_from: int = _EXPECTED_FROM,
) -> ROC:
    """`labelled_pairs_roc`; a bin of more than `kept_at_most` pairs is not resolved.

    expected_from: samples from which the first pass keeps scores; below, a second pass costs little.
    """
    for far in fars:
        check_far(far)
    pairs = PairDistances(embeddings, labels, group=group, offsets=offsets)
    both_kinds = pairs.total_positive_pairs > 0 and pairs.total_negative_pairs > 0
    ranges = expected_ranges(pairs, fars) if both_kinds and len(pairs.unit) >= expected_from else []
    histogram, kept = count_scores(pairs, ranges, most=kept_at_most)
    # A score that rounding puts on both sides of an edge is in two bins, or in three.
    roc = _join_ties(histogram.roc(), 1.5 / histogram.BINS_PER_UNIT, 3 / histogram.BINS_PER_UNIT)
    if not both_kinds:
        return roc
    bins = {
        place: (float(roc.thresholds[place]), float(roc.thresholds[place - 1]))
        for place in _bins_of(roc, fars, kept_at_most)
    }
    missing = {
        place: bin_
        for place, bin_ in bins.items()
        if kept is None or not any(_holds(range_, bin_) for range_ in ranges)
    }
    again = count_scores(pairs, list(missing.values()), most=kept_at_most * len(missing))[1] if missing else None
    points = {place: _inside(again if place in missing else kept, bin_) for place, bin_ in bins.items()}
    return _with_points(roc, points, _ROUNDING[pairs.unit.dtype])


def _join_ties(roc: ROC, gap: float, extent: float) -> ROC:
    """Without the points inside runs of thresholds that are less than `gap` apart, if a run's extent is below `extent`.

    Such a run is one score, but for rounding. Where scores lie densely, runs are long, and nothing goes; nor does it
    where a run is of one kind of pairs, or of next to none.
    """
    last = (roc.thresholds[:-1] - roc.thresholds[1:] >= gap).nonzero().squeeze(1)
    last = torch.cat([last, last.new_full((1,), len(roc.thresholds) - 1)])
    first = torch.cat([last.new_zeros(1), last[:-1] + 1])
    is_tie = (first < last) & (roc.thresholds[first] - roc.thresholds[last] < extent)
    genuine, impostors = (of[last].diff(prepend=of[:1]).double() for of in (roc.true_accepts, roc.false_accepts))
    is_tie &= genuine * impostors > _NO_TIE * roc.genuine * roc.impostors
    if not bool(is_tie.any()):
        return roc
    sizes = (last - first)[is_tie]
    inside = torch.arange(int(sizes.sum()), device=last.device)
    inside += torch.repeat_interleave(first[is_tie] - sizes.cumsum(0) + sizes, sizes)
    kept = torch.ones_like(roc.thresholds, dtype=torch.bool)
    kept[inside] = False
    return ROC(*(column[kept] for column in roc))


def _bins_of(roc: ROC, fars: Sequence[float], kept_at_most: int) -> list[int]:
    """The places on the curve of the bins to resolve."""
    last = len(roc.thresholds) - 1
    bins = {min(place + 1, last) for far in fars if (place := place_at_far(roc, far)) is not None}
    bins.add(place_at_equal_errors(roc))
    sizes = (roc.true_accepts + roc.false_accepts).diff(prepend=roc.true_accepts.new_zeros(1))
    return [place for place in sorted(bins) if 1 < int(sizes[place]) <= kept_at_most]


def _holds(outer: Range, inner: Range) -> bool:
    return outer[0] <= inner[0] and inner[1] <= outer[1]


def _inside(pairs: Kept | None, bin_: Range) -> Kept:
    assert pairs is not None
    scores, same = pairs
    inside = (scores >= bin_[0]) & (scores < bin_[1])
    return scores[inside], same[inside]


def _with_points(roc: ROC, bins: dict[int, Kept], rounding: float) -> ROC:
    """Add a point to the curve for each distinct score in some bins, given by their ascending places on it."""
    curves, begin = [], 0
    for place, (scores, same) in bins.items():
        points = _join_ties(roc_curve(scores, same), rounding, 4 * rounding)
        curves.append(ROC(*(column[begin:place] for column in roc)))
        # The curve already has the first point, which accepts nothing of the bin, and the last, which accepts all.
        curves.append(
            ROC(
                points.thresholds[1:-1].double(),
                points.true_accepts[1:-1] + roc.true_accepts[place - 1],
                points.false_accepts[1:-1] + roc.false_accepts[place - 1],
            )
        )
        begin = place
    curves.append(ROC(*(column[begin:] for column in roc)))
    return ROC(*(torch.cat(column) for column in zip(*curves, strict=True)))
