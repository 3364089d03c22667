"""Confidence intervals of rates, for independent trials, over classes, and by resampling subjects."""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pml_ext._shared.checks import check_fraction, check_shapes_broadcast, tensor_of

_TAIL, _DEVIATIONS = 0.025, 1.96  # of the normal distribution, for intervals of 95 %


def rate_interval(errors: Tensor | int, trials: Tensor | int, confidence: float = 0.95) -> tuple[Tensor, Tensor]:
    """Returns the Clopper-Pearson interval of the rate errors / trials.

    It covers the true rate with at least that probability if trials are independent. Pairs are not: all
    pairs of a subject share its images, so the interval is too narrow, and more so with many pairs per subject. Use
    `ThresholdReport` for pairs: its intervals leave out one identity at a time.

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
    counts = {"errors": tensor_of(errors), "trials": tensor_of(trials)}
    for name, count in counts.items():
        if count.is_floating_point() or count.is_complex() or count.dtype == torch.bool:
            raise ValueError(f"{name} must be integer counts; got {count.dtype}")
    check_shapes_broadcast("rate_interval", **counts)
    wrong, total = torch.broadcast_tensors(*counts.values())
    outside = (wrong < 0) | (wrong > total)
    if bool(outside.any()):
        example = f"{int(wrong[outside][0])} of {int(total[outside][0])}"
        raise ValueError(f"errors must be from 0 to trials; got {example}")
    ends = interval_of_share(wrong.double().cpu().numpy(), total.double().cpu().numpy(), confidence)
    lower, upper = (torch.as_tensor(end, dtype=torch.float64, device=wrong.device) for end in ends)
    nothing = total == 0
    return lower.masked_fill(nothing, torch.nan), upper.masked_fill(nothing, torch.nan)


def interval_of_share(errors: Any, trials: Any, confidence: float) -> tuple[Any, Any]:
    """`rate_interval` for floats or float64 arrays; counts may be fractional."""
    from scipy.special import betaincinv  # a dependency of pytorch-metric-learning's scikit-learn

    tail = (1 - confidence) / 2
    # At the ends of the range a parameter of the beta distribution is 0 and scipy's quantile is nan.
    lower = np.where(errors == 0, 0.0, betaincinv(errors, trials - errors + 1, tail))
    upper = np.where(errors == trials, 1.0, betaincinv(errors + 1, trials - errors, 1 - tail))
    return lower[()], upper[()]


def class_rate_interval(
    errors: Tensor, pairs: Tensor, classes_per_pair: int, *, confidence: float = 0.95
) -> tuple[float, float]:
    """Interval of the pooled error rate of pairs, for classes like those measured; errors, pairs: (T,) int64.

    A `jackknife_interval`, because pairs of a class share samples. classes_per_pair: see `rate_without_each`.
    """
    rate, without = rate_without_each(errors, pairs, classes_per_pair)
    trials = int(pairs.sum()) // classes_per_pair
    return jackknife_interval(rate, without, trials, confidence, effective_number(pairs))


def rate_without_each(errors: Tensor, pairs: Tensor, classes_per_pair: int) -> tuple[float, Tensor]:
    """Returns the pooled rate of (T,) counts, and the rates with each class left out, for classes with pairs.

    classes_per_pair: number of classes that count a pair: 2 for impostor pairs, 1 for genuine pairs.
    """
    wrong, total = int(errors.sum()) // classes_per_pair, int(pairs.sum()) // classes_per_pair
    if not total:
        raise ValueError("a rate needs at least one pair; got none")
    counted = pairs > 0
    # nan if all pairs have a sample of the class: no pair is left without it
    return wrong / total, (wrong - errors[counted]).double() / (total - pairs[counted])


def effective_number(weights: Tensor) -> float:
    """Returns the effective number of classes with (T,) weights: T for equal weights, about 1 if one class dominates.

    Source: Kish, Survey Sampling, 1965.
    """
    weights = weights.double()
    return float(weights.sum() ** 2 / weights.square().sum())


def jackknife_interval(
    rate: float, without: Tensor, trials: int, confidence: float, classes: float
) -> tuple[float, float]:
    """Returns Jeffreys' interval of a mean in [0, 1], for as many trials as give a binomial the jackknife variance.

    Fewer classes make it wider, as Student's t is wider than a normal distribution. Clopper-Pearson's would be too
    wide: a mean over pairs is not a count of trials. If the mean is 0 or 1, or only one class remains, the variance is
    unknown; each class then counts as one trial, and the interval is Clopper-Pearson's. For Pareto distributed class
    sizes, 92 to 98 % of the 95 % intervals for FRR cover the rate (83 to 93 % if Student's t counted every class as
    one). Its width does not depend on which classes have the errors: where few have most of them, too few intervals
    cover the rate (at a rate of 0.2 %, and 300 classes whose rates are Beta(0.002, 0.998) distributed, 80 %).

    without: (T,) the mean with each class left out; trials: upper limit of the trials; classes: `effective_number`.
    Source: Arvesen, Annals of Mathematical Statistics 40 (1969), jackknife of U-statistics; Korn and Graubard, Survey
        Methodology 24 (1998), effective sample size with t; Brown, Cai and DasGupta, Statistical Science 16 (2001),
        Jeffreys' interval.
    """
    from scipy.special import betaincinv, ndtri, stdtrit  # a dependency of pytorch-metric-learning's scikit-learn

    tail = (1 - confidence) / 2
    variance = float(jackknife_variance(without)) if len(without) > 1 else math.nan
    if not 0 < rate < 1 or math.isnan(variance):
        share = float(min(classes, trials))
        low, high = interval_of_share(rate * share, share, confidence)
        return float(low), float(high)
    effective = min(trials, max(1.0, rate * (1 - rate) / variance)) if variance else float(trials)
    effective *= (ndtri(tail) / stdtrit(max(1.0, classes - 1), tail)) ** 2
    wrong, right = rate * effective + 0.5, (1 - rate) * effective + 0.5
    # The prior's half trials must not move an end over the rate itself.
    low, high = float(betaincinv(wrong, right, tail)), float(betaincinv(wrong, right, 1 - tail))
    return min(rate, low), max(rate, high)


def jackknife_variance(without: Tensor) -> Tensor:
    """Returns the variances of statistics, from their (T, …) values with each class left out."""
    return (without - without.mean(dim=0)).square().sum(dim=0) * (1 - 1 / len(without))


def jackknife_freedom(without: Tensor) -> Tensor:
    """Returns the degrees of freedom of each `jackknife_variance`, from the shares that the T ≥ 2 classes have in it.

    Source: Satterthwaite, Biometrics Bulletin 2 (1946).
    """
    squares = (without - without.mean(dim=0)).square()
    excess = squares.square().sum(dim=0) / squares.sum(dim=0).square() - 1 / len(squares)
    return (2 / excess.clamp_min(1e-12)).clamp(1, len(squares) - 1)


def independent_trials(rate: float, without: Tensor, trials: int, confidence: float) -> float:
    """Returns the number of independent trials that know a rate in (0, 1) as well as the pairs do, with (T,) `without`.

    It is that of `jackknife_interval`, but for a promise about other identities. Where few classes have most of the
    errors, their variance is uncertain, too: Student's t has the `jackknife_freedom` instead of the `effective_number`.
    In the example of `jackknife_interval`, 96 % of such intervals cover the rate.
    """
    from scipy.special import ndtri, stdtrit

    variance = float(jackknife_variance(without)) if len(without) > 1 else math.nan
    if math.isnan(variance):
        return float(min(len(without), trials))
    if not variance:
        return float(trials)
    wider = float(stdtrit(float(jackknife_freedom(without)), confidence) / ndtri(confidence))
    return min(trials, rate * (1 - rate) / variance) / wider**2


def trials_of_interval(errors: float, pairs: float, low: float, high: float) -> float:
    """Returns the number of independent trials that gives errors / pairs the interval from low to high.

    The interval is one of 95 %, as in every report.
    """
    if errors in (0, pairs):
        return math.log(_TAIL) / math.log1p(-min(high - low, 1 - _TAIL))
    rate, deviation = errors / pairs, (high - low) / (2 * _DEVIATIONS)
    return min(pairs, rate * (1 - rate) / max(deviation, 1e-9) ** 2)


def rate_with_limit(limit: float, trials: float, confidence: float) -> float | None:
    """Returns the rate whose one-sided upper Clopper-Pearson limit is `limit`; None if no error at all is too many.

    trials: `independent_trials` at the threshold whose observed rate is `limit`, where the true rate is tested.
    """
    from scipy.optimize import brentq
    from scipy.special import betainc

    if (1 - limit) ** trials > 1 - confidence:
        return None

    def excess(errors: float) -> float:
        return float(betainc(errors + 1, trials - errors, limit)) - confidence

    return float(brentq(excess, 0, trials * limit)) / trials


def half_widths(without: Tensor, confidence: float = 0.95) -> Tensor:
    """Returns the (…) half widths of t intervals, from (T, …) statistics with each class left out."""
    from scipy.special import stdtrit

    times = float(stdtrit(len(without) - 1, (1 + confidence) / 2))
    return times * jackknife_variance(without).sqrt()
