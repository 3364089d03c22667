"""Counts the negative pairs of every class in one pass, in fine bins over the calibration range.

`calibration_bracket` estimates the range from a sample, `make_negative_histogram` counts its pairs by class and
pooled, and `NegativeHistogram` interpolates counts at any threshold.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch import distributed as dist

from pml_ext._ops.distributed import sum_over_ranks
from pml_ext._ops.numerics import SIDE, full_precision
from pml_ext.functional.pairwise.pair_blocks import true_places
from pml_ext.functional.pairwise.pair_distances import PairDistances

_FEWEST_SAMPLED, _MOST_SAMPLED = 512, 2048
_STANDARD_ERRORS = 5
# About one in a thousand of this many distances are equal by chance.
_COMPARED, _DISTINCT = 2**14, 0.9


def calibration_bracket(pairs: PairDistances, far_range: tuple[float, float]) -> tuple[float, float] | None:
    """Returns two cosines, the larger first, that bracket a range of pooled false accept rates.

    None if many distances tie, or if the sample has only one class. Estimated from all pairs of a sample of rows and
    widened by five standard errors; the same on all ranks.
    """
    count = len(pairs.unit)
    size = min(count, max(_FEWEST_SAMPLED, min(_MOST_SAMPLED, count // 32)))
    chosen = torch.randperm(count, generator=torch.Generator().manual_seed(0))[:size].to(pairs.unit.device)
    index = pairs.index[chosen]
    cosines = pairs.unit[chosen] @ pairs.other[chosen].T
    negative = index[:, None] != index
    values = cosines[negative.triu(1)]
    if not len(values):
        return None
    per_row = negative.sum(dim=1).clamp_min(1)
    cosines.masked_fill_(~negative, -torch.inf)
    ascending = values.sort().values
    ends = []
    for far, sign in zip(far_range, (-1, 1), strict=True):
        rank = min(max(1, round(far * len(values))), len(values))
        # Pairs that share a row are not independent, so the error comes from the rates of the rows.
        rates = (cosines >= ascending[-rank]).sum(dim=1) / per_row
        error = _STANDARD_ERRORS * (2 * float(rates.std()) / len(cosines) ** 0.5 + (far / len(values)) ** 0.5)
        rank = round((far + sign * error) * len(values))
        if rank < 1:
            ends.append(1.001)
        elif rank > len(values):
            ends.append(-1.001)
        else:
            ends.append(float(ascending[-rank]))
    high, low = ends
    some = values[(values >= low) & (values <= high)][:_COMPARED]
    if len(some.unique()) < _DISTINCT * len(some):
        high = low
    if pairs.group is not None:  # all ranks need the same bins, even if their machines round differently
        shared = torch.tensor([high, low], dtype=torch.float64, device=pairs.unit.device)
        dist.broadcast(shared, dist.get_global_rank(pairs.group, 0), group=pairs.group)
        high, low = shared.tolist()
    return None if high == low else (high, low)


# Bins per class: as many as fit in the cache for the classes of a block, more for small sets, which need them, and no
# more than fit in memory.
_COUNTERS_OF_A_BLOCK, _COUNTERS = 2**17, 2**24
_FEWEST_BINS, _MOST_BINS = 256, 2**13
# For N samples, an OPIS of 2e-4 and rates of 0.01 to 0.1, 1.5e11 / N² bins give a relative error of 5e-6. This includes
# a reserve: with too few bins the set is recounted exactly, which takes four times as long.
_BINS_BY_SQUARED_SAMPLES = 2.5e11
# Pooled counts divide each bin into parts, to locate the pairs inside it. N samples need 5e12 / N² parts, each with a
# few pairs, to place the ends of the range within the rounding of distances.
_PARTS, _PARTS_BY_SQUARED_SAMPLES, _PAIRS_A_PART = 2**16, 6e12, 4
# Bins narrower than this many units in the last place of a cosine would count rounding errors.
_ULPS_A_BIN = 8
_CLASSES_AT_ONCE = 256


class NegativeHistogram(NamedTuple):
    """Counts of the negative pairs in bins of cosine, the most similar first."""

    top: float  # cosine at which bin 1 begins; bin 0 has all pairs more similar than that
    width: float  # of a bin, in cosine
    kept: Tensor  # (T,) mask of the classes with a row; the others are only in the pooled counts
    by_class: Tensor  # (rows, bins) this rank's counts; a pair counts for both its classes
    pooled: Tensor  # (bins × parts of a bin,) counts of all ranks
    log_parts: int  # a bin has 2 to this power parts, at least 8
    group: dist.ProcessGroup | None

    @property
    def parts(self) -> int:
        return 1 << self.log_parts

    def distance_at(self, rank: int) -> tuple[float, float] | None:
        """Interpolate the rank-th smallest negative distance, and its standard error; None outside the bins."""
        up_to = self.pooled.cumsum(0)
        if not int(up_to[self.parts - 1]) < rank <= int(up_to[-1]):
            return None
        part = int(torch.searchsorted(up_to, rank))
        count = int(self.pooled[part])
        inside = (rank - int(up_to[part - 1]) - 0.5) / count
        cosine = self.top - self.width * ((part + inside) / self.parts - 1)
        distance = max(0.0, 2 - 2 * cosine) ** 0.5
        # Pairs lie randomly inside the part; the derivative of the distance by the cosine is −1 / distance.
        error = self.width / self.parts / max(distance, 1e-6) * (self.clumping() / (6 * count)) ** 0.5
        return distance, error

    def accepted(self, thresholds: Tensor) -> Tensor:
        """Returns (rows, M) float64 counts of each kept class's negative pairs within M distances, over all ranks.

        Inside a bin, the pairs of a class are assumed to be distributed like all pairs.
        """
        place = 1 + (self.top - (1 - thresholds.double().square() / 2)) / self.width
        bin_ = place.long().clamp(1, self.by_class.shape[1] - 1)
        pooled = torch.nn.functional.pad(self.pooled.cumsum(0), (1, 0)).double()
        start, end = pooled[bin_ * self.parts], pooled[(bin_ + 1) * self.parts]
        part = (place * self.parts).long().clamp(0, len(self.pooled) - 1)
        at = torch.lerp(pooled[part], pooled[part + 1], (place * self.parts - part).clamp(0, 1))
        inside = ((at - start) / (end - start).clamp_min(1)).clamp(0, 1)
        counts = [  # the split bounds the memory of the sums
            torch.stack([rows.cumsum(1)[:, bin_ - 1], rows[:, bin_].long()])
            for rows in self.by_class.split(_CLASSES_AT_ONCE)
        ]
        # Counts are summed over the ranks before interpolation: rounding each rank's share would change the sum.
        before, in_bin = sum_over_ranks(torch.cat(counts, dim=1), self.group).unbind()
        return before + inside * in_bin

    def clumping(self) -> float:
        """Returns variance / mean of the counts in eighths of bins: about 1, or m if distances tie in groups of m."""
        eighths = self.pooled.view(-1, 8, self.parts // 8)[1:].sum(dim=2).double()
        spread = (eighths - eighths.mean(dim=1, keepdim=True)).square().sum() / 7 * 8
        return max(1.0, float(spread / eighths.sum().clamp_min(1)))


def make_negative_histogram(
    pairs: PairDistances, far_range: tuple[float, float], kept: Tensor
) -> NegativeHistogram | None:
    """Count the negative pairs between two pooled false accept rates in one pass, shared by the group's ranks.

    kept: (T,) bool, the classes to count. None if the range is too narrow for bins or many distances tie.
    """
    with full_precision(pairs.unit.device):
        bracket = calibration_bracket(pairs, far_range)
        if bracket is None:
            return None
        top, bottom = bracket
        bins = _bin_count(pairs, int(kept.sum()), top - bottom)
        if bins < _FEWEST_BINS:
            return None
        filled = int(far_range[1] * pairs.total_negative_pairs) // _PAIRS_A_PART
        parts = max(_PARTS, min(filled, int(_PARTS_BY_SQUARED_SAMPLES / len(pairs.unit) ** 2)))
        log_parts = max(3, ((parts - 1) // bins).bit_length())
        # The last row collects the classes that are not kept and is never read.
        by_class = _counters((int(kept.sum()) + 1, bins + 1), int(pairs.negative_pairs[kept].max()), pairs)
        pooled = _counters(((bins + 1) << log_parts,), pairs.total_negative_pairs, pairs)
        histogram = NegativeHistogram(top, (top - bottom) / bins, kept, by_class, pooled, log_parts, pairs.group)
        _count_pairs(pairs, histogram, bottom)
    return histogram._replace(by_class=by_class[:-1], pooled=sum_over_ranks(pooled.long(), pairs.group))


def _count_pairs(pairs: PairDistances, histogram: NegativeHistogram, bottom: float) -> None:
    """Count this rank's negative pairs with cosine >= bottom, pooled and for both of their classes."""
    kept, by_class, pooled = histogram.kept, histogram.by_class, histogram.pooled
    row = torch.where(kept, kept.cumsum(0) - 1, len(by_class) - 1)
    first_counter = (row * by_class.shape[1]).int()[pairs.index]
    scale = histogram.parts / histogram.width
    shift = histogram.parts + scale * histogram.top
    for block in pairs.blocks():
        is_counted = block.cosines >= bottom
        if block.mixed:
            is_counted &= pairs.negative_mask(block)
        flat, row, column = true_places(is_counted)
        cosines = block.cosines.view(-1)[flat]
        parts = cosines.mul_(-scale).add_(shift).clamp_(0, len(pooled) - 1).int()
        # In place: bincount would clear and add as many counters as there are pairs.
        pooled.index_add_(0, parts, pooled.new_ones(len(parts)))
        parts >>= histogram.log_parts
        for counter in (first_counter[block.rows][row], first_counter[block.columns][column]):
            by_class.view(-1).index_add_(0, counter.add_(parts), by_class.new_ones(len(parts)))


def _counters(shape: tuple[int, ...], largest: int, pairs: PairDistances) -> Tensor:
    """Returns zeroed counters, 32-bit if the largest count fits, so that twice as many fit in the cache."""
    return torch.zeros(shape, dtype=torch.int32 if largest < 2**31 else torch.int64, device=pairs.unit.device)


def _bin_count(pairs: PairDistances, rows: int, cosine_range: float) -> int:
    count = len(pairs.unit)
    in_cache, enough = _COUNTERS_OF_A_BLOCK * count // (SIDE * rows), int(_BINS_BY_SQUARED_SAMPLES / count**2)
    bins = min(max(in_cache, enough), _COUNTERS // rows)
    bins = min(_MOST_BINS, max(_FEWEST_BINS, bins))
    return min(bins, int(cosine_range / (_ULPS_A_BIN * torch.finfo(pairs.unit.dtype).eps)))
