import numpy as np
import pytest
import torch
from sklearn.metrics import roc_curve

from pml_ext import functional
from pml_ext.functional import ScoreHistogram, labelled_pairs_roc, operating_point, tar_at_far, tar_bounds
from pml_ext.functional.verification.tar_at_far_rule import first_refused
from tests.oracles import metrics as oracle


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


def test_exactly_supported_rates_survive_rounding() -> None:
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
    with pytest.raises(TypeError, match=r"scores must be a torch.Tensor of shape \(P,\); got ndarray"):
        tar_at_far(scores.numpy(), same, 0.1)
    with pytest.raises(TypeError, match="same must be a"):
        tar_at_far(scores, same.tolist(), 0.1)


def test_fastreid_computes_a_different_rate() -> None:
    """FastReID calls roc_curve with impostors as 1 and distances as scores, and takes the nearest FAR: the share of
    impostors refused where about `far` of the genuine pairs are refused."""
    same = torch.arange(1100) < 100
    scores = torch.randn(1100, dtype=torch.float64) + 2 * same
    false_positives, true_positives, _ = roc_curve((~same).numpy(), -scores.numpy(), pos_label=1)
    fastreids = true_positives[np.abs(false_positives - 0.05).argmin()]
    genuine = scores[same].sort().values
    assert fastreids == pytest.approx((scores[~same] <= genuine[4]).double().mean().item())
    assert abs(fastreids - tar_at_far(scores, same, 0.05).item()) > 0.02


@pytest.mark.parametrize("far", [0.002, 0.01, 0.07, 0.29, 1.0])
def test_scores_curves_histograms_and_pair_distances_agree(far: float) -> None:
    # Corners of a cube have exact cosines: many genuine and impostor pairs tie.
    x, labels = torch.randint(0, 2, (40, 4)).double() * 2 - 1, torch.randint(0, 4, (40,))
    i, j = torch.triu_indices(40, 40, 1)
    scores, same = (x @ x.T)[i, j] / 4, labels[i] == labels[j]
    expected = oracle.tar_at_far(scores.tolist(), same.tolist(), far)
    histogram = ScoreHistogram()
    histogram.update(scores, same)
    found = [
        tar_at_far(scores, same, far),
        operating_point(functional.roc_curve(scores, same), far).tar,
        *tar_bounds(histogram.roc(), far)[:1],
        operating_point(labelled_pairs_roc(x, labels, fars=(far,)), far).tar,
    ]
    assert [float(value) for value in found] == pytest.approx([expected] * 4, rel=1e-12, nan_ok=True)


def test_the_rule() -> None:
    assert [first_refused(far, 100) for far in (0.009, 0.01, 0.0199, 0.29, 1.0)] == [None, 2, 2, 30, 101]
    assert first_refused(0.5, 0) is None
