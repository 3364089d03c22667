"""Negative pairs of every class counted in one pass, in fine bins around the distances that matter."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch import distributed as dist

from pml_ext.functional.pair_statistics import Block, PairDistances, true_places
from pml_ext.functional.precision import full_precision
from pml_ext.functional.process_group import sum_over_ranks

# A class's bins are read at thresholds anywhere between their edges: as many of them as memory allows, and as stay
# in a processor's cache with the classes of a block.
_COUNTERS, _COUNTERS_OF_A_BLOCK, _ROWS_OF_A_BLOCK = 2**24, 2**17, 1024
_FEWEST_BINS, _MOST_BINS = 256, 4096
# The pooled counts are kept in parts of a bin: they tell where in a bin the pairs lie.
_LOG_PARTS_OF_ALL_BINS = 16
# Bins narrower than this many units in the last place of a cosine would count its rounding.
_ULPS_A_BIN = 8
_FEWEST_SAMPLED, _MOST_SAMPLED = 512, 2048
_STANDARD_ERRORS = 5
_CLASSES_AT_ONCE = 1024


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
        return 2**self.log_parts

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
        """How many pairs share one distance, as it were: the variance over the mean of the counts in eighths of bins.

        About 1 for distances in general position, m where they come in groups of m equal ones.
        """
        eighths = self.pooled.view(-1, 8, self.parts // 8)[1:].sum(dim=2).double()
        spread = (eighths - eighths.mean(dim=1, keepdim=True)).square().sum() / 7 * 8
        return max(1.0, float(spread / eighths.sum().clamp_min(1)))


def negative_histogram(pairs: PairDistances, far_range: tuple[float, float], kept: Tensor) -> NegativeHistogram | None:
    """One pass over all pairs: the negative ones between two false accept rates, counted.

    The bins' range comes from a sample of the set, widened by five standard errors. Pairs beyond it, nine in ten at a
    rate of 0.1, are passed over by a comparison.

    Args:
        pairs: whose; a rank of its group takes its share.
        far_range: the rates, of all negative pairs pooled, that the bins should span.
        kept: (T,) bool, the classes to count for.
    Returns:
        None where the range is too narrow for bins (collapsed embeddings): count exactly then.
    """
    with full_precision(pairs.unit.device):
        top, bottom = _cosine_range(pairs, far_range)
        rows = int(kept.sum())
        in_cache = _COUNTERS_OF_A_BLOCK * len(pairs.unit) // (_ROWS_OF_A_BLOCK * rows)
        bins = min(_MOST_BINS, max(_FEWEST_BINS, min(in_cache, _COUNTERS // rows)))
        bins = min(bins, int((top - bottom) / (_ULPS_A_BIN * torch.finfo(pairs.unit.dtype).eps)))
        if bins < _FEWEST_BINS:
            return None
        log_parts = _LOG_PARTS_OF_ALL_BINS - bins.bit_length() + 1
        largest = int(pairs.negative_pairs.max())
        by_class = torch.zeros(
            (rows, bins + 1), dtype=torch.int32 if largest < 2**31 else torch.int64, device=pairs.unit.device
        )
        pooled = torch.zeros((bins + 1) << log_parts, dtype=torch.int64, device=pairs.unit.device)
        histogram = NegativeHistogram(top, (top - bottom) / bins, kept, by_class, pooled, log_parts, pairs.group)
        counter = _Counter(pairs, histogram)
        for block in pairs.blocks():
            counter.add(block, bottom)
        sum_over_ranks(pooled, pairs.group)
    return histogram


class _Counter:
    """Adds blocks of pairs to a histogram."""

    def __init__(self, pairs: PairDistances, histogram: NegativeHistogram) -> None:
        self._pairs, self._histogram = pairs, histogram
        kept = histogram.kept
        # The row of a sample's class; for a class without a row the row after the previous one's, and "counted" is 0.
        self._first_row = (kept.cumsum(0) - kept.long()).cpu()
        self._kept = kept.cpu()
        self._row = (kept.cumsum(0) - kept.long()).int()[pairs.index]
        self._counted = None if bool(self._kept.all()) else kept[pairs.index]

    def add(self, block: Block, bottom: float) -> None:
        cosines, histogram = block.cosines, self._histogram
        flat, row, column = true_places(cosines >= bottom if cosines.is_cuda else _at_least(cosines, bottom))
        values = cosines.view(-1).index_select(0, flat)
        if block.mixed:
            index = self._pairs.index
            negative = index[block.rows].index_select(0, row) != index[block.columns].index_select(0, column)
            if block.diagonal:
                negative &= column > row
            values, row, column = values[negative], row[negative], column[negative]
        scale = histogram.parts / histogram.width
        parts = values.sub_(histogram.top).mul_(-scale).add_(histogram.parts).clamp_(0, len(histogram.pooled) - 1).int()
        _count_cells(histogram.pooled, parts)
        bins = parts >> histogram.log_parts
        for side, place in ((block.rows, row), (block.columns, column)):
            self._add_side(side, place, bins)

    def _add_side(self, side: slice, place: Tensor, bins: Tensor) -> None:
        low, last = (int(c) for c in self._pairs.classes_of(side))
        first_row, end_row = int(self._first_row[low]), int(self._first_row[last - 1]) + int(self._kept[last - 1])
        if first_row == end_row:
            return
        if self._counted is not None:
            counted = self._counted[side].index_select(0, place)
            place, bins = place[counted], bins[counted]
        into = self._histogram.by_class[first_row:end_row]
        offsets = (self._row[side] - first_row) * into.shape[1]
        _count_cells(into.view(-1), offsets.index_select(0, place).add_(bins))


def _count_cells(into: Tensor, cells: Tensor) -> None:
    """into[cell] += 1 for each of the cells."""
    if cells.is_cuda:  # bincount would wait for the device
        into.scatter_add_(0, cells.long(), torch.ones_like(cells, dtype=into.dtype))
    else:
        into.add_(torch.bincount(cells, minlength=len(into)))


def _at_least(cosines: Tensor, bottom: float) -> Tensor:
    return torch.from_numpy(cosines.numpy() >= bottom)  # several times faster than torch's comparison


def _cosine_range(pairs: PairDistances, far_range: tuple[float, float]) -> tuple[float, float]:
    """Cosines that surely enclose the calibration range, from all pairs among a sample of the rows."""
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
    if pairs.group is not None:  # the bins must be the same everywhere, whatever rounding does on other machines
        shared = torch.tensor(ends, dtype=torch.float64, device=pairs.unit.device)
        dist.broadcast(shared, dist.get_global_rank(pairs.group, 0), group=pairs.group)
        ends = shared.tolist()
    return ends[0], ends[1]
