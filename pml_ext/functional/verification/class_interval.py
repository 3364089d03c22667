"""Confidence interval of an error rate over pairs or probes, when classes were sampled instead."""

import math

from torch import Tensor

from pml_ext.functional.verification.clopper_pearson import interval_of_share


def class_rate_interval(
    errors: Tensor, pairs: Tensor, *, pairs_span_classes: bool, confidence: float = 0.95
) -> tuple[float, float]:
    """Interval of the pooled error rate of pairs, for classes like those measured; errors, pairs: (T,) int64.

    A `jackknife_interval`, because pairs of a class share samples. An impostor pair is counted by both of its classes.
    """
    share = 2 if pairs_span_classes else 1
    wrong, total = int(errors.sum()) // share, int(pairs.sum()) // share
    if not total:
        raise ValueError("a rate needs at least one pair; got none")
    counted = pairs > 0
    # nan if a class takes part in all pairs: nothing is left without it
    without = (wrong - errors[counted]).double() / (total - pairs[counted])
    return jackknife_interval(wrong / total, without, total, confidence, effective_number(pairs))


def effective_number(weights: Tensor) -> float:
    """Of classes with (T,) weights: T of equal weights, about 1 where one class has nearly all.

    Source: Kish, Survey Sampling, 1965.
    """
    weights = weights.double()
    return float(weights.sum() ** 2 / weights.square().sum())


def jackknife_interval(
    rate: float, without: Tensor, trials: int, confidence: float, classes: float
) -> tuple[float, float]:
    """Jeffreys' interval of a mean in [0, 1], for the trials whose binomial variance equals the jackknife's.

    Fewer classes make it wider, as Student's t is wider than a normal variable. Clopper-Pearson's would be too wide: a
    mean over pairs is no count of trials. If the mean is 0 or 1, or one class is left, its variance is unknown: then
    each class counts as one trial, and the interval is Clopper-Pearson's. Of 95 % intervals for FRR, 92 to 98 % hold
    the rate if class sizes are Pareto distributed (83 to 93 % if every class counted as one in Student's t).

    without: (T,) the mean without each of T classes; trials: the most that count; classes: their `effective_number`.
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
    return min(rate, float(betaincinv(wrong, right, tail))), max(rate, float(betaincinv(wrong, right, 1 - tail)))


def jackknife_variance(without: Tensor) -> Tensor:
    """Variances of statistics, from their (T, …) values without each of T classes."""
    return (without - without.mean(dim=0)).square().sum(dim=0) * (1 - 1 / len(without))


def half_width(without: Tensor, confidence: float = 0.95) -> float:
    """Of a t interval of a statistic, from its (T,) values without each of T classes."""
    from scipy.special import stdtrit

    return float(stdtrit(len(without) - 1, (1 + confidence) / 2) * jackknife_variance(without).sqrt())
