"""The range of distances in which OPIS compares classes: where the pooled false accept rate reaches two rates."""

import math
from collections.abc import Sequence

from torch import Tensor

from pml_ext.functional.operating_points.histogram_curves import curves_from_bins
from pml_ext.functional.operating_points.negative_counts import negative_histogram
from pml_ext.functional.operating_points.utility import UtilityCurves, curves_of_counts, merged_grids
from pml_ext.functional.pairwise.pair_distances import PairDistances
from pml_ext.functional.pairwise.sampled import SampledPairDistances

# Up to this many samples exact counts take less than half a second.
_COUNTED_EXACTLY = 4096


class TooFewClassesError(ValueError):
    """Fewer than two classes have positive and negative pairs: no spread between classes to measure."""


class TooFewPairsError(TooFewClassesError):
    """Fewer negative pairs than a false accept rate needs: not one of them could be accepted at it."""


def check_far_range_and_grid(far_range: tuple[float, float], grid: int) -> None:
    low, high = far_range
    if not 0 < low < high <= 1:
        raise ValueError(f"far_range must be two ascending rates in (0, 1]; got {far_range!r}")
    if grid < 10:
        raise ValueError(f"grid must be at least 10 thresholds; got {grid!r}")


def curves_of_pairs(
    pairs: PairDistances, *, far_range: tuple[float, float], grid: int, exact: bool = False
) -> UtilityCurves:
    """`utility_curves` over the calibration range, of pairs that other statistics are taken from too."""
    return calibrated_curves(pairs, far_ranges=[far_range], grid=grid, exact=exact)[0]


def calibrated_curves(
    pairs: PairDistances, *, far_ranges: Sequence[tuple[float, float]], grid: int, exact: bool = False
) -> list[UtilityCurves]:
    """`utility_curves` over several calibration ranges."""
    kept = measurable(pairs)
    ranks = [k for far_range in far_ranges for k in ranks_of_rates(pairs, far_range, required=True)]
    sampled = isinstance(pairs, SampledPairDistances)
    if not (exact or sampled) and len(pairs.unit) > _COUNTED_EXACTLY:
        lows, highs = zip(*far_ranges, strict=True)
        histogram = negative_histogram(pairs, (min(lows), max(highs)), kept)
        if histogram is not None and (curves := curves_from_bins(pairs, histogram, ranks, grid)) is not None:
            return curves
    ends = pairs.negative_distances_at(ranks).view(-1, 2)
    grids, merged, places = merged_grids(ends, grid)
    positives, negatives = pairs.accepted(merged)
    return [
        curves_of_counts(pairs, kept, thresholds, positives[kept][:, place], negatives[kept][:, place], end)
        for thresholds, place, end in zip(grids, places, ends, strict=True)
    ]


def measurable(pairs: PairDistances) -> Tensor:
    """(T,) bool: the classes with positive and negative pairs."""
    kept = (pairs.positive_pairs > 0) & (pairs.negative_pairs > 0)
    if int(kept.sum()) < 2:
        raise TooFewClassesError(
            "OPIS needs at least 2 classes with a positive and a negative pair (2 samples each); "
            f"got {int(kept.sum())} of {len(kept)} classes"
        )
    return kept


def ranks_of_rates(pairs: PairDistances, far_range: tuple[float, float], *, required: bool = False) -> list[int]:
    """The smallest number of accepted negative pairs that reaches each rate; 0 for a rate below one of them."""
    total = pairs.total_negative_pairs
    if required and far_range[0] * total < 1:
        raise TooFewPairsError(
            f"far_range {far_range!r} needs at least {math.ceil(1 / far_range[0])} negative pairs, for one of them to "
            f"be accepted at the lower rate; got {total}. Raise the rate or measure more samples"
        )
    return [_smallest_count_reaching(far, total) if far * total >= 1 else 0 for far in far_range]


def _smallest_count_reaching(rate: float, total: int) -> int:
    """The smallest k >= 1 with k / total >= rate, free of the rounding of rate * total."""
    k = max(1, int(rate * total))
    return k + (k / total < rate)
