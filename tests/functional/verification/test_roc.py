import math

import numpy as np
import pytest
import sklearn.metrics
import torch
from sklearn.metrics import roc_curve as sklearn_roc_curve
from torch import Tensor

from pml_ext import functional
from pml_ext.functional import (
    ScoreHistogram,
    equal_error_rate,
    errors_at,
    labelled_pairs_roc,
    operating_point,
    roc_auc,
    roc_curve,
    tar_at_far,
    tar_bounds,
)
from pml_ext.functional.verification.roc import first_refused
from tests.oracles import metrics as verification_oracle
from tests.oracles import verification as oracle


def pairs(
    ties: bool, dtype: torch.dtype = torch.float64, genuine: int = 40, impostors: int = 110
) -> tuple[Tensor, Tensor]:
    same = torch.randperm(genuine + impostors) < genuine
    scores = 0.25 * torch.randn(genuine + impostors, dtype=torch.float64) + 0.3 * same
    return ((scores * 8).round() / 8 if ties else scores).to(dtype), same


@pytest.mark.parametrize("ties", [True, False])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_equals_the_loops_and_scikit_learn(ties: bool, dtype: torch.dtype) -> None:
    scores, same = pairs(ties, dtype)
    listed = scores.tolist(), same.tolist()
    roc = roc_curve(scores, same)
    assert list(zip(*(column.tolist() for column in roc), strict=True)) == oracle.operating_points(*listed)
    far, tar, thresholds = sklearn.metrics.roc_curve(same.numpy(), scores.double().numpy(), drop_intermediate=False)
    np.testing.assert_allclose(roc.far, far)
    np.testing.assert_allclose(roc.tar, tar)
    np.testing.assert_array_equal(roc.thresholds.double(), thresholds)
    assert roc_auc(roc).item() == pytest.approx(oracle.auc(*listed), rel=1e-12)
    assert roc_auc(roc).item() == pytest.approx(sklearn.metrics.roc_auc_score(same.numpy(), scores.double().numpy()))
    assert equal_error_rate(roc).far.item() == pytest.approx(oracle.equal_error_rate(*listed), rel=1e-12)


@pytest.mark.parametrize("ties", [True, False])
@pytest.mark.parametrize("far", [0.01, 0.07, 0.29, 1.0])
def test_the_threshold_gives_the_largest_rate_within_the_target(ties: bool, far: float) -> None:
    scores, same = pairs(ties, torch.float32)
    roc = roc_curve(scores, same)
    point = operating_point(roc, far)
    assert point.tar == tar_at_far(scores, same, far)
    at_threshold = errors_at(scores, same, point.threshold)
    assert at_threshold.far == point.far <= far
    assert 1 - at_threshold.frr == pytest.approx(point.tar.item())
    lower = roc.thresholds[roc.thresholds < point.threshold]
    if len(lower):
        assert errors_at(scores, same, lower[0]).far > far


def test_equal_error_rate_crosses_between_points_and_at_them() -> None:
    # FAR, FRR: (0, 1), (0, 1/2), (1/3, 1/2), (1/3, 0): the last step crosses at FAR 1/3.
    roc = roc_curve(torch.tensor([0.9, 0.8, 0.7, 0.6, 0.5]), torch.tensor([1, 0, 1, 0, 0]).bool())
    assert equal_error_rate(roc).far.item() == pytest.approx(1 / 3)
    assert equal_error_rate(roc).threshold.item() == pytest.approx(0.7)
    assert equal_error_rate(roc).tar.item() == pytest.approx(2 / 3)
    # All scores tie: from (0, 1) to (1, 0) in one step.
    # 3 of 10 on both sides, and 1 - 0.7 > 0.3 in float64
    scores = torch.tensor([0.9] * 7 + [0.1] * 3 + [0.8] * 3 + [0.2] * 7)
    assert equal_error_rate(roc_curve(scores, torch.arange(20) < 10)).threshold.item() == pytest.approx(0.8)
    assert equal_error_rate(roc_curve(torch.zeros(4), torch.tensor([1, 0, 0, 0]).bool())).far == 0.5
    assert equal_error_rate(roc_curve(torch.tensor([2.0, 1.0]), torch.tensor([True, False]))).far == 0


def test_impostors_tied_at_the_top_allow_no_accepts() -> None:
    scores = torch.cat([torch.zeros(5), torch.ones(10)])
    point = operating_point(roc_curve(scores, torch.arange(15) < 5), 0.5)
    assert (point.threshold.item(), point.tar.item(), point.far.item()) == (math.inf, 0, 0)


def test_too_few_pairs_are_nan() -> None:
    scores, same = pairs(False, impostors=10)
    assert all(value.isnan() for value in operating_point(roc_curve(scores, same), 0.09))
    assert not any(value.isnan() for value in operating_point(roc_curve(scores, same), 0.1))
    for kind in (True, False):
        roc = roc_curve(scores, torch.full_like(same, kind))
        assert all(value.isnan() for value in (*operating_point(roc, 0.5), *equal_error_rate(roc), roc_auc(roc)))
    assert roc_curve(scores[:0], same[:0]).thresholds.tolist() == [math.inf]


def test_errors() -> None:
    scores, same = pairs(False)
    with pytest.raises(ValueError, match="same must be bool of shape"):
        roc_curve(scores, same[1:])
    with pytest.raises(ValueError, match="scores must be finite; got NaN or infinity in 1 of 150 rows"):
        roc_curve(torch.where(torch.arange(150) == 3, torch.nan, scores), same)
    for far in (0.0, 1.1, float("nan")):
        with pytest.raises(ValueError, match=r"far must be in \(0, 1\]"):
            operating_point(roc_curve(scores, same), far)


@pytest.mark.parametrize("far", [0.01, 0.07, 0.29, 0.5, 1.0])
@pytest.mark.parametrize("ties", [True, False])
def test_tar_at_far_rule_equals_the_loops_and_scikit_learn(far: float, ties: bool) -> None:
    same = torch.arange(150) < 50
    scores = torch.randn(150, dtype=torch.float64) + same
    if ties:
        scores = (scores * 4).round()
    found = tar_at_far(scores, same, far).item()
    assert found == pytest.approx(verification_oracle.tar_at_far(scores.tolist(), same.tolist(), far), rel=1e-12)
    false_accepts, true_accepts, _ = sklearn_roc_curve(same.numpy(), scores.numpy(), drop_intermediate=False)
    assert found == pytest.approx(np.max(true_accepts[false_accepts <= far + 1e-12]), rel=1e-12)


def test_exactly_supported_rates_survive_rounding() -> None:
    # 0.29 * 100 is 28.999999999999996
    same = torch.cat([torch.ones(1), torch.zeros(100)]).bool()
    scores = torch.cat([torch.tensor([70.5]), torch.arange(100.0)])  # 29 impostors pass above the genuine pair
    assert tar_at_far(scores, same, 0.29).item() == 1.0
    assert tar_at_far(scores, same, 0.28).item() == 0.0


def test_tar_at_far_rule_too_few_pairs_are_nan() -> None:
    scores = torch.rand(20)
    same = torch.arange(20) < 10
    assert tar_at_far(scores, same, 0.09).isnan()
    assert not tar_at_far(scores, same, 0.1).isnan()
    assert tar_at_far(scores, torch.zeros(20, dtype=torch.bool), 0.5).isnan()
    assert tar_at_far(scores, torch.ones(20, dtype=torch.bool), 0.5).isnan()


def test_tar_at_far_rule_errors() -> None:
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
    false_positives, true_positives, _ = sklearn_roc_curve((~same).numpy(), -scores.numpy(), pos_label=1)
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
    expected = verification_oracle.tar_at_far(scores.tolist(), same.tolist(), far)
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
