"""Confidence interval of an error rate."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from pml_ext._checks import check_fraction, check_shapes_broadcast, check_tensor, check_whole


def rate_interval(errors: Tensor | int, trials: Tensor | int, confidence: float = 0.95) -> tuple[Tensor, Tensor]:
    """Clopper-Pearson interval of the rate errors / trials.

    It covers the true rate with at least the given probability if trials are independent. Pairs are not, because all
    pairs of a subject share its images: for pairs the interval is too narrow, more so with many pairs per subject. Use
    `functional.bootstrap_tar_at_far`, which resamples subjects.

    Args:
        errors, trials: counts, integers or integer tensors that broadcast, 0 <= errors <= trials.
        confidence: probability of covering the true rate, in (0, 1).
    Returns:
        lower, upper: float64 fractions of the broadcast shape (0-dim for integers); nan where trials is 0. Without
        errors upper is 1 − (α / 2)^(1 / trials), about 3.7 / trials at 95 %.
    Raises:
        ValueError: counts not integers, errors not in [0, trials], confidence not in (0, 1).
    Source: Clopper and Pearson, Biometrika 26 (1934): quantiles of beta distributions.

    >>> lower, upper = rate_interval(3, 1000)
    >>> round(float(lower), 5), round(float(upper), 5)
    (0.00062, 0.00874)
    """
    check_fraction(confidence, "confidence")
    for name, count in (("errors", errors), ("trials", trials)):
        if isinstance(count, Tensor):
            check_tensor(count, name, "(...)")
        elif isinstance(count, float):
            raise ValueError(f"{name} must be integer counts; got {count!r}")
        else:
            check_whole(count, name)
    given = torch.as_tensor(errors), torch.as_tensor(trials)
    check_shapes_broadcast("rate_interval", errors=given[0], trials=given[1])
    counts = torch.broadcast_tensors(*given)
    for name, count in zip(("errors", "trials"), counts, strict=True):
        if count.is_floating_point() or count.is_complex() or count.dtype == torch.bool:
            raise ValueError(f"{name} must be integer counts; got {count.dtype}")
    if bool(((counts[0] < 0) | (counts[0] > counts[1])).any()):
        raise ValueError("errors must be from 0 to trials; got " + _first_outside(*counts))
    lower, upper = interval_of_share(counts[0].double().cpu().numpy(), counts[1].double().cpu().numpy(), confidence)
    ends = (torch.as_tensor(end, dtype=torch.float64, device=counts[0].device) for end in (lower, upper))
    lower, upper = (end.masked_fill(counts[1] == 0, torch.nan) for end in ends)
    return lower, upper


def interval_of_share(errors: Any, trials: Any, confidence: float) -> tuple[Any, Any]:
    """`rate_interval` of floats or of float64 arrays; counts need not be whole."""
    from scipy.special import betaincinv  # a dependency of pytorch-metric-learning's scikit-learn

    tail = (1 - confidence) / 2
    # At the ends of the range a parameter of the beta distribution is 0 and scipy's quantile is nan.
    lower = np.where(errors == 0, 0.0, betaincinv(errors, trials - errors + 1, tail))
    upper = np.where(errors == trials, 1.0, betaincinv(errors + 1, trials - errors, 1 - tail))
    return lower[()], upper[()]


def _first_outside(errors: Tensor, trials: Tensor) -> str:
    outside = (errors < 0) | (errors > trials)
    return f"{int(errors[outside][0])} of {int(trials[outside][0])}"
