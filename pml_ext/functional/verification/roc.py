"""Verification ROC curve as counts, with area, equal error rate and TAR at FAR (all by `first_refused`)."""

from typing import NamedTuple

import torch
from torch import Tensor

from pml_ext._shared.checks import check_finite, check_fraction, check_tensor


def check_scores(scores: Tensor, same: Tensor) -> None:
    """Raise unless each pair has a finite score and a bool."""
    for name, values in (("scores", scores), ("same", same)):
        check_tensor(values, name, "(P,)")
    if scores.ndim != 1 or not scores.is_floating_point() or scores.dtype.itemsize < 2:
        raise ValueError(f"scores must be a floating (P,) tensor; got {scores.dtype} {tuple(scores.shape)}")
    if same.shape != scores.shape or same.dtype != torch.bool:
        raise ValueError(f"same must be bool of shape {tuple(scores.shape)}; got {same.dtype} {tuple(same.shape)}")
    check_finite(scores, "scores")


def check_far(far: float) -> None:
    check_fraction(far, "far", one=True)


class ROC(NamedTuple):
    """Operating points from the strictest threshold to the laxest; a pair is accepted if its score >= threshold.

    Attributes:
        thresholds: (K,) descending, in the unit of the scores. The first is inf, which accepts nothing; the last
            accepts everything.
        true_accepts, false_accepts: (K,) int64, genuine and impostor pairs accepted, ascending.

    >>> from pml_ext.functional import roc_curve
    >>> roc = roc_curve(torch.tensor([0.9, 0.7, 0.4, 0.1]), torch.tensor([True, False, True, False]))
    >>> roc.tar.tolist(), roc.far.tolist()
    ([0.0, 0.5, 0.5, 1.0, 1.0], [0.0, 0.0, 0.5, 0.5, 1.0])
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


def check_roc(roc: object) -> None:
    """Raise unless roc is a ROC, from `roc_curve`, `labelled_pairs_roc` or `ScoreHistogram.roc`."""
    if not isinstance(roc, ROC):
        raise TypeError(f"roc must be an ROC, from roc_curve; got {type(roc).__name__}")


class OperatingPoint(NamedTuple):
    """A threshold (0-dim, in the unit of the scores) and its rates (0-dim float64, fractions).

    >>> from pml_ext.functional import operating_point, roc_curve
    >>> roc = roc_curve(torch.tensor([0.75, 0.5]), torch.tensor([True, False]))
    >>> threshold, tar, far = operating_point(roc, far=1.0)
    >>> float(threshold), float(tar), float(far)
    (0.5, 1.0, 1.0)
    """

    threshold: Tensor
    tar: Tensor
    far: Tensor


def roc_curve(scores: Tensor, same: Tensor) -> ROC:
    """Returns the operating point at each distinct score; pairs with equal scores are accepted together.

    Args:
        scores: (P,) similarities, higher is more alike, finite (negate distances).
        same: (P,) bool, True for genuine pairs.
    Returns:
        ROC; the same points as scikit-learn's `roc_curve(same, scores, drop_intermediate=False)`.
    Raises:
        ValueError: different shapes, same not bool, scores not finite.

    >>> roc = roc_curve(torch.tensor([0.75, 0.5, 0.5]), torch.tensor([True, True, False]))
    >>> roc.thresholds.tolist(), roc.true_accepts.tolist(), roc.false_accepts.tolist()
    ([inf, 0.75, 0.5], [0, 1, 2], [0, 0, 1])
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


def roc_auc(roc: ROC) -> Tensor:
    """Returns the area under the ROC curve: P(a genuine pair scores above an impostor pair), where ties count half.

    Returns:
        0-dim float64 in [0, 1], 0.5 for uninformative scores; nan without genuine or without impostor pairs.

    >>> roc = roc_curve(torch.tensor([0.9, 0.7, 0.4, 0.1]), torch.tensor([True, False, True, False]))
    >>> float(roc_auc(roc))
    0.75
    """
    check_roc(roc)
    if not roc.genuine and not roc.impostors:  # a single point, whose area would be 0
        return roc.far.new_full((), torch.nan)
    return torch.trapezoid(roc.tar, roc.far)


def equal_error_rate(roc: ROC) -> OperatingPoint:
    """Returns the point at which FAR equals FRR, linearly interpolated between operating points.

    Returns:
        OperatingPoint with far = 1 − tar = the equal error rate, and the threshold whose actual FAR and FRR are closest
        to each other (they may differ from the rate); all nan without genuine or impostor pairs.

    >>> roc = roc_curve(torch.tensor([0.9, 0.7, 0.4, 0.1]), torch.tensor([True, False, True, False]))
    >>> float(equal_error_rate(roc).far)
    0.5
    """
    check_roc(roc)
    nearest = nearest_to_equal_errors(roc)
    if not roc.genuine or not roc.impostors:
        return nearest
    tar, far = roc.tar, roc.far
    after = place_at_equal_errors(roc)
    excess = far + tar - 1  # FAR − FRR, −1 at the first point, 1 at the last
    share = -excess[after - 1] / (excess[after] - excess[after - 1])
    rate = far[after - 1] + share * (far[after] - far[after - 1])
    return OperatingPoint(nearest.threshold, 1 - rate, rate)


def nearest_to_equal_errors(roc: ROC) -> OperatingPoint:
    """Returns the point with the smallest |FAR − FRR|, the laxer one of two; all nan without pairs of both kinds."""
    tar, far = roc.tar, roc.far
    if not roc.genuine or not roc.impostors:
        return _no_point(far.device)
    after = place_at_equal_errors(roc)
    before_excess, excess = (far + tar - 1)[after - 1 : after + 1].abs().tolist()
    place = after if excess <= before_excess else after - 1
    return OperatingPoint(roc.thresholds[place], tar[place], far[place])


def _no_point(device: torch.device) -> OperatingPoint:
    nothing = torch.full((), torch.nan, dtype=torch.float64, device=device)
    return OperatingPoint(nothing, nothing, nothing)


def place_at_equal_errors(roc: ROC) -> int:
    """Returns the index of the first point with FAR >= FRR; the curve must have both kinds of pairs."""
    # Cross-multiplied, so that equal rates compare equal; in float64, as int64 overflows at 3 · 10^9 pairs per kind.
    false_rejects = (roc.genuine - roc.true_accepts).double()
    return int((roc.false_accepts.double() * roc.genuine >= false_rejects * roc.impostors).nonzero()[0])


def first_refused(far: float, impostors: int) -> int | None:
    """Returns the rank, from 1, of the first impostor pair that would exceed a FAR in (0, 1]; impostors + 1 if none.

    Pairs tied with it are rejected too. None if far < 1 / impostors, which allows no false accept.
    """
    check_far(far)
    allowed = largest_count_within(far, impostors)
    return allowed + 1 if allowed else None


def largest_count_within(rate: float, total: int) -> int:
    """Returns the largest m with m / total <= rate, regardless of the rounding of rate * total."""
    m = int(rate * total)
    return m + (m < total and (m + 1) / total <= rate)


def tar_at_far(scores: Tensor, same: Tensor, far: float) -> Tensor:
    """Returns the largest true accept rate among the thresholds whose false accept rate is at most `far`.

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
    >>> [round(float(tar_at_far(scores, same, far=far)), 3) for far in (1 / 3, 0.1)]
    [1.0, nan]
    """
    return operating_point(roc_curve(scores, same), far).tar


def operating_point(roc: ROC, far: float) -> OperatingPoint:
    """Returns the largest true accept rate at a false accept rate of at most `far`, with its threshold.

    The threshold is the lowest whose FAR is at most `far`. It is inf, with rates of 0, if every finite threshold
    accepts too many impostors.

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
        return _no_point(roc.thresholds.device)
    return OperatingPoint(roc.thresholds[place], roc.tar[place], roc.far[place])


def place_at_far(roc: ROC, far: float) -> int | None:
    """Returns the index of `operating_point` on the curve, or None."""
    check_roc(roc)
    rank = first_refused(far, roc.impostors)
    if rank is None or not roc.genuine:
        return None
    return int(torch.searchsorted(roc.false_accepts, rank)) - 1  # the last count below the rank; the first is 0
