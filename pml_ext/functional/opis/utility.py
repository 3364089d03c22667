"""Utility curves of the classes over OPIS's calibration range, and OPIS and ε-OPIS from them.

The calibration range is that of the distances at which the pooled FAR spans a range.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch import distributed as dist

from pml_ext._shared.checks import check_above_zero, check_in_range, check_items, check_number, check_whole
from pml_ext._shared.errors import ArgumentError
from pml_ext.functional.opis.calibration_range import distances_at_ranks
from pml_ext.functional.pairwise.pair_distances import PairDistances, check_thresholds

_CHANCE = 0.01  # smallest difference of accept rates that tells classes apart
_MOST_THRESHOLDS = 10**6


class UtilityCurves(NamedTuple):
    r"""Utility of each measurable class by distance threshold (a pair is accepted if distance <= threshold).

    $$U_i(d) = \frac{2 φ_i ψ_i}{φ_i + ψ_i}$$

    with the specificity φ = 1 − FAR and the sensitivity ψ = 1 − FRR of class i at distance d.

    Attributes:
        thresholds: (M,) L2 distances between normalised embeddings, ascending.
        classes: (T,) ids of the classes with at least one positive and one negative pair, sorted.
        tpr, tnr: (T, M) sensitivity ψ and specificity φ, fractions, float64.
        utilities: (T, M) U, 0 where φ + ψ = 0.
        calibration_range: (2,) the distances d_min, d_max at which the pooled FAR reaches the ends of far_range; nan if
            `thresholds` was passed and the set has too few negative pairs for the rate.

    >>> from pml_ext.functional import utility_curves
    >>> labels = torch.tensor([0, 0, 1, 1])
    >>> curves = utility_curves(torch.eye(2)[labels], labels, thresholds=torch.tensor([1.0]))
    >>> curves.classes.tolist(), curves.tpr.tolist(), curves.tnr.tolist(), curves.utilities.tolist()
    ([0, 1], [[1.0], [1.0]], [[1.0], [1.0]], [[1.0], [1.0]])
    """

    thresholds: Tensor
    classes: Tensor
    tpr: Tensor
    tnr: Tensor
    utilities: Tensor
    calibration_range: Tensor


def check_curves(curves: object) -> None:
    """Raise unless curves are UtilityCurves."""
    if not isinstance(curves, UtilityCurves):
        raise TypeError(f"curves must be UtilityCurves, from utility_curves; got {type(curves).__name__}")


def curves_of_counts(
    pairs: PairDistances, kept: Tensor, thresholds: Tensor, positives: Tensor, negatives: Tensor, ends: Tensor
) -> UtilityCurves:
    """Returns UtilityCurves from (T, M) numbers of positive and negative pairs per kept class and threshold."""
    tpr = positives.double() / pairs.positive_pairs[kept, None]
    tnr = 1 - negatives.double() / pairs.negative_pairs[kept, None]
    return UtilityCurves(thresholds, pairs.classes[kept], tpr, tnr, utility_of_rates(tpr, tnr), ends)


def utility_of_rates(tpr: Tensor, tnr: Tensor, c: float = 1.0) -> Tensor:
    """$(1 + c^2) φ ψ / (c^2 φ + ψ)$, eq. 1; 0 for 0/0. With c = 1 the harmonic mean of the two rates."""
    total = tpr + c**2 * tnr
    return torch.where(total > 0, (1 + c**2) * tpr * tnr / total, 0.0)


def opis_of_curves(curves: UtilityCurves, *, c: float = 1.0) -> Tensor:
    """Returns OPIS over the curves' calibration range; see `opis`.

    Args:
        curves: from `utility_curves`. For another utility than eq. 1's, pass
            `curves._replace(utilities=...)`, for instance the paper's eq. 10, of precision and recall; its precision
            $ψ n^+ / (ψ n^+ + (1 - φ) n^-)$ falls with the share of negative pairs among a class's pairs.
        c: of eq. 1, > 0; above 1 sensitivity counts more, below 1 specificity. The paper and `opis` have 1.

    >>> rates = torch.tensor([[1.0, 1.0], [0.5, 0.5]])
    >>> at = torch.tensor([0.5, 0.6])
    >>> curves = UtilityCurves(at, torch.tensor([0, 1]), rates, rates, rates, at)
    >>> float(opis_of_curves(curves))
    0.0625
    """
    utilities = _weighted(curves, c)
    return (utilities - utilities.mean(dim=0)).square().mean()


def epsilon_opis_of_curves(curves: UtilityCurves, epsilon: float = 0.1, *, c: float = 1.0) -> Tensor:
    """Returns ε-OPIS over the curves' calibration range; see `epsilon_opis`, and `opis_of_curves` for c.

    >>> rates = torch.tensor([[1.0, 1.0], [0.5, 0.5]])
    >>> at = torch.tensor([0.5, 0.6])
    >>> curves = UtilityCurves(at, torch.tensor([0, 1]), rates, rates, rates, at)
    >>> float(epsilon_opis_of_curves(curves, 0.5))
    0.25
    """
    check_in_range(epsilon, 0, 1, "epsilon")
    order = _weighted(curves, c).mean(dim=1).argsort(stable=True)
    size = max(1, round(epsilon * len(order)))
    worst, best = (
        utility_of_rates(curves.tpr[group].mean(dim=0), curves.tnr[group].mean(dim=0), c)
        for group in (order[:size], order[-size:])
    )
    return (worst - best).square().mean()


def why_opis_says_nothing(curves: UtilityCurves) -> str:
    """Returns a clause that explains why OPIS is not meaningful; "" if it is.

    OPIS compares the utilities of classes. At chance level all utilities are equal, so OPIS is almost 0, its best
    value. This is reported if the accept rates of genuine and impostor pairs differ by at most 0.01, the lowest rate of
    the default calibration range. It is not reported if all impostor pairs have the same distance above 0.

    >>> from pml_ext.functional import utility_curves
    >>> labels = torch.tensor([0, 0, 1, 1])
    >>> why_opis_says_nothing(utility_curves(torch.ones(4, 2), labels, far_range=(0.3, 1.0)))
    'the classes cannot be told apart (100.0 % of genuine pairs are accepted, 100.0 % of impostor pairs)'
    """
    check_curves(curves)
    low, high = curves.calibration_range.tolist()
    inside = (curves.thresholds >= low) & (curves.thresholds <= high)
    if low == high > 0 or not bool(inside.any()):
        return ""
    genuine = float(curves.tpr[:, inside].mean())
    impostors = float(1 - curves.tnr[:, inside].mean())
    if genuine - impostors >= _CHANCE:
        return ""
    accepted = f"{100 * genuine:.1f} % of genuine pairs are accepted, {100 * impostors:.1f} % of impostor pairs"
    return f"the classes cannot be told apart ({accepted})"


def _weighted(curves: UtilityCurves, c: float) -> Tensor:
    """Returns the utilities for eq. 1's c; those of the curves have c = 1."""
    check_curves(curves)
    check_above_zero(c, "c")
    return curves.utilities if c == 1 else utility_of_rates(curves.tpr, curves.tnr, c)


class TooFewClassesError(ValueError):
    """Raised if fewer than two classes have positive and negative pairs: OPIS compares classes."""


class TooFewPairsError(TooFewClassesError):
    """Raised if the set has too few negative pairs for the FAR, which then allows no accepted pair."""


def check_far_range_and_grid(far_range: tuple[float, float], grid: int) -> None:
    check_items(far_range, "far_range", "two ascending rates in (0, 1]")
    for end in far_range:
        check_number(end, "each end of far_range")
    if len(far_range) != 2 or not 0 < far_range[0] < far_range[1] <= 1:
        raise ArgumentError("far_range", f"must be two ascending rates in (0, 1]; got {far_range!r}")
    check_whole(grid, "grid", 10, _MOST_THRESHOLDS)


def utility_curves(
    embeddings: Tensor,
    labels: Tensor,
    *,
    far_range: tuple[float, float] = (1e-2, 1e-1),
    grid: int = 100,
    thresholds: Tensor | None = None,
    group: dist.ProcessGroup | None = None,
    offsets: Tensor | None = None,
) -> UtilityCurves:
    """Compute the per-class utility over the calibration range, or at the thresholds.

    Counts every pair in two passes over the pairs: one finds the ends of the range, one counts at the thresholds.

    Args:
        embeddings: (N, D), finite; normalised here.
        labels: (N,) integer class ids.
        far_range: two false accept rates, in (0, 1], over all negative pairs pooled. Each end of the calibration range
            is the smallest negative distance that reaches its rate.
        grid: number of thresholds, evenly spaced in distance over the calibration range; at least 10.
        thresholds: (M,) ascending distances to use instead of the grid, e.g. to plot the full range [0, 2].
        group: the ranks that share the work (`torch.distributed.group.WORLD` for all); each passes the same embeddings
            and labels and gets the result. None: this process alone.
        offsets: (N,) subtracted from the cosines of each sample, see `PairDistances`. Normalised scores pass
            strength / 2 · `cohort_offsets`.
    Returns:
        UtilityCurves, for `opis_of_curves` and `epsilon_opis_of_curves`.
    Raises:
        ValueError: grid below 10, far_range not ascending in (0, 1], thresholds not ascending, embeddings not finite.
        TooFewClassesError: (a ValueError) fewer than two classes with positive and negative pairs.
        TooFewPairsError: (a ValueError) the lower rate allows no negative pair.
    Source: Zhang et al., arXiv 2307.04047, eq. 1.
        Paper: all pairs of CUB and Cars, 10 sampled negatives per positive of iNaturalist and SOP; here: all pairs.
        Paper: thresholds d_min + j (d_max − d_min)/N, j = 1…N, N ≥ 10, N not stated; here: including d_min,
        100 by default. Paper: does not mention classes without positives (one sample); here: skipped, but their
        samples are negatives of others.

    >>> embeddings = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [1.0, 1.0]])
    >>> labels, thresholds = torch.tensor([0, 0, 1, 1]), torch.tensor([0.1, 0.7, 0.8])
    >>> curves = utility_curves(embeddings, labels, thresholds=thresholds)
    >>> [[round(value, 3) for value in row] for row in curves.utilities.tolist()]
    [[1.0, 0.857, 0.667], [0.0, 0.0, 0.667]]
    """
    check_far_range_and_grid(far_range, grid)
    pairs = PairDistances(embeddings, labels, group=group, offsets=offsets)
    if thresholds is None:
        return calibrated_curves(pairs, far_ranges=[far_range], grid=grid)[0]
    check_thresholds(thresholds)
    kept = find_measurable(pairs)
    ranks = ranks_of_rates(pairs, far_range)
    reached = [k > 0 for k in ranks]
    ends = torch.full((2,), torch.nan, dtype=pairs.unit.dtype, device=pairs.unit.device)
    if any(reached):
        ends[reached] = pairs.negative_distances_at([k for k in ranks if k])
    positives, negatives = pairs.accepted(thresholds)
    return curves_of_counts(pairs, kept, thresholds, positives[kept], negatives[kept], ends)


def calibrated_curves(
    pairs: PairDistances, *, far_ranges: Sequence[tuple[float, float]], grid: int
) -> list[UtilityCurves]:
    """Compute `utility_curves` over several ranges."""
    kept = find_measurable(pairs)
    ranks = [k for far_range in far_ranges for k in ranks_of_rates(pairs, far_range, required=True)]
    ends = distances_at_ranks(pairs, ranks).view(-1, 2)
    grids, merged, places = merge_grids(ends, grid)
    positives, negatives = pairs.accepted(merged)
    return [
        curves_of_counts(pairs, kept, thresholds, positives[kept][:, place], negatives[kept][:, place], end)
        for thresholds, place, end in zip(grids, places, ends, strict=True)
    ]


def find_measurable(pairs: PairDistances) -> Tensor:
    """Returns a (T,) bool mask of the classes with positive and negative pairs."""
    kept: Tensor = (pairs.positive_pairs > 0) & (pairs.negative_pairs > 0)
    if int(kept.sum()) < 2:
        raise TooFewClassesError(
            "OPIS needs at least 2 classes with a positive and a negative pair (2 samples each); "
            f"got {int(kept.sum())} of {len(kept)} classes"
        )
    return kept


def ranks_of_rates(pairs: PairDistances, far_range: tuple[float, float], *, required: bool = False) -> list[int]:
    """Returns the smallest number of accepted negative pairs that reaches each rate; 0 if the rate allows none."""
    total = pairs.total_negative_pairs
    if required and far_range[0] * total < 1:
        raise TooFewPairsError(
            f"far_range {far_range!r} needs at least {math.ceil(1 / far_range[0])} negative pairs to accept one of "
            f"them at the lower rate; got {total}. Raise the rate or measure more samples"
        )
    return [_smallest_count_reaching(far, total) if far * total >= 1 else 0 for far in far_range]


def _smallest_count_reaching(rate: float, total: int) -> int:
    """Returns the smallest k >= 1 with k / total >= rate, regardless of the rounding of rate * total."""
    k = max(1, int(rate * total))
    return k + (k / total < rate)


def merge_grids(ends: Tensor, grid: int) -> tuple[list[Tensor], Tensor, list[Tensor]]:
    """Returns each range's grid, all thresholds in ascending order, and the indices of each grid among them."""
    steps = torch.linspace(0, 1, grid, dtype=ends.dtype, device=ends.device)
    grids = [torch.lerp(low, high, steps) for low, high in ends]
    merged, places = torch.unique(torch.cat(grids), return_inverse=True)
    return grids, merged, list(places.split(grid))
