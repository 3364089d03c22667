import math

import pytest
import torch
from pytest import approx
from sklearn.isotonic import IsotonicRegression

from pml_ext.functional import cllr, min_cllr


def pairs():
    same = torch.rand(300) < 0.3
    return torch.randn(300, dtype=torch.float64) + same, same


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6), (torch.float16, 5e-3)])
def test_the_cost_equals_the_loops(dtype, tolerance, device):
    ratios, same = pairs()
    costs = {True: [], False: []}
    for ratio, kind in zip(ratios.tolist(), same.tolist(), strict=True):
        costs[kind].append(math.log2(1 + math.exp(-ratio if kind else ratio)))
    expected = sum(sum(of_kind) / len(of_kind) for of_kind in costs.values()) / 2
    assert float(cllr(ratios.to(device, dtype), same.to(device))) == approx(expected, abs=tolerance)


def test_the_least_cost_is_that_of_isotonic_regression_and_no_rising_function_costs_less():
    scores, same = pairs()
    scores = scores.mul(8).round().div(8)  # with ties
    share = IsotonicRegression().fit_transform(scores.numpy(), same.numpy().astype(float))
    prior = float(same.double().mean())
    ratios = torch.logit(torch.from_numpy(share)) - math.log(prior / (1 - prior))
    least = float(min_cllr(scores, same))
    assert least == approx(float(cllr(ratios, same)), abs=1e-12)
    for rising in (scores, 2 * scores, scores - 0.5, scores**3, scores.sign(), 0 * scores):
        assert least <= float(cllr(rising, same)) + 1e-12


def test_infinite_ratios_cost_nothing_where_right_and_everything_where_wrong():
    same = torch.tensor([True, False])
    assert float(cllr(torch.tensor([torch.inf, -torch.inf]), same)) == 0
    assert float(cllr(torch.tensor([-torch.inf, 0.0]), same)) == math.inf
    with pytest.raises(ValueError, match="scores must be finite"):
        cllr(torch.tensor([torch.nan, 0.0]), same)


@pytest.mark.parametrize("kind", [True, False])
def test_without_pairs_of_a_kind_both_are_nan(kind):
    same = torch.full((4,), kind)
    assert cllr(torch.zeros(4), same).isnan() and min_cllr(torch.rand(4), same).isnan()
