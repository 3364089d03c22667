"""Negative pairs of every class counted in one pass, in fine bins around the distances that matter.

A sample of the set tells which distances those are (`calibration_bracket`); the pairs within them are counted in bins
of cosine, by class and pooled (`make_negative_histogram`), off which counts at any threshold between are read
(`NegativeHistogram`).
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch import distributed as dist

from pml_ext._ops.blocks import SIDE
from pml_ext._ops.distributed import sum_over_ranks
from pml_ext._ops.precision import full_precision
from pml_ext.functional.operating_points.bracket import calibration_bracket
from pml_ext.functional.operating_points.counting import Bins, count_pairs
from pml_ext.functional.pairwise.pair_distances import PairDistances

# A class's bins are read at thresholds anywhere between their edges: as many of them as stay in a processor's cache
# with the classes of a block, more for small sets, which need them; and no more than memory allows.
_COUNTERS_OF_A_BLOCK, _COUNTERS = 2**17, 2**24
_FEWEST_BINS, _MOST_BINS = 256, 2**13
# 1.5e11 / N² bins read an OPIS of 2e-4 of N samples, between rates of 0.01 and 0.1, to 5e-6 of itself. Some more are
# made: a set with too few is counted again, exactly, which takes four times as long.
_BINS_BY_SQUARED_SAMPLES = 2.5e11
# The pooled counts are kept in parts of a bin: they tell where in a bin the pairs lie. N samples need 5e12 / N² parts
# to place the ends of the range within the rounding of distances, and some pairs in each of them.
_PARTS, _PARTS_BY_SQUARED_SAMPLES, _PAIRS_A_PART = 2**16, 6e12, 4
# Bins narrower than this many units in the last place of a cosine would count its rounding.
_ULPS_A_BIN = 8
_CLASSES_AT_ONCE = 256


class NegativeHistogram(NamedTuple):
    """Counts of the negative pairs in bins of cosine, the most similar first.

    top: cosine at which bin 1 begins; bin 0 holds all pairs more similar than that.
    width: of a bin, in cosine.
    kept: (T,) which classes have a row; the others are in the pooled counts alone.
    by_class: (rows, bins) this rank's counts; a pair counts for both of its classes.
    pooled: (bins × parts of a bin,) counts of all ranks.
    log_parts: the parts of a bin are 2 to this power, at least 16.
    """

    top: float
    width: float
    kept: Tensor
    by_class: Tensor
    pooled: Tensor
    log_parts: int
    group: dist.ProcessGroup | None

    @property
    def parts(self) -> int:
        return 1 << self.log_parts

    def distance_at(self, rank: int) -> tuple[float, float] | None:
        """The rank-th smallest negative distance, linear inside a part of a bin, and its standard error.

        None where it lies outside the bins.
        """
        up_to = self.pooled.cumsum(0)
        if not int(up_to[self.parts - 1]) < rank <= int(up_to[-1]):
            return None
        part = int(torch.searchsorted(up_to, rank))
        count = int(self.pooled[part])
        inside = (rank - int(up_to[part - 1]) - 0.5) / count
        cosine = self.top - self.width * ((part + inside) / self.parts - 1)
        distance = max(0.0, 2 - 2 * cosine) ** 0.5
        # Where in the part its pairs lie is chance; a distance changes by 1 / distance as the cosine does.
        error = self.width / self.parts / max(distance, 1e-6) * (self.clumping() / (6 * count)) ** 0.5
        return distance, error

    def accepted(self, thresholds: Tensor) -> Tensor:
        """How many negative pairs of each kept class lie within each threshold; inside a bin as all pairs do.

        Args:
            thresholds: (M,) distances inside the bins.
        Returns:
            (rows, M) float64, of all ranks.
        """
        place = 1 + (self.top - (1 - thresholds.double().square() / 2)) / self.width
        bin_ = place.long().clamp(1, self.by_class.shape[1] - 1)
        pooled = torch.nn.functional.pad(self.pooled.cumsum(0), (1, 0)).double()
        start, end = pooled[bin_ * self.parts], pooled[(bin_ + 1) * self.parts]
        part = (place * self.parts).long().clamp(0, len(self.pooled) - 1)
        at = torch.lerp(pooled[part], pooled[part + 1], (place * self.parts - part).clamp(0, 1))
        inside = ((at - start) / (end - start).clamp_min(1)).clamp(0, 1)
        counts = []
        for rows in self.by_class.split(_CLASSES_AT_ONCE):  # one piece of the sums at a time
            up_to = rows.cumsum(1)
            counts.append(up_to[:, bin_ - 1] + inside * rows[:, bin_])
        return sum_over_ranks(torch.cat(counts), self.group)

    def clumping(self) -> float:
        """Overdispersion of the counts: their variance over their mean, in eighths of bins.

        About 1 for distances in general position, m where they come in groups of m equal ones.
        """
        eighths = self.pooled.view(-1, 8, self.parts // 8)[1:].sum(dim=2).double()
        spread = (eighths - eighths.mean(dim=1, keepdim=True)).square().sum() / 7 * 8
        return max(1.0, float(spread / eighths.sum().clamp_min(1)))


def make_negative_histogram(
    pairs: PairDistances, far_range: tuple[float, float], kept: Tensor
) -> NegativeHistogram | None:
    """One pass over all pairs: the negative ones between two false accept rates, counted.

    Pairs beyond the bins, nine in ten at a rate of 0.1, are passed over by a comparison.

    Args:
        pairs: whose; a rank of its group takes its share.
        far_range: the rates, of all negative pairs pooled, that the bins should span.
        kept: (T,) bool, the classes to count for.
    Returns:
        None where the range is too narrow for bins (collapsed embeddings) or many distances are equal: count exactly.
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
        # The last row is of the classes not kept; it is never read.
        by_class = _counters((int(kept.sum()) + 1, bins + 1), int(pairs.negative_pairs[kept].max()), pairs)
        pooled = _counters(((bins + 1) << log_parts,), pairs.total_negative_pairs, pairs)
        width = (top - bottom) / bins
        row = torch.where(kept, kept.cumsum(0) - 1, len(by_class) - 1)
        cells = (row * (bins + 1)).int()[pairs.index]
        count_pairs(pairs, Bins(top, bottom, width, log_parts), cells, by_class.view(-1), pooled)
    pooled = sum_over_ranks(pooled.long(), pairs.group)
    return NegativeHistogram(top, width, kept, by_class[:-1], pooled, log_parts, pairs.group)


def _counters(shape: tuple[int, ...], largest: int, pairs: PairDistances) -> Tensor:
    """Zeros, of 32 bits where the largest count fits: twice as many stay in the cache."""
    return torch.zeros(shape, dtype=torch.int32 if largest < 2**31 else torch.int64, device=pairs.unit.device)


def _bin_count(pairs: PairDistances, rows: int, cosine_range: float) -> int:
    count = len(pairs.unit)
    in_cache, enough = _COUNTERS_OF_A_BLOCK * count // (SIDE * rows), int(_BINS_BY_SQUARED_SAMPLES / count**2)
    bins = min(max(in_cache, enough), _COUNTERS // rows)
    bins = min(_MOST_BINS, max(_FEWEST_BINS, bins))
    return min(bins, int(cosine_range / (_ULPS_A_BIN * torch.finfo(pairs.unit.dtype).eps)))
