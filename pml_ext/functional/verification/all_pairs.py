"""Verification over all pairs of a labelled set, without storing their scores."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch import distributed as dist

from pml_ext._ops.distributed import gather_rows, sum_over_ranks
from pml_ext._ops.numerics import SIDE, TIED, full_precision
from pml_ext._shared.checks import check_items
from pml_ext.functional.pairwise.pair_blocks import Block, PairBlocks, true_places
from pml_ext.functional.pairwise.pair_distances import PairDistances
from pml_ext.functional.verification.histogram import ScoreHistogram
from pml_ext.functional.verification.roc import ROC, check_far, place_at_equal_errors, place_at_far, roc_curve

_RESOLVED_AT_MOST = 2**24  # scores stored to resolve one bin: 64 MB
_NO_TIE = 1e-10  # share of the area below which a run of scores is not merged

Kept = tuple[Tensor, Tensor]
"""(P,) scores, and a bool mask of the genuine pairs."""


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
    pairs = PairBlocks(embeddings, labels, block_rows=block_rows)
    blocks = pairs.blocks()
    while True:
        with full_precision(pairs.unit.device):  # not while the caller uses the block
            block = next(blocks, None)
        if block is None:
            return
        _hide_repeated_pairs(block)
        is_pair = block.cosines > -torch.inf
        same = pairs.index[block.rows, None] == pairs.index[block.columns]
        yield block.cosines[is_pair], same[is_pair]


def _hide_repeated_pairs(block: Block) -> int:
    """Set the cosines on and below the diagonal to −inf, and return their number."""
    if block.rows.start != block.columns.start:
        return 0
    size = len(block.cosines)
    square = block.cosines[:, :size]
    square.masked_fill_(torch.ones_like(square, dtype=torch.bool).tril_(), -torch.inf)
    return size * (size + 1) // 2


def count_scores(pairs: PairDistances) -> ScoreHistogram:
    """Returns the counts over all ranks.

    Counts all scores as impostor scores, then moves the few genuine ones: checking the classes of every pair would
    take a quarter of the product's time.
    """
    histogram = ScoreHistogram(device=pairs.unit.device)
    with full_precision(pairs.unit.device):
        for block in pairs.blocks():
            if block.mixed:
                histogram.count(block.cosines.view(-1)[pairs.positive_places(block)[0]], 1)
            histogram.counts[0, 0] -= _hide_repeated_pairs(block)
            histogram.count(block.cosines.view(-1), 0)
    histogram.counts[0] -= histogram.counts[1]
    sum_over_ranks(histogram.counts, pairs.group)
    return histogram


def scores_within(pairs: PairDistances, ranges: Sequence[tuple[float, float]]) -> Kept:
    """Returns the pairs of all ranks with low <= score < high for one of the ranges."""
    lowest = max(min(low for low, _ in ranges), torch.finfo(pairs.unit.dtype).min)  # −inf is no pair
    parts = [(pairs.unit.new_empty(0), torch.empty(0, dtype=torch.bool, device=pairs.unit.device))]
    with full_precision(pairs.unit.device):
        for block in pairs.blocks():
            _hide_repeated_pairs(block)
            flat, row, column = true_places(block.cosines >= lowest)
            scores, inside = block.cosines.view(-1)[flat], torch.zeros_like(flat, dtype=torch.bool)
            for low, high in ranges:
                inside |= (scores >= low) & (scores < high)
            one, other = pairs.index[block.rows][row[inside]], pairs.index[block.columns][column[inside]]
            parts.append((scores[inside], one == other))
    scores, same = (torch.cat(part) for part in zip(*parts, strict=True))
    return gather_rows(scores, pairs.group), gather_rows(same.byte(), pairs.group).bool()


def labelled_pairs_roc(
    embeddings: Tensor,
    labels: Tensor,
    *,
    fars: Sequence[float] = (),
    offsets: Tensor | None = None,
    group: dist.ProcessGroup | None = None,
) -> ROC:
    """Returns the ROC curve of the cosines of all pairs of a set, exact at the requested operating points.

    One pass counts the scores in bins of 1.9e-6. A second pass collects the individual scores in the bins of the
    operating points at `fars` and of the equal error rate. `operating_point` at each of the fars and
    `equal_error_rate` are therefore exact, unless more than 2^24 pairs share a bin (e.g. if the embeddings have
    collapsed). `roc_auc` is within `auc_bounds`. Scores that differ by rounding only, such as those of binary
    embeddings, count as equal: a run of scores within 1e-6, away from other scores.

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
    for far in fars:
        check_far(far)
    pairs = PairDistances(embeddings, labels, group=group, offsets=offsets)
    histogram = count_scores(pairs)
    # Rounding can spread one score over two or three bins.
    roc = _join_ties(histogram.roc(), 1.5 / histogram.BINS_PER_UNIT, 3 / histogram.BINS_PER_UNIT)
    if not pairs.total_positive_pairs or not pairs.total_negative_pairs:
        return roc
    places = _places_to_resolve(roc, fars)
    if not places:
        return roc
    ranges = [(float(roc.thresholds[place]), float(roc.thresholds[place - 1])) for place in places]
    scores, same = scores_within(pairs, ranges)
    bins = {}
    for place, (low, high) in zip(places, ranges, strict=True):
        inside = (scores >= low) & (scores < high)
        bins[place] = scores[inside], same[inside]
    return _with_points(roc, bins)


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


def _places_to_resolve(roc: ROC, fars: Sequence[float]) -> list[int]:
    """Returns the indices of the curve points whose bins hold several scores, at the rates and at equal errors."""
    last = len(roc.thresholds) - 1
    places = {min(place + 1, last) for far in fars if (place := place_at_far(roc, far)) is not None}
    places.add(place_at_equal_errors(roc))
    sizes = (roc.true_accepts + roc.false_accepts).diff(prepend=roc.true_accepts.new_zeros(1))
    return [place for place in sorted(places) if 1 < int(sizes[place]) <= _RESOLVED_AT_MOST]


def _with_points(roc: ROC, bins: dict[int, Kept]) -> ROC:
    """Add a point to the curve for each distinct score in some bins; bins: ascending indices on the curve."""
    curves, begin = [], 0
    for place, (scores, same) in bins.items():
        curves.append(ROC(*(column[begin:place] for column in roc)))
        points = _join_ties(roc_curve(scores, same), TIED / 2, TIED)
        # The curve already has the first point, which accepts nothing of the bin, and the last, which accepts all.
        thresholds, true_accepts, false_accepts = (column[1:-1] for column in points)
        true_accepts = true_accepts + roc.true_accepts[place - 1]
        false_accepts = false_accepts + roc.false_accepts[place - 1]
        curves.append(ROC(thresholds.double(), true_accepts, false_accepts))
        begin = place
    curves.append(ROC(*(column[begin:] for column in roc)))
    return ROC(*(torch.cat(column) for column in zip(*curves, strict=True)))
