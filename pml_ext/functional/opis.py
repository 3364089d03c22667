"""OPIS and ε-OPIS: how differently the classes of a test set behave at one distance threshold."""

from typing import NamedTuple

import torch
from torch import Tensor

from pml_ext._checks import check_in_range
from pml_ext.functional.pair_statistics import PairDistances
from pml_ext.functional.sampled_pairs import SampledPairDistances


class TooFewClassesError(ValueError):
    """Fewer than two classes have positive and negative pairs: no spread between classes to measure."""


class UtilityCurves(NamedTuple):
    """Utility of each measurable class against the distance threshold (a pair is accepted when distance <= threshold).

    thresholds: (M,) L2 distances between normalised embeddings, ascending.
    classes: (T,) ids of the classes with at least one positive and one negative pair, sorted.
    tpr, tnr: (T, M) sensitivity ψ and specificity φ, fractions, float64.
    utilities: (T, M) 2 φ ψ / (φ + ψ), 0 where φ + ψ = 0.
    calibration_range: (2,) the distances d_min, d_max at which the pooled FAR reaches the ends of far_range.
    """

    thresholds: Tensor
    classes: Tensor
    tpr: Tensor
    tnr: Tensor
    utilities: Tensor
    calibration_range: Tensor


def utility_curves(
    embeddings: Tensor,
    labels: Tensor,
    *,
    far_range: tuple[float, float] = (1e-2, 1e-1),
    grid: int = 100,
    thresholds: Tensor | None = None,
    negatives_per_positive: int | None = None,
    seed: int = 0,
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
    Returns:
        UtilityCurves; `opis_of_curves` and `epsilon_opis_of_curves` read the two metrics off it.
    Raises:
        ValueError: grid below 10, far_range not ascending in (0, 1], thresholds not ascending, embeddings not finite.
        TooFewClassesError: (a ValueError) fewer than two classes with positive and negative pairs.
    Source: Zhang et al., arXiv 2307.04047, eq. 1.
        Distances are square roots of rounded numbers: equal embeddings are up to sqrt(eps) apart, so a calibration
        range that lies at 0 (many duplicates across classes) measures rounding.
        Paper: 10 sampled negatives per positive; here: all pairs unless asked for. Paper: no word on classes
        without positives (one sample); here: left out, their samples still serve as negatives.
    """
    check_far_range_and_grid(far_range, grid)
    if thresholds is not None and (thresholds.ndim != 1 or not len(thresholds) or bool((thresholds.diff() < 0).any())):
        raise ValueError(f"thresholds must be an ascending, non-empty (M,) tensor; got {tuple(thresholds.shape)}")
    pairs = (
        PairDistances(embeddings, labels)
        if negatives_per_positive is None
        else SampledPairDistances(embeddings, labels, negatives_per_positive=negatives_per_positive, seed=seed)
    )
    return curves_of_pairs(pairs, far_range=far_range, grid=grid, thresholds=thresholds)


def check_far_range_and_grid(far_range: tuple[float, float], grid: int) -> None:
    low, high = far_range
    if not 0 < low < high <= 1:
        raise ValueError(f"far_range must be two ascending rates in (0, 1]; got {far_range!r}")
    if grid < 10:
        raise ValueError(f"grid must be at least 10 thresholds; got {grid!r}")


def curves_of_pairs(
    pairs: PairDistances, *, far_range: tuple[float, float], grid: int, thresholds: Tensor | None = None
) -> UtilityCurves:
    """`utility_curves` of pairs that other statistics are taken from too."""
    kept = (pairs.positive_pairs > 0) & (pairs.negative_pairs > 0)
    if int(kept.sum()) < 2:
        raise TooFewClassesError(
            "OPIS needs at least 2 classes with a positive and a negative pair (2 samples each); "
            f"got {int(kept.sum())} of {len(kept)} classes"
        )
    total = pairs.total_negative_pairs
    ends = pairs.negative_distances_at([_smallest_count_reaching(far, total) for far in far_range])
    if thresholds is None:
        thresholds = torch.linspace(float(ends[0]), float(ends[1]), grid, dtype=ends.dtype, device=ends.device)
    positives, negatives = pairs.accepted(thresholds)
    tpr = positives[kept].double() / pairs.positive_pairs[kept, None]
    tnr = 1 - negatives[kept].double() / pairs.negative_pairs[kept, None]
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
) -> Tensor:
    """Operating-point inconsistency score: the variance of the utility between classes, lower is better.

    Args:
        embeddings, labels, far_range, grid, negatives_per_positive, seed: see `utility_curves`.
    Returns:
        0-dim float64, in [0, 0.25].
    Raises:
        ValueError: see `utility_curves`.
    Source: Zhang et al., arXiv 2307.04047, eq. 2, as the mean over the grid. Paper: A.1.2 bounds it by 2α(1−α);
        here: α(1−α), the variance of a variable with values 0 and 1, so at most 0.25.
    """
    curves = utility_curves(
        embeddings, labels, far_range=far_range, grid=grid, negatives_per_positive=negatives_per_positive, seed=seed
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
) -> Tensor:
    """Squared utility gap between the worst and the best classes, over the calibration range; lower is better.

    Args:
        embeddings, labels, far_range, grid, negatives_per_positive, seed: see `utility_curves`.
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
        embeddings, labels, far_range=far_range, grid=grid, negatives_per_positive=negatives_per_positive, seed=seed
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
