"""Targets of a threshold: a maximum rate of the set, or one that other identities meet with a confidence."""

import math

from torch import Tensor

from pml_ext._shared.checks import check_fraction
from pml_ext.functional.pairwise.pair_distances import PairDistances
from pml_ext.functional.verification.intervals import independent_trials, rate_with_limit, rate_without_each
from pml_ext.functional.verification.roc import largest_count_within
from pml_ext.functional.verification.threshold import (
    threshold_accepting,
    threshold_at_far,
    threshold_at_frr,
    threshold_of_best_utility,
    threshold_rejecting,
)
from pml_ext.thresholds.fields import CAUTION, RateKind, Support, Target


def choose_target(
    far: float | None, frr: float | None, target: str | None, fpir: float | None, confidence: float | None
) -> Target:
    """Returns the target; TypeError for none or several."""
    if sum(value is not None for value in (far, frr, target, fpir)) != 1:
        raise TypeError(
            f'exactly one of far=, frr=, target="utility" and the fpir of search= must be given; got {far=}, {frr=}, '
            f"{target=}, {fpir=}"
        )
    if confidence is not None:
        check_fraction(confidence, "confidence")
    rates: dict[RateKind, float | None] = {"far": far, "frr": frr, "fpir": fpir}
    for kind, rate in rates.items():
        if rate is not None:
            check_fraction(rate, kind)
            return Target(kind, float(rate), confidence)
    if target != "utility":
        raise ValueError(f'target must be "utility" (or give far= or frr=); got {target!r}')
    if confidence is not None:
        raise ValueError(f"confidence needs a maximum rate, far=, frr= or an fpir; got {confidence:g} without one")
    return Target("utility")


def threshold_for(target: Target, pairs: PairDistances) -> tuple[float, Support | None]:
    """Returns the L2 distance that meets a target for pairs, and what its confidence rests on (None without one).

    Raises:
        ValueError: too few pairs, or too few independent errors.
    """
    rate = target.value
    if rate is None:
        return threshold_of_best_utility(pairs), None
    is_far = target.kind == "far"
    total = pairs.total_negative_pairs if is_far else pairs.total_positive_pairs
    if target.confidence is not None:
        # Too few even if all errors were independent: refused before the pairs are searched for the threshold.
        _check_support(target, rate * total, rate * total, len(pairs.classes))
    at_rate = threshold_at_far(pairs, rate) if is_far else threshold_at_frr(pairs, rate)
    if target.confidence is None:
        return at_rate, None
    accepted, false_accepts = pairs.accepted_at(at_rate, positives_only=not is_far)
    errors, counted = pairs.positive_pairs - accepted, pairs.positive_pairs
    if is_far:
        errors, counted = false_accepts, pairs.negative_pairs
    trials, support = support_of_pairs(target, errors.cpu(), counted.cpu())
    allowed = largest_count_within(limited_rate(target, trials, support, len(pairs.classes)), total)
    return (threshold_accepting if is_far else threshold_rejecting)(pairs, allowed), support


def support_of_pairs(target: Target, errors: Tensor, pairs: Tensor) -> tuple[float, Support]:
    """Returns the `independent_trials` and the support of (T,) errors and pairs per class, on the CPU."""
    classes_per_pair = 2 if target.kind == "far" else 1
    rate, without = rate_without_each(errors, pairs, classes_per_pair)
    total = int(pairs.sum()) // classes_per_pair
    return support_at(target, rate, without, total, errors=rate * total)


def support_at(target: Target, rate: float, without: Tensor, trials: int, *, errors: float) -> tuple[float, Support]:
    """Returns the `independent_trials` of a rate with (T,) `without`, and its support."""
    independent = float(min(len(without), trials))  # ties: the set has no threshold near the target
    if 0 < rate < 1:
        independent = independent_trials(rate, without, trials, target.confidence or CAUTION)
    return independent, Support(errors, rate * independent)


def limited_rate(target: Target, trials: float, support: Support, identities: int) -> float:
    """Returns the rate that the set may have, so that other identities meet the target with its confidence.

    Raises:
        ValueError: too few independent errors, even for a threshold without errors.
    """
    assert target.value is not None and target.confidence is not None
    rate = rate_with_limit(target.value, trials, target.confidence)
    if rate is None:
        expected = target.value * trials
        _check_support(target, max(support.errors, expected), expected, identities)
    return rate or 0.0


def _check_support(target: Target, errors: float, independent: float, identities: int) -> None:
    """Raise for fewer independent errors than even a threshold without errors needs (3 for 95 %)."""
    assert target.value is not None and target.confidence is not None
    needed = target.value * math.log1p(-target.confidence) / math.log1p(-target.value)
    more = math.ceil(identities * needed / independent)
    if independent < needed:
        raise ValueError(
            f"{target.kind.upper()} {target.value:g} with confidence {target.confidence:g} needs at least {needed:.1f} "
            f"independent errors at this rate; the set has {errors:.3g} ({independent:.2g} independent ones, as pairs "
            f"share identities). Measure about {more:,} identities instead of "
            f"{identities:,}, or allow a higher rate"
        )
