"""Targets with a confidence, against exact binomial tests and simulated identities."""

import pytest
import torch
from pytest import approx
from scipy.stats import binom

from pml_ext.functional.verification.intervals import independent_trials, rate_with_limit
from pml_ext.thresholds import SearchPlan, ThresholdReport

LABELS = torch.arange(400) // 4


def a_set(noise=0.8):
    generator = torch.Generator().manual_seed(5)
    people = torch.randn(100, 12, generator=generator)[LABELS]
    return people + noise * torch.randn(400, 12, generator=generator)


@pytest.mark.parametrize(("trials", "limit"), [(300, 0.05), (1000, 0.02), (60, 0.3)])
@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.99])
def test_the_limit_is_the_exact_test_of_a_binomial_rate(trials, limit, confidence):
    errors = rate_with_limit(limit, trials, confidence) * trials
    # So many errors, rounded down, are too few for a rate at the limit; one more is not.
    assert binom.cdf(int(errors), trials, limit) <= 1 - confidence < binom.cdf(int(errors) + 1, trials, limit)


def test_without_errors_it_is_the_rule_of_three():
    assert rate_with_limit(0.01, 298, 0.95) is None
    assert rate_with_limit(0.01, 299, 0.95) == approx(0, abs=5e-5)


def test_independent_classes_count_fully_and_one_dominant_class_hardly():
    generator = torch.Generator().manual_seed(0)
    wrong = (torch.rand(2000, generator=generator) < 0.1).double()
    without = (wrong.sum() - wrong) / 1999
    assert independent_trials(float(wrong.mean()), without, 2000, 0.95) == approx(2000, rel=0.01)
    one = torch.zeros(50, dtype=torch.float64)
    one[0] = 40
    assert independent_trials(0.4, (40 - one) / 98, 100, 0.95) < 1


@pytest.mark.parametrize("options", [{"far": 0.01}, {"frr": 0.3}, {"search": SearchPlan(50, fpir=0.4)}])
def test_a_confidence_makes_the_threshold_stricter(options):
    plain = ThresholdReport.from_embeddings(a_set(), LABELS, **options)
    sure = ThresholdReport.from_embeddings(a_set(), LABELS, confidence=0.95, **options)
    surer = ThresholdReport.from_embeddings(a_set(), LABELS, confidence=0.99, **options)
    sign = -1 if "frr" in options else 1
    assert sign * plain.cosine < sign * sure.cosine < sign * surer.cosine
    assert sure.target.confidence == 0.95 and "95 % confidence" in sure.summary()
    assert plain.support.errors == approx(sure.support.errors, rel=0.02)
    assert 3 < sure.support.independent < sure.support.errors


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"far": 1e-5},
            r"FAR 1e-05 .* least 3\.0 independent errors.* has 0\.792 .* about 379 identities instead of 100",
        ),
        ({"frr": 0.004}, r"FRR 0\.004 with confidence 0\.95 needs at least 3\.0 independent errors"),
        ({"search": SearchPlan(50, fpir=0.002)}, r"FPIR 0\.002 with confidence 0\.95 needs at least 3\.0"),
        ({"target": "utility"}, "confidence needs a maximum rate"),
        ({"far": 0.1, "confidence": 1.0}, r"confidence must be in \(0, 1\)"),
    ],
)
def test_a_target_beyond_the_data_is_refused_with_what_it_needs(options, message):
    with pytest.raises(ValueError, match=message):
        ThresholdReport.from_embeddings(a_set(), LABELS, **{"confidence": 0.95, **options})
