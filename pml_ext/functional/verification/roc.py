"""The ROC curve of verification as counts, its area and its equal error rate."""

from typing import NamedTuple

import torch
from torch import Tensor

from pml_ext.functional.verification.checks import check_scores


class ROC(NamedTuple):
    """Operating points from the strictest threshold to the laxest; a pair is accepted if its score >= threshold.

    thresholds: (K,) descending, in the unit of the scores. The first is inf, which accepts nothing; the last accepts
        everything.
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
    """The operating point at each distinct score; pairs with equal scores are accepted together.

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
    """Area under the ROC curve: the probability that a genuine pair scores above an impostor pair; ties count half.

    Returns:
        0-dim float64 in [0, 1], 0.5 for uninformative scores; nan without genuine or without impostor pairs.

    >>> float(roc_auc(roc_curve(torch.tensor([0.9, 0.7, 0.4, 0.1]), torch.tensor([True, False, True, False]))))
    0.75
    """
    check_roc(roc)
    return torch.trapezoid(roc.tar, roc.far)


def equal_error_rate(roc: ROC) -> OperatingPoint:
    """Where the false accept rate equals the false reject rate, linearly interpolated between operating points.

    Returns:
        OperatingPoint with far = 1 − tar = the equal error rate, and the threshold of the first point with FAR >= FRR
        (its actual rates may differ); all nan without genuine or impostor pairs.

    >>> roc = roc_curve(torch.tensor([0.9, 0.7, 0.4, 0.1]), torch.tensor([True, False, True, False]))
    >>> float(equal_error_rate(roc).far)
    0.5
    """
    check_roc(roc)
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
    """The index of the first point with FAR >= FRR; the curve must have both kinds of pairs."""
    # Cross-multiplied, so that equal rates compare equal; in float64, as int64 overflows at 3 · 10^9 pairs per kind.
    false_rejects = (roc.genuine - roc.true_accepts).double()
    return int((roc.false_accepts.double() * roc.genuine >= false_rejects * roc.impostors).nonzero()[0])
