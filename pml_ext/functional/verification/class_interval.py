"""Confidence interval of an error rate over pairs, when classes were sampled instead of pairs."""

from torch import Tensor

from pml_ext.functional.verification.clopper_pearson import rate_interval


def class_rate_interval(
    errors: Tensor, pairs: Tensor, *, pairs_span_classes: bool, confidence: float = 0.95
) -> tuple[float, float]:
    """Interval of the pooled error rate of pairs, for classes like those measured; errors, pairs: (T,) int64.

    It is `rate_interval` for the number of pairs, at most the actual one, whose binomial variance equals the
    jackknife's (omitting one class at a time), because pairs of a class share samples. If no pair or every pair is an
    error, the variance is unknown and each class counts as one pair. Impostor pairs span classes: each counts for two.
    Source: Arvesen, Annals of Mathematical Statistics 40 (1969), jackknife of U-statistics; Korn and Graubard, Survey
        Methodology 24 (1998), Clopper-Pearson with an effective sample size.
    """
    share = 2 if pairs_span_classes else 1
    wrong, total = int(errors.sum()) // share, int(pairs.sum()) // share
    if not total:
        raise ValueError("a rate needs at least one pair; got none")
    counted = pairs > 0
    count = int(counted.sum())
    rate = wrong / total
    if 0 < wrong < total:
        without = (wrong - errors[counted]).double() / (total - pairs[counted])
        variance = float((without - without.mean()).square().sum()) * (count - 1) / count
        # nan if a class takes part in all pairs: nothing is left without it
        effective = rate * (1 - rate) / variance if variance > 0 else total if variance == 0 else count
    else:
        effective = count
    trials = max(1, min(total, round(effective)))
    low, high = rate_interval(round(rate * trials), trials, confidence)
    return float(low), float(high)
