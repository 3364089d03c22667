import math

import numpy as np
import pytest
import torch
from scipy.stats import beta, binom, binomtest
from torch import Tensor

from pml_ext.functional import bootstrap_tar_at_far, rate_interval, tar_at_far
from pml_ext.functional.pairwise.pair_distances import PairDistances
from pml_ext.functional.verification.intervals import class_rate_interval
from tests.oracles import thresholds as oracle


@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.999])
def test_equals_scipy_and_covers(confidence: float) -> None:
    trials = torch.tensor([1, 1, 7, 7, 7, 1000, 10**9])
    errors = torch.tensor([0, 1, 0, 3, 7, 13, 5])
    lower, upper = rate_interval(errors, trials, confidence)
    for k, n, low, high in zip(errors.tolist(), trials.tolist(), lower, upper, strict=True):
        expected = binomtest(k, n).proportion_ci(confidence, method="exact")
        assert (low.item(), high.item()) == pytest.approx((expected.low, expected.high), rel=1e-9)
    # Coverage: for any true rate, the counts whose interval contains it have at least this total probability.
    lower, upper = rate_interval(torch.arange(21), 20, confidence)
    for rate in (0.01, 0.2, 0.5, 0.93):
        covering = (lower <= rate) & (rate <= upper)
        assert sum(binom.pmf(k, 20, rate) for k in range(21) if covering[k]) >= confidence


def test_shapes_broadcast_and_integers_are_accepted() -> None:
    lower, upper = rate_interval(0, 100)
    assert lower.shape == () and lower.dtype == torch.float64
    assert lower.item() == 0 and upper.item() == pytest.approx(1 - 0.025**0.01)
    assert rate_interval(torch.tensor([[1], [2]]), torch.tensor([5, 6, 7]))[1].shape == (2, 3)


def test_no_trials_are_nan() -> None:
    lower, upper = rate_interval(torch.tensor([0, 0]), torch.tensor([0, 10]))
    assert lower.isnan().tolist() == upper.isnan().tolist() == [True, False]


def test_errors() -> None:
    for confidence in (0.0, 1.0, float("nan")):
        with pytest.raises(ValueError, match=r"confidence must be in \(0, 1\)"):
            rate_interval(1, 2, confidence)
    with pytest.raises(ValueError, match="errors must be from 0 to trials; got 3 of 2"):
        rate_interval(torch.tensor([0, 3]), 2)
    with pytest.raises(ValueError, match="errors must be from 0 to trials; got -1 of 2"):
        rate_interval(-1, 2)
    with pytest.raises(ValueError, match="errors must be integer counts"):
        rate_interval(torch.tensor(0.1), 2)


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


def all_pairs(subjects: int, images: int, spread: float) -> tuple[Tensor, Tensor, Tensor]:
    """Scores whose subjects differ by `spread` in their genuine scores."""
    ids = torch.arange(subjects).repeat_interleave(images)
    a, b = torch.triu_indices(len(ids), len(ids), 1)
    quality = spread * torch.randn(subjects)
    scores = torch.randn(len(a)) + (ids[a] == ids[b]) * (3 + quality[ids[a]])
    return scores, ids[a], ids[b]


def test_is_a_percentile_of_resampled_subjects() -> None:
    """The same draws, with each resample's pairs listed and passed to tar_at_far."""
    scores, a, b = all_pairs(8, 3, 1.0)
    a, b = a * 10 - 3, b * 10 - 3
    scores = (scores * 2).round()
    generator = torch.Generator().manual_seed(5)
    rates: dict[float, list[float]] = {0.2: [], 0.03: []}
    for _ in range(40):
        draws = torch.randint(8, (8,), generator=generator).bincount(minlength=8)
        a_draws, b_draws = draws[(a + 3) // 10], draws[(b + 3) // 10]
        times = torch.where(a == b, a_draws, a_draws * b_draws)
        for far in rates:
            rates[far].append(
                tar_at_far(scores.repeat_interleave(times), (a == b).repeat_interleave(times), far).item()
            )
    for far, confidence in ((0.2, 0.8), (0.03, 0.8), (0.03, 0.2)):
        lower, upper = bootstrap_tar_at_far(scores, a, b, far, resamples=40, confidence=confidence, seed=5)
        expected = np.quantile(rates[far], [(1 - confidence) / 2, (1 + confidence) / 2])
        assert [lower.item(), upper.item()] == pytest.approx(expected.tolist())
    assert lower < upper


def test_is_wider_than_for_independent_pairs_if_subjects_differ() -> None:
    scores, a, b = all_pairs(20, 6, 2.0)
    genuine = int((a == b).sum())
    rate = tar_at_far(scores, a == b, 0.01)
    lower, upper = bootstrap_tar_at_far(scores, a, b, 0.01, resamples=200)
    naive_lower, naive_upper = rate_interval(round(rate.item() * genuine), genuine)
    assert lower < rate < upper
    assert upper - lower > 1.5 * (naive_upper - naive_lower)
    again = bootstrap_tar_at_far(scores, a, b, 0.01, resamples=200)
    other = bootstrap_tar_at_far(scores, a, b, 0.01, resamples=200, seed=1)
    assert again == (lower, upper) != other


def test_too_few_pairs_are_nan() -> None:
    scores, a, b = all_pairs(4, 2, 0.0)
    for arguments in ((a, b, 1e-3), (a, a, 0.5), (a, b + 9, 0.5)):
        assert all(math.isnan(value) for value in bootstrap_tar_at_far(scores, *arguments, resamples=3))


def test_bootstrap_errors() -> None:
    scores, a, b = all_pairs(4, 2, 0.0)
    with pytest.raises(ValueError, match="subjects_b must have shape"):
        bootstrap_tar_at_far(scores, a, b[1:], 0.1)
    with pytest.raises(ValueError, match="confidence must be in"):
        bootstrap_tar_at_far(scores, a, b, 0.1, confidence=1.0)
    with pytest.raises(ValueError, match="resamples must be at least 1"):
        bootstrap_tar_at_far(scores, a, b, 0.1, resamples=0)
    with pytest.raises(ValueError, match=r"far must be in \(0, 1\]"):
        bootstrap_tar_at_far(scores, a, b, 0.0)
    with pytest.raises(ValueError, match="scores must be finite"):
        bootstrap_tar_at_far(scores * torch.nan, a, b, 0.1)


def test_resamples_must_be_whole_numbers() -> None:
    with pytest.raises(ValueError, match="resamples must be a whole number; got nan"):
        bootstrap_tar_at_far(torch.rand(9), torch.arange(9), torch.arange(9) // 2, 0.5, resamples=float("nan"))
