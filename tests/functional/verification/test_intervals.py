import math

import numpy as np
import pytest
import torch
from pytest import approx
from scipy.stats import beta, binomtest

from pml_ext.functional import PairDistances, rate_interval
from pml_ext.functional.verification.intervals import class_rate_interval
from tests.oracles import thresholds as oracle
from tests.refusals import refusals


@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.999])
def test_equals_scipy(confidence):
    trials, errors = torch.tensor([1, 1, 7, 7, 7, 1000, 10**9]), torch.tensor([0, 1, 0, 3, 7, 13, 5])
    found = zip(*rate_interval(errors, trials, confidence), errors.tolist(), trials.tolist(), strict=True)
    for low, high, k, n in found:
        expected = binomtest(k, n).proportion_ci(confidence, method="exact")
        assert (low.item(), high.item()) == approx((expected.low, expected.high), rel=1e-9)


def test_shapes_broadcast_integers_are_accepted_and_no_trials_are_nan():
    lower, upper = rate_interval(0, 100)
    assert lower == 0 and upper.item() == approx(1 - 0.025**0.01)
    assert rate_interval(torch.tensor([[1], [2]]), torch.tensor([5, 6, 7]))[1].shape == (2, 3)
    for end in rate_interval(torch.tensor([0, 0]), torch.tensor([0, 10])):
        assert end.isnan().tolist() == [True, False]


@pytest.mark.parametrize("kind", ["impostor", "genuine"])
def test_effective_pairs_come_from_leaving_classes_out(kind):
    labels = torch.arange(30).repeat_interleave(1 + torch.arange(30) % 4)
    centres, spread = torch.randn(30, 4, dtype=torch.float64), torch.rand(30, 1, dtype=torch.float64)
    x = centres[labels] + (0.1 + spread)[labels] * torch.randn(len(labels), 4, dtype=torch.float64)
    measured = PairDistances(x, labels)
    accepted, false_accepts = measured.accepted_at(0.5)
    of_kind, share = {
        "impostor": ((false_accepts, measured.negative_pairs), 2),
        "genuine": ((measured.positive_pairs - accepted, measured.positive_pairs), 1),
    }[kind]
    found = class_rate_interval(*of_kind, share)
    by_class = zip(*oracle.class_errors(oracle.pair_distances(x, labels.tolist()), 0.5).values(), strict=True)
    errors, pairs = list(by_class)[slice(0, 2) if share == 2 else slice(2, 4)]
    rate = sum(errors) / sum(pairs)
    trials = rate * (1 - rate) / oracle.jackknife_variance(errors, pairs, share)
    assert trials < sum(pairs) / share, "pairs do depend on each other here"
    assert found == approx(oracle.jeffreys(rate, trials, pairs)) and found[0] < rate < found[1]


def of_classes(errors, pairs, classes_per_pair=1, **options):
    return class_rate_interval(torch.tensor(errors), torch.tensor(pairs), classes_per_pair, **options)


def of_trials(wrong, right):
    """The ends without a prior."""
    return approx([beta.ppf(0.025, wrong, right + 1), beta.ppf(0.975, wrong + 1, right)])


def test_classes_that_say_little():
    assert of_classes([3] * 10, [30] * 10) == approx(oracle.jeffreys(0.1, 300, [30] * 10))  # all are alike
    for errors in (0, 30):  # without errors each class is one trial; five classes have one sample
        found = of_classes([errors] * 10 + [0] * 5, [30] * 10 + [0] * 5, confidence=0.9)
        assert found == approx([float(end) for end in rate_interval(errors // 3, 10, 0.9)])
    assert of_classes([10, 0], [100, 0]) == of_trials(0.1, 0.9)  # one class: nobody knows how it differs from others
    assert of_classes([5, 5], [20, 20], 2) == of_trials(0.5, 1.5)  # each of the two is in all impostor pairs
    low, high = of_classes([1, 0], [500, 500])
    assert low <= 0.001 <= high  # there is little to say, but 0.001 is what was measured
    low, high = of_classes([0] * 201, [179_700] + [10] * 200)  # a class with nearly all pairs is one trial
    assert low == 0 and high > 0.9
    with pytest.raises(ValueError, match="at least one pair"):
        of_classes([0, 0], [0, 0], 2)


@pytest.mark.parametrize(
    ("tail", "unevenness", "coverage"), [(1.5, 0.05, 0.965), (1.5, 0.2, 0.948), (2.5, 0.05, 0.975), (2.5, 0.2, 0.918)]
)
def test_coverage_where_class_sizes_are_pareto_distributed(tail, unevenness, coverage):
    """It was 0.863, 0.830, 0.930 and 0.878 when every class counted as one, whatever its size."""
    rng, held = np.random.default_rng(0), 0
    for _ in range(400):
        size = np.minimum(2 + np.floor(2 * rng.pareto(tail, 100)), 2000).astype(int)
        pairs = size * (size - 1) // 2
        odds = 1 / unevenness - 1
        low, high = of_classes(rng.binomial(pairs, rng.beta(0.05 * odds, 0.95 * odds, 100)), pairs)
        held += low <= 0.05 <= high
    assert held / 400 == approx(coverage, abs=0.005)


REFUSED = [
    *((lambda c=c: rate_interval(1, 2, c), r"confidence must be in \(0, 1\)") for c in (0.0, 1.0, math.nan)),
    (lambda: rate_interval(torch.tensor([0, 3]), 2), "errors must be from 0 to trials; got 3 of 2"),
    (lambda: rate_interval(0.1, 2), "errors must be integer counts"),
    (lambda: rate_interval(torch.ones(2).long(), torch.ones(3).long()), "rate_interval needs tensors that broad"),
]
test_errors = refusals(REFUSED)
