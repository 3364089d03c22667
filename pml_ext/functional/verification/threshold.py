"""One distance threshold for all pairs of a data set, by target FAR, by target FRR, or by best utility.

Pairs whose cosines differ by less than `TIED`, 1e-6, count as tied: a threshold between them would separate them by
float32 rounding, which may differ the next time.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from pml_ext._ops.numerics import ENTRIES_ON_A_DEVICE, TIED
from pml_ext._shared.checks import check_fraction
from pml_ext.functional.opis.utility import utility_of_rates
from pml_ext.functional.pairwise.pair_distances import PairDistances, count_accepted
from pml_ext.functional.verification.roc import first_refused, largest_count_within

_TIED = 2 * TIED  # in squared distance, twice the difference in cosine
_RESOLUTION = 1e-12  # of distance, where grid searches stop
_UTILITY_RESOLUTION = 1e-7
# Thresholds per pass over all classes together; with more, the search becomes slower than the matrix products.
_GRID_OF_ALL = 2**14


def threshold_at_far(pairs: PairDistances, far: float) -> float:
    """Returns the largest distance threshold whose pooled FAR is at most `far`, in (0, 1). Ties are rejected."""
    check_fraction(far, "far")
    allowed = largest_count_within(far, pairs.total_negative_pairs)
    if not allowed:
        raise _too_few_error(far, pairs.total_negative_pairs, "far", "impostor")
    return threshold_accepting(pairs, allowed)


def threshold_accepting(pairs: PairDistances, impostors: int) -> float:
    """Returns the largest distance threshold that accepts at most so many impostor pairs, but not all."""
    square = float(pairs.negative_distances_at([impostors + 1])) ** 2 - _TIED
    if square <= 0:
        raise ValueError(
            f"no threshold meets the target: it allows {impostors} of {pairs.total_negative_pairs} impostor pairs, but "
            "more have equal embeddings. Check for a collapsed model, and for samples with several labels"
        )
    return math.sqrt(square)


def thresholds_at_far(pairs: PairDistances, fars: Sequence[float]) -> list[float | None]:
    """`threshold_at_far` for several rates in (0, 1) from one pass over the pairs; None for impossible rates."""
    ranks = [first_refused(far, pairs.total_negative_pairs) for far in fars]
    if not any(ranks):
        return [None] * len(ranks)
    refused = iter(pairs.negative_distances_at([rank for rank in ranks if rank]).tolist())
    thresholds: list[float | None] = []
    for rank in ranks:
        square = next(refused) ** 2 - _TIED if rank else 0.0
        thresholds.append(math.sqrt(square) if square > 0 else None)
    return thresholds


def threshold_at_frr(pairs: PairDistances, frr: float) -> float:
    """Returns the smallest distance threshold whose pooled FRR is at most `frr`, in (0, 1). Ties are accepted."""
    total = pairs.total_positive_pairs
    check_fraction(frr, "frr")
    allowed = largest_count_within(frr, total)
    if not allowed:
        raise _too_few_error(frr, total, "frr", "genuine")
    return threshold_rejecting(pairs, allowed)


def threshold_rejecting(pairs: PairDistances, genuine: int) -> float:
    """Returns the smallest distance threshold that rejects at most so many genuine pairs."""
    last_accepted = _positive_distance_at(pairs, pairs.total_positive_pairs - genuine)
    return min(2.0, math.sqrt(last_accepted**2 + _TIED))


def threshold_of_best_utility(pairs: PairDistances, *, grid: int = _GRID_OF_ALL) -> float:
    """Returns a distance threshold with the largest utility 2 φ ψ / (φ + ψ) of the pooled TNR φ and TPR ψ.

    Rates are counted on grids of at least 4 thresholds. Between two, the utility is at most that of the lower one's TNR
    and the upper one's TPR; intervals where this bound exceeds the best utility so far are refined, down to 1e-7.
    """
    low, high = (
        torch.zeros(1, dtype=torch.float64, device="cpu"),
        torch.full((1,), 2.0, dtype=torch.float64, device="cpu"),
    )
    best, chosen = -1.0, 0.0
    while len(low):
        parts = max(2, grid // len(low))
        steps = torch.linspace(0, 1, parts + 1, dtype=torch.float64, device="cpu")
        tried = torch.lerp(low[:, None], high[:, None], steps)
        tpr, tnr = _pooled_rates(pairs, tried.view(-1), grid)
        utility = utility_of_rates(tpr, tnr)
        at = int(utility.argmax())
        if (highest := float(utility[at])) > best:
            best, chosen = highest, float(tried.view(-1)[at])
        bound = utility_of_rates(tpr.view_as(tried)[:, 1:], tnr.view_as(tried)[:, :-1])
        better = (bound > best) & (tried.diff(dim=1) > _UTILITY_RESOLUTION)
        low, high = tried[:, :-1][better], tried[:, 1:][better]
    return chosen


def _pooled_rates(pairs: PairDistances, thresholds: Tensor, at_once: int) -> tuple[Tensor, Tensor]:
    """Returns the TPR and TNR of all pairs at ascending thresholds, 2 · at_once per pass."""
    counts = [count_accepted(pairs, some) for some in thresholds.split(2 * at_once)]
    positives, negatives = (torch.cat(kind).double().cpu() for kind in zip(*counts, strict=True))
    return positives / pairs.total_positive_pairs, 1 - negatives / pairs.total_negative_pairs


def middle_of_gap(pairs: PairDistances, threshold: float) -> float:
    """Returns the midpoint of the farthest accepted and the closest rejected pair; decides pairs as `threshold` does.

    It is the threshold most robust to rounding. pairs: float64 distances, so that the midpoint differs from the ends.
    """
    low, high = pairs.positives_around(threshold)
    low, high = max(low, 0.0), min(high, 2.0)
    accepted, total = pairs.negatives_within(threshold), pairs.total_negative_pairs
    accepted_end, refused_end = pairs.negative_distances_at([max(1, accepted), min(total, accepted + 1)]).tolist()
    low = max(low, accepted_end) if accepted else low
    high = min(high, refused_end) if accepted < total else high
    middle = (low + high) / 2
    return middle if low <= middle < high else threshold


def grid_size(pairs: PairDistances) -> int:
    """Returns the number of thresholds per counting pass by class; the (T, M) counts take 32 MB at most."""
    return max(64, min(1024, ENTRIES_ON_A_DEVICE // len(pairs.classes)))


def _too_few_error(rate: float, total: int, name: str, kind: str) -> ValueError:
    needed = math.ceil(1 / max(rate, 1e-18))
    return ValueError(
        f"{name.upper()} {rate:g} needs at least {needed} {kind} pairs, to allow one error; the set has {total}"
    )


def _positive_distance_at(pairs: PairDistances, rank: int) -> float:
    """Returns the smallest positive distance that `rank` pairs reach, at most 1e-12 too large; 0 for rank 0."""
    low, high = 0.0, 2.0
    if not rank:
        return low
    while high - low > _RESOLUTION:
        grid = torch.linspace(low, high, _GRID_OF_ALL, dtype=torch.float64, device="cpu")
        within = count_accepted(pairs, grid, positives_only=True)[0].cpu()
        first = int(torch.searchsorted(within, rank))
        if not first:  # low is 0 and already has `rank` pairs, of copies of one sample
            return low
        low, high = float(grid[first - 1]), float(grid[first])
    return high
