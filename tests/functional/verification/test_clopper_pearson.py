import pytest
import torch
from scipy.stats import binom, binomtest

from pml_ext.functional import rate_interval


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
