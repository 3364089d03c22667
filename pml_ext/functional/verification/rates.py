"""Verification: true accepts at a bounded rate of false accepts, and the errors at a threshold."""

from typing import NamedTuple

import torch
from torch import Tensor

from pml_ext._checks import check_finite


class VerificationErrors(NamedTuple):
    """Errors at thresholds, as counts and as fractions (nan where there are no such pairs).

    false_accepts, false_rejects: int64 counts of impostor pairs accepted and of genuine pairs refused.
    impostors, genuine: how many pairs there are of each kind.
    """

    false_accepts: Tensor
    false_rejects: Tensor
    impostors: int
    genuine: int

    @property
    def far(self) -> Tensor:
        return self.false_accepts.double() / self.impostors

    @property
    def frr(self) -> Tensor:
        return self.false_rejects.double() / self.genuine


def tar_at_far(scores: Tensor, same: Tensor, far: float) -> Tensor:
    """The largest true accept rate among the thresholds whose false accept rate is at most `far`.

    A pair is accepted when its score >= threshold. An impostor pair is a false accept when it is accepted. Tied
    scores are accepted together; nothing is interpolated. `operating_point` gives the threshold too.

    Args:
        scores: (P,) similarities, higher is more alike, finite (negate distances).
        same: (P,) bool, True for genuine pairs.
        far: allowed false accept rate, in (0, 1].
    Returns:
        0-dim float64, a fraction; nan without genuine pairs, and where impostor pairs are too few to support the
        rate (far < 1 / impostor pairs: not one false accept would be allowed).
    Raises:
        ValueError: shapes that differ, same not bool, far outside (0, 1], scores not finite.
    Source: the standard TAR at FAR of the NIST and IJB protocols. FastReID labels impostors 1 and takes the nearest
        rate: it reports impostor rejection.
    """
    check_scores(scores, same)
    check_far(far)
    genuine, impostors = scores[same], scores[~same]
    allowed = largest_count_within(far, len(impostors))
    if not len(genuine) or not allowed:
        return torch.full((), torch.nan, dtype=torch.float64, device=scores.device)
    if allowed == len(impostors):
        return torch.ones((), dtype=torch.float64, device=scores.device)
    # The threshold must pass above the first impostor that is one too many, and above all that tie with it.
    first_refused = impostors.sort(descending=True).values[allowed]
    return (genuine > first_refused).double().mean()


def errors_at(scores: Tensor, same: Tensor, thresholds: Tensor | float) -> VerificationErrors:
    """False accepts and false rejects at thresholds: a pair is accepted when its score >= threshold.

    Args:
        scores, same: as of `tar_at_far`.
        thresholds: one threshold, or a tensor of any shape, in the units of the scores; not nan.
    Returns:
        VerificationErrors of the thresholds' shape. `rate_interval(errors.false_accepts, errors.impostors)` is the
        confidence interval of the rate.
    Raises:
        ValueError: as of `tar_at_far`; a threshold that is nan.
    """
    check_scores(scores, same)
    # Not in the precision of the scores: a float16 threshold would not be the one that was asked for.
    thresholds = torch.as_tensor(thresholds, dtype=torch.float64, device=scores.device)
    if bool(thresholds.isnan().any()):
        raise ValueError("thresholds must be numbers; got nan")
    genuine, impostors = (scores[kind].double().sort().values for kind in (same, ~same))
    false_accepts = len(impostors) - torch.searchsorted(impostors, thresholds)
    return VerificationErrors(false_accepts, torch.searchsorted(genuine, thresholds), len(impostors), len(genuine))


def largest_count_within(rate: float, total: int) -> int:
    """The largest m with m / total <= rate, free of the rounding of rate * total."""
    m = int(rate * total)
    return m + (m < total and (m + 1) / total <= rate)


def check_scores(scores: Tensor, same: Tensor) -> None:
    """One finite score and one bool a pair."""
    for name, given in (("scores", scores), ("same", same)):
        if not isinstance(given, Tensor):
            raise TypeError(f"{name} must be a torch.Tensor of shape (P,); got {type(given).__name__}")
    if scores.ndim != 1 or not scores.is_floating_point():
        raise ValueError(f"scores must be a floating (P,) tensor; got {scores.dtype} {tuple(scores.shape)}")
    if same.shape != scores.shape or same.dtype != torch.bool:
        raise ValueError(f"same must be bool of shape {tuple(scores.shape)}; got {same.dtype} {tuple(same.shape)}")
    check_finite(scores, "scores")


def check_far(far: float) -> None:
    if not 0 < far <= 1:
        raise ValueError(f"far must be in (0, 1]; got {far!r}")
