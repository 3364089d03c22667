"""False accepts and false rejects at given thresholds."""

from typing import NamedTuple

import torch
from torch import Tensor

from pml_ext._checks import check_number, check_tensor
from pml_ext.functional.verification.checks import check_scores


class VerificationErrors(NamedTuple):
    """Errors at thresholds, as counts and as fractions (nan without such pairs).

    false_accepts, false_rejects: int64 counts of impostor pairs accepted and of genuine pairs rejected.
    impostors, genuine: number of pairs of each kind.

    >>> errors = VerificationErrors(torch.tensor(1), torch.tensor(3), impostors=10, genuine=4)
    >>> float(errors.far), float(errors.frr)
    (0.1, 0.75)
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


def errors_at(scores: Tensor, same: Tensor, thresholds: Tensor | float) -> VerificationErrors:
    """False accepts and false rejects at thresholds: a pair is accepted if its score >= threshold.

    Args:
        scores, same: see `tar_at_far`.
        thresholds: one threshold, or a tensor of any shape, in the unit of the scores; not nan.
    Returns:
        VerificationErrors of the thresholds' shape. `rate_interval(errors.false_accepts, errors.impostors)` is the
        confidence interval of the rate.
    Raises:
        ValueError: see `tar_at_far`; a threshold is nan.

    >>> found = errors_at(torch.tensor([0.9, 0.7, 0.4, 0.1]), torch.tensor([True, False, True, False]), 0.5)
    >>> int(found.false_accepts), int(found.false_rejects), float(found.far)
    (1, 1, 0.5)
    """
    check_scores(scores, same)
    # Not in the precision of the scores: float16 would round the given threshold.
    if isinstance(thresholds, Tensor):
        check_tensor(thresholds, "thresholds", "(...)")
        if thresholds.is_complex() or thresholds.dtype == torch.bool:
            raise ValueError(f"thresholds must be numbers; got {thresholds.dtype}")
    else:
        check_number(thresholds, "thresholds")
    thresholds = torch.as_tensor(thresholds, dtype=torch.float64, device=scores.device)
    if bool(thresholds.isnan().any()):
        raise ValueError("thresholds must be numbers; got nan")
    genuine, impostors = (scores[kind].double().sort().values for kind in (same, ~same))
    false_accepts = len(impostors) - torch.searchsorted(impostors, thresholds)
    return VerificationErrors(false_accepts, torch.searchsorted(genuine, thresholds), len(impostors), len(genuine))
