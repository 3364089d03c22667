"""TAR at FAR: `first_refused` is the one rule for scores, ROC curves and pair distances. Nothing is interpolated."""

import torch
from torch import Tensor

from pml_ext.functional.verification.checks import check_far, check_scores
from pml_ext.functional.verification.roc import ROC, OperatingPoint, check_roc


def first_refused(far: float, impostors: int) -> int | None:
    """The rank, from 1, of the first impostor pair that would exceed a FAR in (0, 1]; impostors + 1 if none would.

    Its ties are rejected too. None if far < 1 / impostors, which allows no false accept.
    """
    check_far(far)
    allowed = largest_count_within(far, impostors)
    return allowed + 1 if allowed else None


def largest_count_within(rate: float, total: int) -> int:
    """The largest m with m / total <= rate, regardless of the rounding of rate * total."""
    m = int(rate * total)
    return m + (m < total and (m + 1) / total <= rate)


def tar_at_far(scores: Tensor, same: Tensor, far: float) -> Tensor:
    """The largest true accept rate among the thresholds whose false accept rate is at most `far`.

    A pair is accepted if its score >= threshold; an accepted impostor pair is a false accept. Tied scores are accepted
    together and nothing is interpolated. `operating_point` also gives the threshold.

    Args:
        scores: (P,) similarities, higher is more alike, finite (negate distances).
        same: (P,) bool, True for genuine pairs.
        far: allowed false accept rate, in (0, 1].
    Returns:
        0-dim float64, a fraction; nan without genuine pairs, or with too few impostor pairs for the rate
        (far < 1 / impostor pairs allows no false accept).
    Raises:
        ValueError: different shapes, same not bool, far outside (0, 1], scores not finite.
    Source: the standard TAR at FAR of the NIST and IJB protocols. FastReID labels impostors 1 and takes the nearest
        rate, so it reports impostor rejection.

    >>> scores = torch.tensor([0.9, 0.8, 0.6, 0.7, 0.5, 0.1])
    >>> same = torch.tensor([True, True, True, False, False, False])
    >>> round(float(tar_at_far(scores, same, far=1 / 3)), 3), round(float(tar_at_far(scores, same, far=0.1)), 3)
    (1.0, nan)
    """
    check_scores(scores, same)
    genuine, impostors = scores[same], scores[~same]
    rank = first_refused(far, len(impostors))
    if not len(genuine) or rank is None:
        return torch.full((), torch.nan, dtype=torch.float64, device=scores.device)
    if rank > len(impostors):
        return torch.ones((), dtype=torch.float64, device=scores.device)
    return (genuine > impostors.sort(descending=True).values[rank - 1]).double().mean()


def operating_point(roc: ROC, far: float) -> OperatingPoint:
    """The largest true accept rate at a false accept rate of at most `far`, with its threshold.

    The threshold is the lowest that keeps within `far`. It is inf, with a rate of 0, if every finite one accepts too
    many impostors.

    Args:
        far: allowed false accept rate, in (0, 1].
    Returns:
        OperatingPoint; all nan without genuine pairs, or with too few impostor pairs for the rate
        (far < 1 / impostor pairs).
    Raises:
        ValueError: far outside (0, 1].

    >>> from pml_ext.functional import roc_curve
    >>> roc = roc_curve(torch.tensor([0.75, 0.5, 0.25, 0.125]), torch.tensor([True, False, True, False]))
    >>> [float(value) for value in operating_point(roc, far=0.5)]
    [0.25, 1.0, 0.5]
    """
    place = place_at_far(roc, far)
    if place is None:
        nothing = torch.full((), torch.nan, dtype=torch.float64, device=roc.thresholds.device)
        return OperatingPoint(nothing, nothing, nothing)
    return OperatingPoint(roc.thresholds[place], roc.tar[place], roc.far[place])


def place_at_far(roc: ROC, far: float) -> int | None:
    """The index of `operating_point`, or None."""
    check_roc(roc)
    rank = first_refused(far, roc.impostors)
    return last_place_before(roc.false_accepts, rank) if roc.genuine and rank is not None else None


def last_place_before(false_accepts: Tensor, rank: int) -> int:
    """The index of the last of the ascending counts, which begin with 0, that is below rank."""
    return int(torch.searchsorted(false_accepts, rank)) - 1
