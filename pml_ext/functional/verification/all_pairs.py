"""Verification over all pairs of a labelled set, without storing their scores."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from torch import distributed as dist

from pml_ext._checks import check_embeddings, check_finite, check_items, check_labels, check_whole
from pml_ext._ops.distributed import gather_rows, lengths_of_ranks, sum_over_ranks
from pml_ext._ops.normalize import unit_rows
from pml_ext._ops.numerics import SIDE, full_precision
from pml_ext.functional.opis.negative_histogram import calibration_brackets
from pml_ext.functional.pairwise.pair_blocks import Block
from pml_ext.functional.pairwise.pair_distances import PairDistances
from pml_ext.functional.verification.histogram import ScoreHistogram
from pml_ext.functional.verification.roc import ROC, check_far, place_at_equal_errors, place_at_far, roc_curve

Range = tuple[float, float]
"""low <= score < high."""
Kept = tuple[Tensor, Tensor]
"""(P,) scores, and a bool mask of the genuine pairs."""

_SEARCHED_AT_ONCE = 2**16  # temporaries stay in the cache


def count_scores(pairs: PairDistances, ranges: Sequence[Range], *, most: int) -> tuple[ScoreHistogram, Kept | None]:
    """Returns the counts over all ranks, and the pairs in the ranges (None if there are more than `most`).

    Counts all scores as impostor scores, then moves the few genuine ones: checking the classes of every pair would
    take a quarter of the product's time.
    """
    histogram = ScoreHistogram(device=pairs.unit.device)
    kept: list[Kept] | None = []
    room = most
    with full_precision(pairs.unit.device):
        for block in pairs.blocks():
            if block.mixed:
                genuine = block.cosines.view(-1)[pairs.positive_places(block)[0]]
                histogram.update(genuine, torch.ones_like(genuine, dtype=torch.bool))
            hits = _count_block(pairs, histogram, block, [] if kept is None else ranges)
            room -= len(hits[0])
            if room < 0:
                kept = None
            elif kept is not None:
                kept.append(hits)
    histogram.counts[0] -= histogram.counts[1]
    sum_over_ranks(histogram.counts, pairs.group)
    return histogram, _of_all_ranks(kept, pairs, most)


def _count_block(pairs: PairDistances, histogram: ScoreHistogram, block: Block, ranges: Sequence[Range]) -> Kept:
    """Count a block's pairs as impostor pairs, and return those in some ranges."""
    flat, width = block.cosines.view(-1), block.cosines.shape[1]
    if block.rows.start == block.columns.start:
        square = block.cosines[:, : len(block.cosines)]
        square.masked_fill_(torch.ones_like(square, dtype=torch.bool).tril_(), -torch.inf)
        histogram.counts[0, 0] -= len(square) * (len(square) + 1) // 2  # they are no pairs
    histogram.count_as_impostors(flat)
    lowest = max(min((low for low, _ in ranges), default=torch.inf), torch.finfo(flat.dtype).min)  # −inf is no pair
    place = _places_from(lowest, flat)
    scores, inside = flat[place], torch.zeros_like(place, dtype=torch.bool)
    for low, high in ranges:
        inside |= (scores >= low) & (scores < high)
    row, column = place[inside] // width, place[inside] % width
    return scores[inside], pairs.index[block.rows][row] == pairs.index[block.columns][column]


def _places_from(lowest: float, scores: Tensor) -> Tensor:
    """Returns the indices of the scores >= lowest."""
    if scores.device.type != "cpu":
        return (scores >= lowest).nonzero().squeeze(1)
    # numpy compares and searches eight times faster than torch
    hits = []
    for begin in range(0, len(scores), _SEARCHED_AT_ONCE):
        some = scores[begin : begin + _SEARCHED_AT_ONCE].numpy()
        hits.append(begin + np.flatnonzero(some >= lowest))
    return torch.from_numpy(np.concatenate(hits))


def _of_all_ranks(hits: list[Kept] | None, pairs: PairDistances, most: int) -> Kept | None:
    if pairs.group is not None:
        count = most + 1
        if hits is not None:
            count = sum(len(part) for part, _ in hits)
        if int(sum_over_ranks(torch.tensor(count, device=pairs.unit.device), pairs.group)) > most:
            return None
    if hits is None:
        return None
    parts = [(pairs.unit.new_empty(0), pairs.index.new_empty(0, dtype=torch.bool)), *hits]
    scores, same = (torch.cat(part) for part in zip(*parts, strict=True))
    if pairs.group is None or not max(lengths := lengths_of_ranks(scores, pairs.group)):
        return scores, same
    return (
        gather_rows(scores, pairs.group, lengths=lengths),
        gather_rows(same.byte(), pairs.group, lengths=lengths).bool(),
    )


_SAMPLED = 2048
_STANDARD_ERRORS = 4


def expected_ranges(pairs: PairDistances, fars: Sequence[float]) -> list[tuple[float, float]]:
    """Returns score ranges, ascending, that most likely contain the thresholds of the FARs and of the equal error rate.

    Overlapping ranges are merged. The result is the same on all ranks.
    """
    with full_precision(pairs.unit.device):
        rates = [(far, far) for far in dict.fromkeys(fars)]
        if (equal := _rates_around_equal_errors(pairs)) is not None:
            rates.append(equal)
        brackets = calibration_brackets(pairs, rates)
    merged: list[tuple[float, float]] = []
    for low, high in sorted(bracket[::-1] for bracket in brackets if bracket is not None):
        # A bracket without an upper end has a value above 1.
        low = low if low >= -1 else -torch.inf
        high = high if high <= 1 else torch.inf
        if merged and low <= merged[-1][1]:
            low, high = merged[-1][0], max(merged.pop()[1], high)
        merged.append((low, high))
    return merged


def _rates_around_equal_errors(pairs: PairDistances) -> tuple[float, float] | None:
    """Returns the false accept rates below and above the equal error rate; None if the sample has no genuine pairs."""
    generator = torch.Generator().manual_seed(0)
    chosen = torch.randperm(len(pairs.unit), generator=generator)[:_SAMPLED].to(pairs.unit.device)
    follows = chosen + 1 < pairs.class_end[chosen]  # the next sample is of the same class
    first = chosen[follows]
    if not len(first):
        return None
    genuine = (pairs.unit[first] * pairs.other[first + 1]).sum(1).sort().values
    other = chosen.roll(1)
    cosines = (pairs.unit[chosen] * pairs.other[other]).sum(1)
    is_impostor = pairs.index[chosen] != pairs.index[other]
    impostor = cosines[is_impostor].sort().values
    if not len(impostor):
        return None
    rejected = torch.arange(len(genuine), device=genuine.device) / len(genuine)
    accepted = 1 - torch.searchsorted(impostor, genuine) / len(impostor)
    equal = float(torch.minimum(rejected, accepted).max())
    # Standard error of each rate. One is added to each count, so that a rate of 0 has an error too.
    least = min(len(genuine), len(impostor))
    share = max(equal, 1 / least)
    error = _STANDARD_ERRORS * (2 * share * (1 - share) / least) ** 0.5
    return max(equal - error, 1e-12), min(equal + error, 1.0)


# Most scores stored to resolve one bin: 64 MB.
_KEPT_AT_MOST = 2**24
_EXPECTED_FROM = 2048
_NO_TIE = 1e-10  # share of the area below which a run of scores is not merged
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
    check_whole(block_rows, "block_rows", 1)
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
    """Returns the ROC curve of the cosines of all pairs of a set, exact at the requested operating points.

    One pass counts the scores in bins of 1.9e-6. It also keeps the individual scores near the operating points at
    `fars` and the equal error rate, whose locations a sample of the pairs predicts. A second pass collects scores that
    lie outside the prediction. `operating_point` at each of the fars and `equal_error_rate` are therefore exact, unless
    more than 2^24 pairs share a bin (e.g. if the embeddings have collapsed). `roc_auc` is within `auc_bounds`. Scores
    that differ by rounding only, such as those of binary embeddings, count as equal.

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

    expected_from: number of samples from which the first pass keeps scores; for fewer, a second pass is cheap.
    """
    for far in fars:
        check_far(far)
    pairs = PairDistances(embeddings, labels, group=group, offsets=offsets)
    both_kinds = pairs.total_positive_pairs > 0 and pairs.total_negative_pairs > 0
    ranges: list[Range] = []
    if both_kinds and len(pairs.unit) >= expected_from:
        ranges = expected_ranges(pairs, fars)
    histogram, kept = count_scores(pairs, ranges, most=kept_at_most)
    # Rounding can spread one score over two or three bins.
    roc = _join_ties(histogram.roc(), 1.5 / histogram.BINS_PER_UNIT, 3 / histogram.BINS_PER_UNIT)
    if not both_kinds:
        return roc
    kept_ranges = [] if kept is None else ranges
    bins, missing = {}, []
    for place in _bins_of(roc, fars, kept_at_most):
        high, low = roc.thresholds[place - 1 : place + 1].tolist()
        bins[place] = (low, high)
        if not any(start <= low and high <= stop for start, stop in kept_ranges):
            missing.append(place)
    again = None
    if missing:
        again = count_scores(pairs, [bins[place] for place in missing], most=kept_at_most * len(missing))[1]
    points = {place: _inside(again if place in missing else kept, bin_) for place, bin_ in bins.items()}
    return _with_points(roc, points, _ROUNDING[pairs.unit.dtype])


def _join_ties(roc: ROC, gap: float, extent: float) -> ROC:
    """Merge runs of thresholds that are less than `gap` apart, if a run's extent is below `extent`.

    The scores of such a run differ by rounding only. Dense scores form long runs, which are kept. So are runs with only
    one kind of pairs, or with a negligible number of pairs.
    """
    last = (roc.thresholds[:-1] - roc.thresholds[1:] >= gap).nonzero().squeeze(1)
    last = torch.cat([last, last.new_full((1,), len(roc.thresholds) - 1)])
    first = torch.cat([last.new_zeros(1), last[:-1] + 1])
    is_tie = (first < last) & (roc.thresholds[first] - roc.thresholds[last] < extent)
    genuine = roc.true_accepts[last].diff(prepend=roc.true_accepts[:1]).double()
    impostors = roc.false_accepts[last].diff(prepend=roc.false_accepts[:1]).double()
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
    """Returns the indices of the curve points whose bins must be resolved."""
    last = len(roc.thresholds) - 1
    bins = {min(place + 1, last) for far in fars if (place := place_at_far(roc, far)) is not None}
    bins.add(place_at_equal_errors(roc))
    sizes = (roc.true_accepts + roc.false_accepts).diff(prepend=roc.true_accepts.new_zeros(1))
    return [place for place in sorted(bins) if 1 < int(sizes[place]) <= kept_at_most]


def _inside(pairs: Kept | None, bin_: Range) -> Kept:
    assert pairs is not None
    scores, same = pairs
    inside = (scores >= bin_[0]) & (scores < bin_[1])
    return scores[inside], same[inside]


def _with_points(roc: ROC, bins: dict[int, Kept], rounding: float) -> ROC:
    """Add a point to the curve for each distinct score in some bins; bins: ascending indices on the curve."""
    curves, begin = [], 0
    for place, (scores, same) in bins.items():
        curves.append(ROC(*(column[begin:place] for column in roc)))
        points = _join_ties(roc_curve(scores, same), rounding, 4 * rounding)
        # The curve already has the first point, which accepts nothing of the bin, and the last, which accepts all.
        thresholds, true_accepts, false_accepts = (column[1:-1] for column in points)
        true_accepts = true_accepts + roc.true_accepts[place - 1]
        false_accepts = false_accepts + roc.false_accepts[place - 1]
        curves.append(ROC(thresholds.double(), true_accepts, false_accepts))
        begin = place
    curves.append(ROC(*(column[begin:] for column in roc)))
    return ROC(*(torch.cat(column) for column in zip(*curves, strict=True)))
