import pytest
import torch

from pml_ext.functional import errors_at
from tests.oracles import verification as verification_oracle


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_errors_at_thresholds_equal_the_loops(dtype: torch.dtype) -> None:
    same = torch.arange(90) < 30
    scores = ((torch.randn(90) + same) * 4).round().div(8).to(dtype)
    for point in verification_oracle.operating_points(scores.tolist(), same.tolist()):
        found = errors_at(scores, same, point[0])
        assert (30 - int(found.false_rejects), int(found.false_accepts)) == point[1:]
        assert (found.far.item(), found.frr.item()) == pytest.approx((point[2] / 60, 1 - point[1] / 30))
    # float16 would round this threshold to a score.
    assert errors_at(scores, same, float(scores.max()) + 1e-6).false_accepts == 0
    assert errors_at(scores, same, torch.zeros(2, 3)).far.shape == (2, 3)
    with pytest.raises(ValueError, match="thresholds must be numbers; got nan"):
        errors_at(scores, same, torch.tensor([0.1, torch.nan]))


def test_rates_without_pairs_of_a_kind_are_nan() -> None:
    found = errors_at(torch.rand(5), torch.ones(5, dtype=torch.bool), 0.5)
    assert found.far.isnan() and not found.frr.isnan()
