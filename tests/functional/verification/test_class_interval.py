import numpy as np
import pytest
import torch
from scipy.stats import beta

from pml_ext.functional.pairwise.pair_distances import PairDistances
from pml_ext.functional.verification.class_interval import class_rate_interval
from pml_ext.functional.verification.clopper_pearson import rate_interval
from tests.oracles import thresholds as oracle


@pytest.mark.parametrize("kind", ["impostor", "genuine"])
def test_effective_pairs_come_from_leaving_classes_out(kind: str) -> None:
    labels = torch.arange(30).repeat_interleave(1 + torch.arange(30) % 4)
    centres, spread = torch.randn(30, 4, dtype=torch.float64), torch.rand(30, 1, dtype=torch.float64)
    embeddings = centres[labels] + (0.1 + spread)[labels] * torch.randn(len(labels), 4, dtype=torch.float64)
    measured = PairDistances(embeddings, labels)
    accepted, false_accepts = (c[:, 0] for c in measured.accepted(torch.tensor([0.5], dtype=torch.float64)))
    by_class = oracle.class_errors(oracle.pair_distances(embeddings, labels.tolist()), 0.5).values()
    if kind == "impostor":
        errors, pairs, share = [c[0] for c in by_class], [c[1] for c in by_class], 2
        found = class_rate_interval(false_accepts, measured.negative_pairs, pairs_span_classes=True)
    else:
        errors, pairs, share = [c[2] for c in by_class], [c[3] for c in by_class], 1
        missed = measured.positive_pairs - accepted
        found = class_rate_interval(missed, measured.positive_pairs, pairs_span_classes=False)
    rate = sum(errors) / sum(pairs)
    trials = rate * (1 - rate) / oracle.jackknife_variance(errors, pairs, share)
    assert trials < sum(pairs) / share, "pairs do depend on each other here"
    assert found == pytest.approx(oracle.jeffreys(rate, trials, pairs))
    assert found[0] < rate < found[1]


def test_similar_classes_count_every_pair() -> None:
    errors, pairs = torch.full((10,), 3), torch.full((10,), 30)
    found = class_rate_interval(errors, pairs, pairs_span_classes=False)
    assert found == pytest.approx(oracle.jeffreys(0.1, 300, [30] * 10))


@pytest.mark.parametrize("errors", [0, 30])
def test_without_errors_each_class_is_one_trial(errors: int) -> None:
    pairs = torch.tensor([30] * 10 + [0] * 5)  # five classes of one sample
    found = class_rate_interval(pairs * (errors // 30), pairs, pairs_span_classes=False, confidence=0.9)
    assert found == pytest.approx([float(end) for end in rate_interval(errors // 3, 10, 0.9)])


def test_one_class_is_one_trial() -> None:
    """Nobody knows how it differs from others."""
    found = class_rate_interval(torch.tensor([10, 0]), torch.tensor([100, 0]), pairs_span_classes=False)
    assert found == pytest.approx([beta.ppf(0.025, 0.1, 1.9), beta.ppf(0.975, 1.1, 0.9)])


def test_an_interval_holds_the_rate_itself() -> None:
    """One of two classes has a single error: there is little to say, but 0.001 is what was measured."""
    low, high = class_rate_interval(torch.tensor([1, 0]), torch.tensor([500, 500]), pairs_span_classes=False)
    assert low <= 0.001 <= high


def test_two_classes_cannot_be_left_out() -> None:
    """Each of the two is in all impostor pairs."""
    found = class_rate_interval(torch.tensor([5, 5]), torch.tensor([20, 20]), pairs_span_classes=True)
    assert found == pytest.approx([beta.ppf(0.025, 0.5, 2.5), beta.ppf(0.975, 1.5, 1.5)])


@pytest.mark.parametrize(
    ("tail", "unevenness", "coverage"), [(1.5, 0.05, 0.965), (1.5, 0.2, 0.948), (2.5, 0.05, 0.975), (2.5, 0.2, 0.918)]
)
def test_coverage_where_class_sizes_are_pareto_distributed(tail: float, unevenness: float, coverage: float) -> None:
    """It was 0.863, 0.830, 0.930 and 0.878 when every class counted as one, whatever its size."""
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(400):
        size = np.minimum(2 + np.floor(2 * rng.pareto(tail, 100)), 2000).astype(int)
        pairs = size * (size - 1) // 2
        odds = 1 / unevenness - 1
        errors = rng.binomial(pairs, rng.beta(0.05 * odds, 0.95 * odds, 100))
        counts = torch.from_numpy(errors), torch.from_numpy(pairs)
        low, high = class_rate_interval(*counts, pairs_span_classes=False)
        held += low <= 0.05 <= high
    assert held / 400 == pytest.approx(coverage, abs=0.005)


def test_a_class_with_nearly_all_pairs_is_one_trial() -> None:
    pairs = torch.tensor([179_700] + [10] * 200)
    low, high = class_rate_interval(torch.zeros_like(pairs), pairs, pairs_span_classes=False)
    assert low == 0 and high > 0.9


def test_no_pairs() -> None:
    with pytest.raises(ValueError, match="at least one pair"):
        class_rate_interval(torch.zeros(3, dtype=torch.int64), torch.zeros(3).long(), pairs_span_classes=True)
