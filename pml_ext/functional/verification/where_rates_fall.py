"""Where the thresholds of some rates will be, from a sample of the pairs."""

from collections.abc import Sequence

import torch

from pml_ext._ops.precision import full_precision
from pml_ext.functional.operating_points.bracket import calibration_brackets
from pml_ext.functional.pairwise.pair_distances import PairDistances

_SAMPLED = 2048
_STANDARD_ERRORS = 4


def expected_ranges(pairs: PairDistances, fars: Sequence[float]) -> list[tuple[float, float]]:
    """Ranges of scores, low to high, that most likely hold the thresholds of false accept rates and of equal errors.

    Those that overlap are one. The same on all ranks.
    """
    with full_precision(pairs.unit.device):
        rates = [(far, far) for far in dict.fromkeys(fars)]
        if (equal := _rates_around_equal_errors(pairs)) is not None:
            rates.append(equal)
        brackets = calibration_brackets(pairs, rates)
    merged: list[tuple[float, float]] = []
    for low, high in sorted((low, high) for high, low in (bracket for bracket in brackets if bracket is not None)):
        if merged and low <= merged[-1][1]:
            low, high = merged[-1][0], max(merged.pop()[1], high)
        merged.append((low, high))
    # Beyond 1 is how a bracket says that it has no end.
    return [(low if low >= -1 else -torch.inf, high if high <= 1 else torch.inf) for low, high in merged]


def _rates_around_equal_errors(pairs: PairDistances) -> tuple[float, float] | None:
    """False accept rates below and above the equal error rate; None without genuine pairs in the sample."""
    generator = torch.Generator().manual_seed(0)
    chosen = torch.randperm(len(pairs.unit), generator=generator)[:_SAMPLED].to(pairs.unit.device)
    follows = chosen + 1 < pairs.class_end[chosen]  # the next sample is of the same class
    first = chosen[follows]
    if not len(first):
        return None
    genuine = (pairs.unit[first] * pairs.other[first + 1]).sum(1).sort().values
    other = chosen.roll(1)
    impostor = (pairs.unit[chosen] * pairs.other[other]).sum(1)[pairs.index[chosen] != pairs.index[other]].sort().values
    if not len(impostor):
        return None
    rejected = torch.arange(len(genuine), device=genuine.device) / len(genuine)
    accepted = 1 - torch.searchsorted(impostor, genuine) / len(impostor)
    equal = float(torch.minimum(rejected, accepted).max())
    # Of each rate the error of its own pairs; one more than none, so that rates of 0 have an error, too.
    least = min(len(genuine), len(impostor))
    share = max(equal, 1 / least)
    error = _STANDARD_ERRORS * (2 * share * (1 - share) / least) ** 0.5
    return max(equal - error, 1e-12), min(equal + error, 1.0)
