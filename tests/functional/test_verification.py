import numpy as np
import pytest
import torch
from sklearn.metrics import roc_curve

from pml_ext.functional import tar_at_far
from tests.functional import oracle_metrics as oracle


@pytest.mark.parametrize("far", [0.01, 0.07, 0.29, 0.5, 1.0])
@pytest.mark.parametrize("ties", [True, False])
def test_equals_the_loops_and_scikit_learn(far: float, ties: bool) -> None:
    same = torch.arange(150) < 50
    scores = torch.randn(150, dtype=torch.float64) + same
    if ties:
        scores = (scores * 4).round()
    found = tar_at_far(scores, same, far).item()
    assert found == pytest.approx(oracle.tar_at_far(scores.tolist(), same.tolist(), far), rel=1e-12)
    false_accepts, true_accepts, _ = roc_curve(same.numpy(), scores.numpy(), drop_intermediate=False)
    assert found == pytest.approx(np.max(true_accepts[false_accepts <= far + 1e-12]), rel=1e-12)


def test_a_rate_that_the_impostors_support_exactly_is_not_lost_to_rounding() -> None:
    # 0.29 * 100 is 28.999999999999996
    same = torch.cat([torch.ones(1), torch.zeros(100)]).bool()
    scores = torch.cat([torch.tensor([70.5]), torch.arange(100.0)])  # 29 impostors pass above the genuine pair
    assert tar_at_far(scores, same, 0.29).item() == 1.0
    assert tar_at_far(scores, same, 0.28).item() == 0.0


def test_too_few_pairs_are_nan() -> None:
    scores = torch.rand(20)
    same = torch.arange(20) < 10
    assert tar_at_far(scores, same, 0.09).isnan()
    assert not tar_at_far(scores, same, 0.1).isnan()
    assert tar_at_far(scores, torch.zeros(20, dtype=torch.bool), 0.5).isnan()
    assert tar_at_far(scores, torch.ones(20, dtype=torch.bool), 0.5).isnan()


def test_errors() -> None:
    scores, same = torch.rand(20), torch.arange(20) < 10
    for far in (0.0, 1.1, float("nan")):
        with pytest.raises(ValueError, match=r"far must be in \(0, 1\]"):
            tar_at_far(scores, same, far)
    with pytest.raises(ValueError, match="same must be bool of shape"):
        tar_at_far(scores, same.long(), 0.1)
    with pytest.raises(ValueError, match="scores must be a floating"):
        tar_at_far(scores.long(), same, 0.1)
    with pytest.raises(ValueError, match="scores must be finite"):
        tar_at_far(torch.full((20,), torch.nan), same, 0.1)
