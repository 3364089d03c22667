"""OPIS and ε-OPIS: how differently the classes of a test set behave at one distance threshold."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch import distributed as dist

from pml_ext._checks import check_in_range
from pml_ext.functional.pair_histograms import NegativeHistogram, negative_histogram
from pml_ext.functional.pair_statistics import PairDistances
from pml_ext.functional.sampled_pairs import SampledPairDistances

# Up to this many samples exact counts take less than half a second.
_COUNTED_EXACTLY = 4096
# The largest standard error of OPIS, as a share of it, that reading counts inside bins may leave.
_TOLERANCE = 5e-6


class TooFewClassesError(ValueError):
    """Fewer than two classes have positive and negative pairs: no spread between classes to measure."""


class TooFewPairsError(TooFewClassesError):
    """Fewer negative pairs than a false accept rate needs: not one of them could be accepted at it."""


class UtilityCurves(NamedTuple):
    """Utility of each measurable class against the distance threshold (a pair is accepted when distance <= threshold).

    thresholds: (M,) L2 distances between normalised embeddings, ascending.
    classes: (T,) ids of the classes with at least one positive and one negative pair, sorted.
    tpr, tnr: (T, M) sensitivity ψ and specificity φ, fractions, float64.
    utilities: (T, M) 2 φ ψ / (φ + ψ), 0 where φ + ψ = 0.
    calibration_range: (2,) the distances d_min, d_max at which the pooled FAR reaches the ends of far_range; nan
        where thresholds are given and the set has too few negative pairs for the rate.
    """

    thresholds: Tensor
    classes: Tensor
    tpr: Tensor
    tnr: Tensor
    utilities: Tensor
    calibration_range: Tensor


class OPISAtRange(NamedTuple):
    """The two scores over one calibration range, and the distances that bound it."""

    far_range: tuple[float, float]
    opis: float
    epsilon_opis: float
    d_min: float
    d_max: float


def utility_curves(
    embeddings: Tensor,
    labels: Tensor,
    *,
    far_range: tuple[float, float] = (1e-2, 1e-1),
    grid: int = 100,
    thresholds: Tensor | None = None,
    negatives_per_positive: int | None = None,
    seed: int = 0,
    exact: bool = False,
    group: dist.ProcessGroup | None = None,
) -> UtilityCurves:
    """Per-class utility over the calibration range, or at given thresholds.

    Args:
        embeddings: (N, D), finite; normalised here.
        labels: (N,) integer class ids.
        far_range: the two false accept rates, in (0, 1], that bound the calibration range; all negative pairs of
            the set pooled. Its ends are the smallest negative distances at which the rate reaches them.
        grid: number of thresholds, uniform in distance over the calibration range; at least 10.
        thresholds: (M,) ascending distances to use instead of the grid, to plot over the full range [0, 2].
        negatives_per_positive: None for all negative pairs; or how many to draw per positive pair (the paper: 10).
        seed: of the draw.
        exact: count every pair at every threshold, in three passes over the pairs. By default large sets take one
            pass: negative pairs are counted in narrow bins and read off between their edges, which moves OPIS by
            less than 1e-5 of itself; where the bins cannot promise that (few pairs, many equal distances), the exact
            count follows. Positive pairs, given thresholds and sampled pairs are always counted exactly.
        group: the ranks that share the work (`torch.distributed.group.WORLD` for all), each of which hands in the
            same embeddings and labels and gets the result. None: this process alone.
    Returns:
        UtilityCurves; `opis_of_curves` and `epsilon_opis_of_curves` read the two metrics off it.
    Raises:
        ValueError: grid below 10, far_range not ascending in (0, 1], thresholds not ascending, embeddings not finite.
        TooFewClassesError: (a ValueError) fewer than two classes with positive and negative pairs.
        TooFewPairsError: (a ValueError) the lower rate allows less than one of the negative pairs.
    Source: Zhang et al., arXiv 2307.04047, eq. 1.
        Paper: 10 sampled negatives per positive; here: all pairs unless asked for. Paper: no word on classes
        without positives (one sample); here: left out, their samples still serve as negatives.
    """
    check_far_range_and_grid(far_range, grid)
    pairs = _pairs(embeddings, labels, negatives_per_positive, seed, group)
    if thresholds is None:
        return curves_of_pairs(pairs, far_range=far_range, grid=grid, exact=exact)
    if thresholds.ndim != 1 or not len(thresholds) or bool((thresholds.diff() < 0).any()):
        raise ValueError(f"thresholds must be an ascending, non-empty (M,) tensor; got {tuple(thresholds.shape)}")
    kept = _measurable(pairs)
    ranks = _ranks(pairs, far_range)
    reached = [k > 0 for k in ranks]
    ends = torch.full((2,), torch.nan, dtype=pairs.unit.dtype, device=pairs.unit.device)
    if any(reached):
        ends[reached] = pairs.negative_distances_at([k for k in ranks if k])
    positives, negatives = pairs.accepted(thresholds)
    return _curves(pairs, kept, thresholds, positives[kept], negatives[kept], ends)


def opis_sensitivity(
    embeddings: Tensor,
    labels: Tensor,
    *,
    far_ranges: Sequence[tuple[float, float]],
    epsilon: float = 0.1,
    grid: int = 100,
    negatives_per_positive: int | None = None,
    seed: int = 0,
    exact: bool = False,
    group: dist.ProcessGroup | None = None,
) -> list[OPISAtRange]:
    """OPIS and ε-OPIS over several calibration ranges, from one pass over the pairs.

    Args:
        far_ranges: pairs of false accept rates; they may overlap.
        epsilon, others: see `epsilon_opis` and `utility_curves`.
    Returns:
        a row for each range, in the order given.
    Raises:
        ValueError: no far_ranges; see `utility_curves`.
    Source: Zhang et al., arXiv 2307.04047, Fig. 8.
    """
    check_in_range(epsilon, 0, 1, "epsilon")
    if not far_ranges:
        raise ValueError("far_ranges must hold at least one pair of false accept rates; got none")
    for far_range in far_ranges:
        check_far_range_and_grid(far_range, grid)
    pairs = _pairs(embeddings, labels, negatives_per_positive, seed, group)
    rows = []
    for far_range, curves in zip(
        far_ranges, calibrated_curves(pairs, far_ranges=far_ranges, grid=grid, exact=exact), strict=True
    ):
        score, gap = opis_of_curves(curves), epsilon_opis_of_curves(curves, epsilon)
        d_min, d_max = (float(end) for end in curves.calibration_range)
        rows.append(OPISAtRange((far_range[0], far_range[1]), float(score), float(gap), d_min, d_max))
    return rows


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
    kept = _measurable(pairs)
    ranks = [k for far_range in far_ranges for k in _ranks(pairs, far_range, required=True)]
    sampled = isinstance(pairs, SampledPairDistances)
    if not (exact or sampled) and len(pairs.unit) > _COUNTED_EXACTLY:
        lows, highs = zip(*far_ranges, strict=True)
        histogram = negative_histogram(pairs, (min(lows), max(highs)), kept)
        if histogram is not None and (curves := _read_off(pairs, histogram, ranks, grid)) is not None:
            return curves
    ends = pairs.negative_distances_at(ranks).view(-1, 2)
    grids, merged, places = _merged_grids(ends, grid)
    positives, negatives = pairs.accepted(merged)
    return [
        _curves(pairs, kept, thresholds, positives[kept][:, place], negatives[kept][:, place], end)
        for thresholds, place, end in zip(grids, places, ends, strict=True)
    ]


def _read_off(
    pairs: PairDistances, histogram: NegativeHistogram, ranks: list[int], grid: int
) -> list[UtilityCurves] | None:
    """Curves with the negative counts of a histogram; None where they would be off by too much."""
    found = [end for k in ranks if (end := histogram.distance_at(k)) is not None]
    if len(found) < len(ranks):
        return None
    ends, errors = torch.tensor(found, dtype=torch.float64, device=pairs.unit.device).view(-1, 2, 2).unbind(2)
    grids, merged, places = _merged_grids(ends, grid)
    positives = pairs.accepted(merged, positives_only=True)[0][histogram.kept]
    negatives = histogram.accepted(merged)
    result = []
    for thresholds, place, end, error in zip(grids, places, ends, errors, strict=True):
        counts = negatives[:, place]
        curves = _curves(pairs, histogram.kept, thresholds, positives[:, place], counts, end)
        # Where in a bin a class's pairs lie is chance: off by the root of a sixth of them, times their clumping.
        bins = (float(end[1] ** 2 - end[0] ** 2) / 2) / histogram.width
        if bins < grid / 10:
            return None
        in_a_bin = (counts[:, -1] - counts[:, 0]) / bins
        variance = histogram.clumping() / 6 * in_a_bin / pairs.negative_pairs[histogram.kept].square()
        step, off = float(thresholds[1] - thresholds[0]), float(error.max())
        # Distances are rounded as much as this: where a curve jumps is not known better by counting.
        jumps_off = off if off > torch.finfo(pairs.unit.dtype).eps * float(end[1]) else 0.0
        if _standard_error(curves, variance, off / step, jumps_off / step) > _TOLERANCE * opis_of_curves(curves):
            return None
        result.append(curves)
    return result


def _standard_error(curves: UtilityCurves, variance: Tensor, steps_off: float, jumps_off: float) -> float:
    """Of OPIS, where the curves are read off bins.

    Args:
        variance: (T,) of a class's specificity at one threshold; independent between thresholds.
        steps_off: standard error of the grid, in its steps.
        jumps_off: the same, as it matters to where a curve jumps.
    """
    off_mean = 2 * (curves.utilities - curves.utilities.mean(dim=0))
    from_counts = float((off_mean.square().mean(dim=1) * variance).mean() / off_mean.numel()) + float(
        variance.mean().square()
    )
    # A shifted grid moves all curves along; and where one jumps, it may jump a threshold earlier or later.
    change = off_mean[:, 1:] * curves.utilities.diff(dim=1)
    from_shift = (steps_off * float(change.mean())) ** 2 + jumps_off * float(change.square().mean()) / change.numel()
    return float((from_counts + from_shift) ** 0.5)


def _pairs(
    embeddings: Tensor,
    labels: Tensor,
    negatives_per_positive: int | None,
    seed: int,
    group: dist.ProcessGroup | None,
) -> PairDistances:
    if negatives_per_positive is None:
        return PairDistances(embeddings, labels, group=group)
    return SampledPairDistances(
        embeddings, labels, negatives_per_positive=negatives_per_positive, seed=seed, group=group
    )


def _measurable(pairs: PairDistances) -> Tensor:
    """(T,) bool: the classes with positive and negative pairs."""
    kept = (pairs.positive_pairs > 0) & (pairs.negative_pairs > 0)
    if int(kept.sum()) < 2:
        raise TooFewClassesError(
            "OPIS needs at least 2 classes with a positive and a negative pair (2 samples each); "
            f"got {int(kept.sum())} of {len(kept)} classes"
        )
    return kept


def _ranks(pairs: PairDistances, far_range: tuple[float, float], *, required: bool = False) -> list[int]:
    """The smallest number of accepted negative pairs that reaches each rate; 0 for a rate below one of them."""
    total = pairs.total_negative_pairs
    if required and far_range[0] * total < 1:
        raise TooFewPairsError(
            f"far_range {far_range!r} needs at least {math.ceil(1 / far_range[0])} negative pairs, for one of them to "
            f"be accepted at the lower rate; got {total}. Raise the rate or measure more samples"
        )
    return [_smallest_count_reaching(far, total) if far * total >= 1 else 0 for far in far_range]


def _merged_grids(ends: Tensor, grid: int) -> tuple[list[Tensor], Tensor, list[Tensor]]:
    """The grid of each range, the thresholds of all of them in ascending order, and where each grid's are there."""
    steps = torch.linspace(0, 1, grid, dtype=ends.dtype, device=ends.device)
    grids = [torch.lerp(low, high, steps) for low, high in ends]
    merged, places = torch.unique(torch.cat(grids), return_inverse=True)
    return grids, merged, list(places.split(grid))


def _curves(
    pairs: PairDistances, kept: Tensor, thresholds: Tensor, positives: Tensor, negatives: Tensor, ends: Tensor
) -> UtilityCurves:
    tpr = positives.double() / pairs.positive_pairs[kept, None]
    tnr = 1 - negatives.double() / pairs.negative_pairs[kept, None]
    return UtilityCurves(thresholds, pairs.classes[kept], tpr, tnr, utility_of_rates(tpr, tnr), ends)


def opis_of_curves(curves: UtilityCurves) -> Tensor:
    """OPIS of curves over the calibration range: see `opis`."""
    return (curves.utilities - curves.utilities.mean(dim=0)).square().mean()


def epsilon_opis_of_curves(curves: UtilityCurves, epsilon: float = 0.1) -> Tensor:
    """ε-OPIS of curves over the calibration range: see `epsilon_opis`."""
    check_in_range(epsilon, 0, 1, "epsilon")
    order = curves.utilities.mean(dim=1).argsort(stable=True)
    size = max(1, round(epsilon * len(order)))
    worst, best = (
        utility_of_rates(curves.tpr[group].mean(dim=0), curves.tnr[group].mean(dim=0))
        for group in (order[:size], order[-size:])
    )
    return (worst - best).square().mean()


def opis(
    embeddings: Tensor,
    labels: Tensor,
    *,
    far_range: tuple[float, float] = (1e-2, 1e-1),
    grid: int = 100,
    negatives_per_positive: int | None = None,
    seed: int = 0,
    exact: bool = False,
    group: dist.ProcessGroup | None = None,
) -> Tensor:
    """Operating-point inconsistency score: the variance of the utility between classes, lower is better.

    Args:
        embeddings, labels, far_range, grid, negatives_per_positive, seed, exact, group: see `utility_curves`.
    Returns:
        0-dim float64, in [0, 0.25].
    Raises:
        ValueError: see `utility_curves`.
    Source: Zhang et al., arXiv 2307.04047, eq. 2, as the mean over the grid. Paper: A.1.2 bounds it by 2α(1−α);
        here: α(1−α), the variance of a variable with values 0 and 1, so at most 0.25.
    """
    curves = utility_curves(
        embeddings,
        labels,
        far_range=far_range,
        grid=grid,
        negatives_per_positive=negatives_per_positive,
        seed=seed,
        exact=exact,
        group=group,
    )
    return opis_of_curves(curves)


def epsilon_opis(
    embeddings: Tensor,
    labels: Tensor,
    *,
    epsilon: float = 0.1,
    far_range: tuple[float, float] = (1e-2, 1e-1),
    grid: int = 100,
    negatives_per_positive: int | None = None,
    seed: int = 0,
    exact: bool = False,
    group: dist.ProcessGroup | None = None,
) -> Tensor:
    """Squared utility gap between the worst and the best classes, over the calibration range; lower is better.

    Args:
        embeddings, labels, far_range, grid, negatives_per_positive, seed, exact, group: see `utility_curves`.
        epsilon: share of the classes in each of the two groups, in [0, 1]; at least one class. 0 results at 1.
    Returns:
        0-dim float64, in [0, 1].
    Raises:
        ValueError: epsilon outside [0, 1]; see `utility_curves`.
    Source: Zhang et al., arXiv 2307.04047, eq. 4. Classes are ranked by their mean utility over the range; φ and ψ
        are averaged over each group, then combined. Paper: no size; here: max(1, round(ε T)) classes a group.
    """
    check_in_range(epsilon, 0, 1, "epsilon")
    curves = utility_curves(
        embeddings,
        labels,
        far_range=far_range,
        grid=grid,
        negatives_per_positive=negatives_per_positive,
        seed=seed,
        exact=exact,
        group=group,
    )
    return epsilon_opis_of_curves(curves, epsilon)


def utility_of_rates(tpr: Tensor, tnr: Tensor) -> Tensor:
    """Harmonic mean of sensitivity and specificity (eq. 1 with c = 1), 0 where both are 0."""
    total = tpr + tnr
    return torch.where(total > 0, 2 * tpr * tnr / total, 0.0)


def _smallest_count_reaching(rate: float, total: int) -> int:
    """The smallest k >= 1 with k / total >= rate, free of the rounding of rate * total."""
    k = max(1, int(rate * total))
    return k + (k / total < rate)
