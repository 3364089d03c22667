"""Confidence interval of an error rate over pairs or probes, when classes were sampled instead."""

from torch import Tensor

from pml_ext.functional.verification.clopper_pearson import interval_of_share


def class_rate_interval(
    errors: Tensor, pairs: Tensor, *, pairs_span_classes: bool, confidence: float = 0.95
) -> tuple[float, float]:
    """Interval of the pooled error rate of pairs, for classes like those measured; errors, pairs: (T,) int64.

    A `jackknife_interval`, because pairs of a class share samples. Impostor pairs span classes: each counts for two.
    """
    share = 2 if pairs_span_classes else 1
    wrong, total = int(errors.sum()) // share, int(pairs.sum()) // share
    if not total:
        raise ValueError("a rate needs at least one pair; got none")
    counted = pairs > 0
    # nan if a class takes part in all pairs: nothing is left without it
    without = (wrong - errors[counted]).double() / (total - pairs[counted])
    return jackknife_interval(wrong / total, without, total, confidence)


def jackknife_interval(rate: float, without: Tensor, trials: int, confidence: float) -> tuple[float, float]:
    """The Clopper-Pearson interval of a mean in [0, 1] for the trials whose binomial variance equals the jackknife's.

    without: (T,) the mean without each of T classes; trials: the most that count. If the mean is 0 or 1, its variance
    is unknown and each class counts as one trial.
    Source: Arvesen, Annals of Mathematical Statistics 40 (1969), jackknife of U-statistics; Korn and Graubard, Survey
        Methodology 24 (1998), Clopper-Pearson with an effective sample size.
    """
    count = len(without)
    effective = float(min(count, trials))
    if 0 < rate < 1:
        variance = float(jackknife_variance(without))
        if variance >= 0:
            effective = min(trials, max(1.0, rate * (1 - rate) / variance)) if variance else float(trials)
    low, high = interval_of_share(rate * effective, effective, confidence)
    return float(low), float(high)


def jackknife_variance(without: Tensor) -> Tensor:
    """Variances of statistics, from their (T, …) values without each of T classes."""
    return (without - without.mean(dim=0)).square().sum(dim=0) * (1 - 1 / len(without))


def half_width(without: Tensor, confidence: float = 0.95) -> float:
    """Of a t interval of a statistic, from its (T,) values without each of T classes."""
    from scipy.stats import t

    return float(t.ppf((1 + confidence) / 2, len(without) - 1) * jackknife_variance(without).sqrt())
