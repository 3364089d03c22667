"""One distance threshold for all pairs of a data set: at a target FAR, at a target FRR, or of the best utility.

Pairs whose cosines differ by less than 1e-6 count as tied: a threshold between them would part them by the rounding of
float32, and decide otherwise where the same cosines are computed anew.
"""

import math

import torch

from pml_ext.functional.operating_points.utility import utility_of_rates
from pml_ext.functional.pairwise.pair_distances import PairDistances
from pml_ext.functional.verification.rates import largest_count_within

# In squared distance, twice that in cosine.
_TIED = 2e-6
# Grid searches stop at this resolution of distance.
_RESOLUTION = 1e-12
_UTILITY_RESOLUTION = 1e-7
# Entries of the (T, M) counts of one pass.
_COUNTS_AT_ONCE = 2**22


def threshold_at_far(pairs: PairDistances, far: float) -> float:
    """The largest distance threshold whose pooled FAR is at most `far`; ties are refused together.

    Args:
        pairs: of the set, with impostor pairs; a pair is accepted when its distance <= threshold.
        far: in (0, 1).
    Raises:
        ValueError: far outside (0, 1), below 1 / impostor pairs, or not to be met because more impostor pairs than
            that are of equal embeddings.
    """
    allowed = _supported(far, pairs.total_negative_pairs, "far", "impostor")
    first_refused = float(pairs.negative_distances_at([allowed + 1]))
    if first_refused**2 <= _TIED:
        raise ValueError(
            f"no threshold meets far={far:g}: {allowed} of {pairs.total_negative_pairs} impostor pairs may pass, and "
            "more than that are of equal embeddings; is one sample filed under several labels?"
        )
    return math.sqrt(first_refused**2 - _TIED)


def threshold_at_frr(pairs: PairDistances, frr: float) -> float:
    """The smallest distance threshold whose pooled FRR is at most `frr`; ties are accepted together.

    Args:
        pairs: of the set, with genuine pairs.
        frr: in (0, 1).
    Raises:
        ValueError: frr outside (0, 1), or below 1 / genuine pairs.
    """
    total = pairs.total_positive_pairs
    last_accepted = _around_positive(pairs, total - _supported(frr, total, "frr", "genuine"))[1]
    return min(2.0, math.sqrt(last_accepted**2 + _TIED))


def threshold_of_best_utility(pairs: PairDistances) -> float:
    """A distance threshold with the largest utility 2 φ ψ / (φ + ψ) of the pooled TNR φ and TPR ψ.

    The best of a grid over [0, 2], then of finer grids around the best down to 1e-7; of equals the smallest.

    Args:
        pairs: of the set, with genuine and impostor pairs.
    """
    low, high = 0.0, 2.0
    while True:
        grid = torch.linspace(low, high, grid_size(pairs), dtype=torch.float64)
        positives, negatives = (counts.sum(dim=0).double().cpu() for counts in pairs.accepted(grid))
        tnr = 1 - negatives / 2 / pairs.total_negative_pairs
        utility = utility_of_rates(positives / pairs.total_positive_pairs, tnr)
        best = int(utility.argmax())
        if (high - low) / len(grid) < _UTILITY_RESOLUTION:
            return float(grid[best])
        low, high = float(grid[max(0, best - 1)]), float(grid[min(len(grid) - 1, best + 1)])


def middle_of_gap(pairs: PairDistances, threshold: float) -> float:
    """The middle between the farthest accepted and the closest refused pair: the same decisions about all pairs.

    It is the threshold farthest from all pairs, so that a rounding of their distances changes least.

    Args:
        pairs: in float64, so that the middle can be told from the ends.
        threshold: in [0, 2].
    """
    at = torch.tensor([threshold], dtype=torch.float64)
    # All that is asked about positive pairs comes from passes over them alone: those cut the blocks in another way.
    positives = int(pairs.accepted(at, positives_only=True)[0].sum())
    low, high = _around_positive(pairs, positives, threshold)[1], 2.0
    if positives < pairs.total_positive_pairs:
        high = _around_positive(pairs, positives + 1)[0]
    accepted, total = int(pairs.accepted(at)[1].sum()) // 2, pairs.total_negative_pairs
    accepted_end, refused_end = pairs.negative_distances_at([max(1, accepted), min(total, accepted + 1)]).tolist()
    low = max(low, accepted_end) if accepted else low
    high = min(high, refused_end) if accepted < total else high
    middle = (low + high) / 2
    return middle if low <= middle < high else threshold


def grid_size(pairs: PairDistances) -> int:
    """Thresholds of one counting pass: fewer where the classes are many, so that memory stays bounded."""
    return max(64, min(1024, _COUNTS_AT_ONCE // len(pairs.classes)))


def _supported(rate: float, total: int, name: str, kind: str) -> int:
    """How many of the pairs may be errors: at least one."""
    if not 0 < rate < 1:
        raise ValueError(f"{name} must be in (0, 1); got {rate!r}")
    allowed = largest_count_within(rate, total)
    if not allowed:
        raise ValueError(
            f"{name}={rate:g} needs at least {math.ceil(1 / rate)} {kind} pairs, to allow one error; "
            f"the set has {total}"
        )
    return allowed


def _around_positive(pairs: PairDistances, rank: int, high: float = 2.0) -> tuple[float, float]:
    """(low, high), at most 1e-12 apart: fewer than `rank` positive pairs are within low, at least `rank` within high.

    Args:
        rank: k-th closest positive pair; 0 gives (0, 0).
        high: within which there are `rank` positive pairs.
    """
    low = 0.0
    if not rank:
        return low, low
    while high - low > _RESOLUTION:
        grid = torch.linspace(low, high, grid_size(pairs), dtype=torch.float64)
        within = pairs.accepted(grid, positives_only=True)[0].sum(dim=0).cpu()
        first = int(torch.searchsorted(within, rank))
        if not first:  # already within low, which only happens at 0: copies of one sample
            return low, low
        low, high = float(grid[first - 1]), float(grid[first])
    return low, high
