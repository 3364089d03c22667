import math

import pytest
import torch
from sklearn.isotonic import IsotonicRegression
from torch import Tensor

from pml_ext.functional import cllr, min_cllr
from pml_ext.functional.verification.likelihood_ratio import pool_adjacent_violators


def cllr_by_loops(ratios: list[float], same: list[bool]) -> float:
    genuine = [math.log2(1 + math.exp(-ratio)) for ratio, is_genuine in zip(ratios, same, strict=True) if is_genuine]
    impostor = [
        math.log2(1 + math.exp(ratio)) for ratio, is_genuine in zip(ratios, same, strict=True) if not is_genuine
    ]
    return (sum(genuine) / len(genuine) + sum(impostor) / len(impostor)) / 2


def pairs(count: int = 300, apart: float = 1.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    same = torch.rand(count, generator=generator) < 0.3
    return torch.randn(count, generator=generator, dtype=torch.float64) + apart * same, same


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6), (torch.float16, 5e-3)])
def test_the_cost_equals_the_loops(dtype: torch.dtype, tolerance: float) -> None:
    ratios, same = pairs()
    assert float(cllr(ratios.to(dtype), same)) == pytest.approx(
        cllr_by_loops(ratios.tolist(), same.tolist()), abs=tolerance
    )


def test_the_least_cost_is_that_of_isotonic_regression() -> None:
    scores, same = pairs()
    scores = scores.mul(8).round().div(8)  # with ties
    share = IsotonicRegression().fit_transform(scores.numpy(), same.numpy().astype(float))
    prior = float(same.double().mean())
    ratios = torch.logit(torch.from_numpy(share)) - math.log(prior / (1 - prior))
    assert float(min_cllr(scores, same)) == pytest.approx(float(cllr(ratios, same)), abs=1e-12)


def test_no_rising_function_of_the_scores_costs_less() -> None:
    scores, same = pairs()
    least = float(min_cllr(scores, same))
    for ratios in (scores, 2 * scores, scores - 0.5, scores**3, scores.sign(), 0 * scores):
        assert least <= float(cllr(ratios, same)) + 1e-12
    assert float(min_cllr(torch.exp(scores), same)) == pytest.approx(least, abs=1e-12)
    assert float(min_cllr(-scores, same)) > least


def test_infinite_ratios_cost_nothing_where_right_and_everything_where_wrong() -> None:
    same = torch.tensor([True, False])
    assert float(cllr(torch.tensor([torch.inf, -torch.inf]), same)) == 0
    assert float(cllr(torch.tensor([-torch.inf, 0.0]), same)) == math.inf


def test_without_pairs_of_a_kind_both_are_nan() -> None:
    for same in (torch.ones(4, dtype=torch.bool), torch.zeros(4, dtype=torch.bool)):
        assert cllr(torch.zeros(4), same).isnan() and min_cllr(torch.rand(4), same).isnan()
    with pytest.raises(ValueError, match="scores must be finite"):
        cllr(torch.tensor([torch.nan, 0.0]), torch.tensor([True, False]))


def test_pooling_weights_its_values() -> None:
    values, weights = torch.tensor([3.0, 1.0, 2.0, 5.0]).double(), torch.tensor([1.0, 3.0, 1.0, 1.0]).double()
    assert pool_adjacent_violators(values, weights).tolist() == [1.5, 1.5, 2.0, 5.0]
