"""The ROC curve of verification as counts, and what is read off it."""

from typing import NamedTuple

import torch
from torch import Tensor

from pml_ext.functional.verification.rates import check_far, check_scores, largest_count_within


class ROC(NamedTuple):
    """Operating points from the strictest threshold to the laxest; a pair is accepted when its score >= threshold.

    thresholds: (K,) descending, in the units of the scores. The first is inf: nothing is accepted. At the last
        everything is.
    true_accepts, false_accepts: (K,) int64, genuine and impostor pairs accepted, ascending.
    """

    thresholds: Tensor
    true_accepts: Tensor
    false_accepts: Tensor

    @property
    def genuine(self) -> int:
        return int(self.true_accepts[-1])

    @property
    def impostors(self) -> int:
        return int(self.false_accepts[-1])

    @property
    def tar(self) -> Tensor:
        """(K,) float64 true accept rates, nan without genuine pairs; the false reject rate is 1 − tar."""
        return self.true_accepts.double() / self.true_accepts[-1]

    @property
    def far(self) -> Tensor:
        """(K,) float64 false accept rates, nan without impostor pairs."""
        return self.false_accepts.double() / self.false_accepts[-1]


class OperatingPoint(NamedTuple):
    """A threshold (0-dim, in the units of the scores) and the rates at it (0-dim float64, fractions)."""

    threshold: Tensor
    tar: Tensor
    far: Tensor


def roc_curve(scores: Tensor, same: Tensor) -> ROC:
    """The operating point of every distinct score: pairs of equal score are accepted together.

    Args:
        scores: (P,) similarities, higher is more alike, finite (negate distances).
        same: (P,) bool, True for genuine pairs.
    Returns:
        ROC; the same points as scikit-learn's `roc_curve(same, scores, drop_intermediate=False)`.
    Raises:
        ValueError: shapes that differ, same not bool, scores not finite.
    """
    check_scores(scores, same)
    ordered, order = scores.detach().sort(descending=True)
    last_of_ties = torch.ones_like(same)
    last_of_ties[:-1] = ordered[:-1] != ordered[1:]
    place = last_of_ties.nonzero().squeeze(1)
    true_accepts = same[order].cumsum(0)[place]
    nothing = torch.zeros_like(place[:1]) if len(place) else place.new_zeros(1)
    return ROC(
        torch.cat([ordered.new_full((1,), torch.inf), ordered[place]]),
        torch.cat([nothing, true_accepts]),
        torch.cat([nothing, place + 1 - true_accepts]),
    )


def operating_point(roc: ROC, far: float) -> OperatingPoint:
    """The largest true accept rate at a false accept rate of at most `far`, with its threshold.

    Of the thresholds that give this rate it is the lowest that keeps within `far`. It may be inf, with a rate of 0:
    every other one accepts more impostors than allowed.

    Args:
        far: allowed false accept rate, in (0, 1].
    Returns:
        OperatingPoint; all nan without genuine pairs and where impostor pairs are too few to support the rate
        (far < 1 / impostor pairs).
    Raises:
        ValueError: far outside (0, 1].
    """
    place = place_at_far(roc, far)
    if place is None:
        nothing = torch.full((), torch.nan, dtype=torch.float64, device=roc.thresholds.device)
        return OperatingPoint(nothing, nothing, nothing)
    return OperatingPoint(roc.thresholds[place], roc.tar[place], roc.far[place])


def place_at_far(roc: ROC, far: float) -> int | None:
    """The index of `operating_point`; None where there is none."""
    check_far(far)
    allowed = largest_count_within(far, roc.impostors)
    if not roc.genuine or not allowed:
        return None
    return int(torch.searchsorted(roc.false_accepts, allowed, right=True)) - 1


def roc_auc(roc: ROC) -> Tensor:
    """Area under the ROC curve: the chance that a genuine pair scores above an impostor pair, ties counted half.

    Returns:
        0-dim float64 in [0, 1], 0.5 for scores that say nothing; nan without genuine or without impostor pairs.
    """
    return torch.trapezoid(roc.tar, roc.far)


def equal_error_rate(roc: ROC) -> OperatingPoint:
    """Where the false accept rate equals the false reject rate, linearly interpolated between neighbouring points.

    Returns:
        OperatingPoint with far = 1 − tar = the equal error rate, and the threshold of the first point whose FAR is
        at least its FRR (a real threshold, where the rates may differ); all nan without genuine or impostor pairs.
    """
    tar, far = roc.tar, roc.far
    if not roc.genuine or not roc.impostors:
        nothing = torch.full((), torch.nan, dtype=torch.float64, device=far.device)
        return OperatingPoint(nothing, nothing, nothing)
    after = place_at_equal_errors(roc)
    excess = far + tar - 1  # FAR − FRR, −1 at the first point, 1 at the last
    share = -excess[after - 1] / (excess[after] - excess[after - 1])
    rate = far[after - 1] + share * (far[after] - far[after - 1])
    return OperatingPoint(roc.thresholds[after], 1 - rate, rate)


def place_at_equal_errors(roc: ROC) -> int:
    """The index of the first point whose FAR is at least its FRR, of a curve with both kinds of pairs."""
    # Multiplied out, so that equal rates compare equal; in float64, as int64 overflows at 3 · 10^9 pairs of each kind.
    false_rejects = (roc.genuine - roc.true_accepts).double()
    return int((roc.false_accepts.double() * roc.genuine >= false_rejects * roc.impostors).nonzero()[0])
