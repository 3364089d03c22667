"""Negative pairs of every class counted in one pass, in fine bins around the distances that matter.

A sample of the set tells which distances those are (`calibration_bracket`); a comparison finds the pairs within them
(`SimilarPairFinder`); they are counted in bins of cosine, by class and pooled (`negative_histogram`), off which counts
at any threshold between are read (`NegativeHistogram`).
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch import distributed as dist

from pml_ext._ops.blocks import SIDE
from pml_ext._ops.distributed import sum_over_ranks
from pml_ext._ops.precision import full_precision
from pml_ext.functional.pairwise.pair_blocks import Block
from pml_ext.functional.pairwise.pair_distances import PairDistances

# A class's bins are read at thresholds anywhere between their edges: as many of them as stay in a processor's cache
# with the classes of a block, more for small sets, which need them; and no more than memory allows.
_COUNTERS_OF_A_BLOCK, _COUNTERS = 2**17, 2**24
_FEWEST_BINS, _MOST_BINS = 256, 4096
# 1.5e11 / N² bins read an OPIS of 2e-4 of N samples, between rates of 0.01 and 0.1, to 5e-6 of itself. Some more are
# made: a set with too few is counted again, exactly, which takes four times as long.
_BINS_BY_SQUARED_SAMPLES = 2.5e11
# The pooled counts are kept in parts of a bin: they tell where in a bin the pairs lie. N samples need 5e12 / N² parts
# to place the ends of the range within the rounding of distances, and some pairs in each of them.
_PARTS, _PARTS_BY_SQUARED_SAMPLES, _PAIRS_A_PART = 2**16, 6e12, 4
# Bins narrower than this many units in the last place of a cosine would count its rounding.
_ULPS_A_BIN = 8
_CLASSES_AT_ONCE = 1024
_FEWEST_SAMPLED, _MOST_SAMPLED = 512, 2048
_STANDARD_ERRORS = 5
# Chance alone makes one in a thousand of so many distances equal.
_LOOKED_AT_FOR_COPIES, _DISTINCT = 2**14, 0.9
# numpy searches a mask three times faster where more than a tenth of it is true; below this share its other way wins.
_DENSE, _SPARSE = 0.1, 0.04


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


def negative_histogram(pairs: PairDistances, far_range: tuple[float, float], kept: Tensor) -> NegativeHistogram | None:
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
        histogram = NegativeHistogram(top, (top - bottom) / bins, kept, by_class[:-1], pooled, log_parts, pairs.group)
        _count(pairs, bottom, histogram, by_class)
    return histogram._replace(pooled=sum_over_ranks(pooled.long(), pairs.group))


def _counters(shape: tuple[int, ...], largest: int, pairs: PairDistances) -> Tensor:
    """Zeros, of 32 bits where the largest count fits: twice as many stay in the cache."""
    return torch.zeros(shape, dtype=torch.int32 if largest < 2**31 else torch.int64, device=pairs.unit.device)


def _bin_count(pairs: PairDistances, rows: int, cosine_range: float) -> int:
    count = len(pairs.unit)
    in_cache, enough = _COUNTERS_OF_A_BLOCK * count // (SIDE * rows), int(_BINS_BY_SQUARED_SAMPLES / count**2)
    bins = min(max(in_cache, enough), _COUNTERS // rows)
    bins = min(_MOST_BINS, max(_FEWEST_BINS, bins))
    return min(bins, int(cosine_range / (_ULPS_A_BIN * torch.finfo(pairs.unit.dtype).eps)))


def _count(pairs: PairDistances, bottom: float, histogram: NegativeHistogram, by_class: Tensor) -> None:
    """Add this rank's blocks to the histogram, whose counts by class are all but the last row of by_class."""
    kept, width = histogram.kept, by_class.shape[1]
    row = torch.where(kept, kept.cumsum(0) - 1, len(by_class) - 1)
    finder = SimilarPairFinder(pairs, bottom, (row * width).int()[pairs.index])
    scale = histogram.parts / histogram.width
    shift = histogram.parts + scale * histogram.top
    ones = torch.ones(0, dtype=histogram.pooled.dtype, device=kept.device)
    ones_by_class = ones.to(by_class.dtype)
    for block in pairs.blocks():
        cosines, *cells = finder.find(block)
        parts = cosines.mul_(-scale).add_(shift).clamp_(0, len(histogram.pooled) - 1).int()
        if len(parts) > len(ones):
            ones = torch.ones(block.cosines.numel(), dtype=ones.dtype, device=parts.device)
            ones_by_class = ones.to(by_class.dtype)
        # In place: bincount would clear and then add as many counters as there are pairs.
        histogram.pooled.index_add_(0, parts, ones[: len(parts)])
        parts >>= histogram.log_parts
        for cell in cells:
            by_class.view(-1).index_add_(0, cell.add_(parts), ones_by_class[: len(parts)])


def calibration_bracket(pairs: PairDistances, far_range: tuple[float, float]) -> tuple[float, float] | None:
    """The cosines, the larger first, at which the pooled rates surely lie below and above the range.

    From all pairs among a sample of the rows, widened by five standard errors; the same on all ranks.

    Args:
        far_range: two false accept rates of all negative pairs pooled.
    Returns:
        None where many of the sample's distances are equal.
    """
    count = len(pairs.unit)
    size = min(count, max(_FEWEST_SAMPLED, min(_MOST_SAMPLED, count // 32)))
    chosen = torch.randperm(count, generator=torch.Generator().manual_seed(0))[:size].to(pairs.unit.device)
    unit, index = pairs.unit[chosen], pairs.index[chosen]
    cosines = unit @ unit.T
    negative = index[:, None] != index
    values = cosines[negative.triu(1)]
    per_row = negative.sum(dim=1).clamp_min(1)
    ends = []
    for far, sign in zip(far_range, (-1, 1), strict=True):
        rank = min(max(1, round(far * len(values))), len(values))
        found = values.kthvalue(len(values) - rank + 1).values
        # Pairs that share a row are no independent draws: the error is that of the rows' own rates.
        rates = ((cosines >= found) & negative).sum(dim=1) / per_row
        error = _STANDARD_ERRORS * (2 * float(rates.std()) / size**0.5 + (far / len(values)) ** 0.5)
        rank = round((far + sign * error) * len(values))
        if rank < 1:
            ends.append(1.001)
        elif rank > len(values):
            ends.append(-1.001)
        else:
            ends.append(float(values.kthvalue(len(values) - rank + 1).values))
    some = values[(values >= ends[1]) & (values <= ends[0])][:_LOOKED_AT_FOR_COPIES]
    if len(some.unique()) < _DISTINCT * len(some):
        ends = [0.0, 0.0]
    if pairs.group is not None:  # the bins must be the same everywhere, whatever rounding does on other machines
        shared = torch.tensor(ends, dtype=torch.float64, device=pairs.unit.device)
        dist.broadcast(shared, dist.get_global_rank(pairs.group, 0), group=pairs.group)
        ends = shared.tolist()
    return None if ends[0] == ends[1] else (ends[0], ends[1])


class SimilarPairs(NamedTuple):
    """Negative pairs, each once.

    cosines: (P,), in the order of the block.
    rows, columns: (P,) int32 values of the pairs' samples, as asked for.
    """

    cosines: Tensor
    rows: Tensor
    columns: Tensor


class SimilarPairFinder:
    """Finds the negative pairs at or above a cosine, block after block, in the same memory.

    Args:
        pairs: whose blocks.
        bottom: the least similar cosine that counts.
        values: (N,) int32, a value for each sample, in the order of `pairs.unit`.
    """

    def __init__(self, pairs: PairDistances, bottom: float, values: Tensor) -> None:
        self._bottom, self._values = bottom, values
        self._class_end = pairs.class_end  # the negative pairs of a row, above the diagonal, begin there
        self._mask = np.empty(0, bool)
        self._share = _DENSE  # of the last block's pairs that were found; the next one's is close to it

    def find(self, block: Block) -> SimilarPairs:
        return self._on_device(block) if block.cosines.is_cuda else self._on_host(block)

    def _on_device(self, block: Block) -> SimilarPairs:
        similar = block.cosines >= self._bottom
        if block.mixed:
            columns = torch.arange(block.columns.start, block.columns.stop, device=similar.device)
            similar &= columns >= self._class_end[block.rows, None]
        row, column = similar.nonzero(as_tuple=True)
        return SimilarPairs(
            block.cosines[row, column], self._values[block.rows][row], self._values[block.columns][column]
        )

    def _on_host(self, block: Block) -> SimilarPairs:
        height, width = block.cosines.shape
        cosines = block.cosines.numpy().reshape(-1)
        found = self._search(cosines)
        starts = np.arange(height + 1) * width
        per_row = np.diff(np.searchsorted(found, starts))
        column = found - np.repeat(starts[:-1], per_row)
        values = self._values.numpy()
        row_value = np.repeat(values[block.rows], per_row)
        if block.mixed:
            negative = column >= np.repeat(self._class_end.numpy()[block.rows] - block.columns.start, per_row)
            found, column, row_value = found[negative], column[negative], row_value[negative]
        similar = cosines.take(found), row_value, values[block.columns].take(column)
        return SimilarPairs(*(torch.from_numpy(each) for each in similar))

    def _search(self, cosines: np.ndarray) -> np.ndarray:
        """Flat places at or above the bottom, ascending, int64."""
        size = len(cosines)
        if len(self._mask) < size:
            self._mask = np.empty(size + size // 8 + 16, bool)
        np.greater_equal(cosines, self._bottom, out=self._mask[:size])
        filled = size
        if _SPARSE < self._share <= _DENSE:  # made dense by a true tail
            filled += int((_DENSE - self._share) * size / (1 - _DENSE)) + 8
            self._mask[size:filled] = True
        found = np.flatnonzero(self._mask[:filled])
        count = len(found) - (filled - size)
        self._share = count / size
        return found[:count]
