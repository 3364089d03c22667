"""Histogram of verification scores, for streams too long to store, with error bounds."""

import torch
from torch import Tensor

from pml_ext._shared.checks import check_in_range
from pml_ext.functional.verification.roc import ROC, check_roc, check_scores, place_at_equal_errors, place_at_far

MOST_UNITS = 128  # from low to high
_COUNTED_AT_ONCE = 2**16  # temporaries stay in the cache


class ScoreHistogram:
    """Counts of genuine and impostor scores in bins of 2⁻¹⁹ (1.9e-6), in memory independent of their number.

    The width is a power of two and bin edges are its multiples, so rounding moves no score over an edge: operating
    points at the edges are exact. Between edges `tar_bounds`, `auc_bounds` and `eer_bounds` bound the error. Ranks
    count their pairs and `merge`, or all-reduce `counts`. The order of updates does not change the result.

    Args:
        low, high: the range of scores, integers at most 128 apart: −1 and 1 for cosines, −2 and 0 for negated distances
            of unit vectors. Scores outside count as low or high: the bounds still hold, but are wide there. Memory is
            8.4 MB per unit.
        device: device of the counts; scores are moved to it.
    Attributes:
        counts: (2, bins + 1) int64: impostor and genuine scores in [low + bin · width, low + (bin + 1) · width); the
            last bin is [high, inf).

    >>> histogram = ScoreHistogram()
    >>> histogram.update(torch.tensor([0.9, 0.7]), torch.tensor([True, False]))
    >>> histogram.update(torch.tensor([0.4, 0.1]), torch.tensor([True, False]))
    >>> histogram.roc().true_accepts.tolist()
    [0, 1, 1, 2, 2]
    """

    BINS_PER_UNIT = 2**19

    def __init__(self, low: int = -1, high: int = 1, *, device: torch.device | str = "cpu") -> None:
        for name, end in (("low", low), ("high", high)):
            check_in_range(end, -(2**40), 2**40, name)
        self.low, self.high = int(low), int(high)
        if (self.low, self.high) != (low, high) or not 0 < self.high - self.low <= MOST_UNITS:
            raise ValueError(
                f"low and high must be ascending integers at most {MOST_UNITS} apart ({MOST_UNITS * 8.4:.0f} MB); got "
                f"{low!r} and {high!r}. Divide wider scores by a constant: only their order matters"
            )
        bins = (self.high - self.low) * self.BINS_PER_UNIT
        self.counts = torch.zeros((2, bins + 1), dtype=torch.int64, device=device)

    def update(self, scores: Tensor, same: Tensor) -> None:
        """Count pairs.

        Args:
            scores: (P,) similarities, higher is more alike, finite (negate distances).
            same: (P,) bool, True for genuine pairs.
        Raises:
            ValueError: different shapes, same not bool, scores not finite; then nothing is counted.
        """
        check_scores(scores, same)
        same = same.to(scores.device)
        self.count(scores[~same], 0)
        self.count(scores[same], 1)

    def count(self, scores: Tensor, row: int) -> None:
        """Count (P,) scores, unchecked, in a row of `counts`: 0 for impostor scores, 1 for genuine ones."""
        scores = scores.detach().to(self.counts.device)
        at_once = _COUNTED_AT_ONCE if scores.device.type == "cpu" else max(1, len(scores))
        for some in scores.split(at_once):
            wide = some if some.dtype == torch.float64 else some.float()
            # Scaling by a power of two and floor are exact, so is the shift of the integers.
            place = wide.clamp(self.low, self.high).mul_(self.BINS_PER_UNIT).floor_().long()
            place.sub_(self.low * self.BINS_PER_UNIT)
            self.counts[row].scatter_add_(0, place, place.new_ones(1).expand_as(place))

    def merge(self, other: "ScoreHistogram") -> None:
        """Add the counts of another histogram with the same low and high."""
        if not isinstance(other, ScoreHistogram):
            raise TypeError(f"other must be a ScoreHistogram; got {type(other).__name__}")
        if (other.low, other.high) != (self.low, self.high):
            raise ValueError(
                f"other must have the range [{self.low}, {self.high}] of this histogram; "
                f"got [{other.low}, {other.high}]"
            )
        self.counts += other.counts.to(self.counts.device)

    def reset(self) -> None:
        self.counts.zero_()

    def roc(self) -> ROC:
        """The exact operating points at the edges of non-empty bins. Thresholds are float64; the last is −inf."""
        filled = self.counts.sum(0).nonzero().squeeze(1).flip(0)
        impostors, genuine = self.counts[:, filled].cumsum(1)
        thresholds = self.low + filled.double() / self.BINS_PER_UNIT
        thresholds[filled == 0] = -torch.inf  # includes the scores below low
        nothing = filled.new_zeros(1)
        return ROC(
            torch.cat([thresholds.new_full((1,), torch.inf), thresholds]),
            torch.cat([nothing, genuine]),
            torch.cat([nothing, impostors]),
        )


def tar_bounds(roc: ROC, far: float) -> tuple[Tensor, Tensor]:
    """Returns bounds of the largest true accept rate at a false accept rate of at most `far`.

    Args:
        roc: some of the operating points of the scores, from `ScoreHistogram.roc`.
        far: allowed false accept rate, in (0, 1].
    Returns:
        lower, upper: 0-dim float64. lower is the rate at `operating_point(roc, far)`; upper is the rate at the next
        point, which exceeds `far`. nan if `operating_point` is.

    >>> from pml_ext.functional import roc_curve
    >>> roc = roc_curve(torch.tensor([0.9, 0.7, 0.4, 0.1]), torch.tensor([True, False, True, False]))
    >>> [float(bound) for bound in tar_bounds(roc, far=0.5)]
    [1.0, 1.0]
    """
    place, tar = place_at_far(roc, far), roc.tar
    if place is None:
        nothing = torch.full((), torch.nan, dtype=torch.float64, device=tar.device)
        return nothing, nothing
    return tar[place], tar[min(place + 1, len(tar) - 1)]


def auc_bounds(roc: ROC) -> tuple[Tensor, Tensor]:
    """Returns bounds of the area under the full ROC curve: every tie inside a bin counts as lost, or as won.

    Args:
        roc: some of the operating points of the scores; `roc_auc(roc)` is the midpoint.

    >>> from pml_ext.functional import roc_curve
    >>> roc = roc_curve(torch.tensor([0.5, 0.5]), torch.tensor([True, False]))  # a tie: won or lost
    >>> [float(bound) for bound in auc_bounds(roc)]
    [0.0, 1.0]
    """
    check_roc(roc)
    steps = roc.far.diff()
    return (steps * roc.tar[:-1]).sum(), (steps * roc.tar[1:]).sum()


def eer_bounds(roc: ROC) -> tuple[Tensor, Tensor]:
    """Returns bounds of the equal error rate of the full ROC curve.

    Args:
        roc: some of the operating points of the scores.
    Returns:
        lower, upper: 0-dim float64; nan without genuine or impostor pairs.

    >>> from pml_ext.functional import roc_curve
    >>> roc = roc_curve(torch.tensor([0.9, 0.7, 0.4, 0.1]), torch.tensor([True, False, True, False]))
    >>> [float(bound) for bound in eer_bounds(roc)]
    [0.5, 0.5]
    """
    check_roc(roc)
    far, frr = roc.far, 1 - roc.tar
    if not roc.genuine or not roc.impostors:
        return far[-1] + frr[-1], far[-1] + frr[-1]
    after = place_at_equal_errors(roc)
    # Between the two points FAR rises and FRR falls, so the crossing is within the ends of both.
    return torch.maximum(far[after - 1], frr[after]), torch.minimum(far[after], frr[after - 1])
