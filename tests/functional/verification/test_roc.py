"""ROC curves, operating points and TAR at FAR against loops and scikit-learn."""

import math

import pytest
import sklearn.metrics
import torch
from pytest import approx

from pml_ext.functional import (
    equal_error_rate,
    operating_point,
    roc_auc,
    roc_curve,
    tar_at_far,
)
from pml_ext.functional.verification.roc import first_refused, nearest_to_equal_errors
from tests.oracles import verification as oracle


def pairs(ties, dtype=torch.float64, genuine=40, impostors=110):
    same = torch.randperm(genuine + impostors) < genuine
    scores = 0.25 * torch.randn(genuine + impostors, dtype=torch.float64) + 0.3 * same
    return ((scores * 8).round() / 8 if ties else scores).to(dtype), same


@pytest.mark.parametrize("ties", [True, False])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_equals_the_loops_and_scikit_learn(ties, dtype, device):
    scores, same = pairs(ties, dtype)
    listed = scores.tolist(), same.tolist()
    roc = roc_curve(scores.to(device), same.to(device))
    assert list(zip(*(column.tolist() for column in roc), strict=True)) == oracle.operating_points(*listed)
    assert roc_auc(roc).item() == approx(sklearn.metrics.roc_auc_score(same.numpy(), scores.double().numpy()))
    assert equal_error_rate(roc).far.item() == approx(oracle.equal_error_rate(*listed), rel=1e-12)


def test_equal_error_rate_where_rounding_hides_the_crossing():
    # 3 of 10 on both sides, and 1 - 0.7 > 0.3 in float64
    scores = torch.tensor([0.9] * 7 + [0.1] * 3 + [0.8] * 3 + [0.2] * 7)
    assert equal_error_rate(roc_curve(scores, torch.arange(20) < 10)).threshold.item() == approx(0.8)


def test_the_threshold_at_equal_errors_is_the_nearest_attainable_one_of_tied_scores():
    # Of 5,050 impostors 5,000 tie at 0, so accepting the tie accepts all.
    impostors = torch.cat([torch.zeros(5000), torch.linspace(0.01, 0.2, 50)])
    genuine = torch.cat([torch.zeros(3), torch.linspace(0.3, 0.9, 97)])
    scores, same = torch.cat([impostors, genuine]), torch.arange(5150) >= 5050
    points = oracle.operating_points(scores.tolist(), same.tolist())
    expected = min(points, key=lambda point: abs(point[2] / 5050 - (1 - point[1] / 100)))
    nearest = nearest_to_equal_errors(roc_curve(scores, same))
    assert nearest.threshold.item() == equal_error_rate(roc_curve(scores, same)).threshold.item() == expected[0]
    assert (nearest.tar.item(), nearest.far.item()) == (0.97, 50 / 5050)


def test_too_few_pairs_are_nan():
    scores, same = pairs(False, impostors=10)
    for far, is_nan in ((0.09, True), (0.1, False)):
        values = (*operating_point(roc_curve(scores, same), far), tar_at_far(scores, same, far))
        assert [bool(value.isnan()) for value in values] == [is_nan] * 4
    for kind in (True, False):
        alike = torch.full_like(same, kind)
        roc = roc_curve(scores, alike)
        values = (*operating_point(roc, 0.5), *equal_error_rate(roc), roc_auc(roc), tar_at_far(scores, alike, 0.5))
        assert all(value.isnan() for value in values)
    roc = roc_curve(scores[:0], same[:0])
    assert roc.thresholds.tolist() == [math.inf] and roc_auc(roc).isnan()


def test_the_rule_survives_rounding():
    assert [first_refused(far, 100) for far in (0.009, 0.01, 0.0199, 0.29, 1.0)] == [None, 2, 2, 30, 101]
    assert first_refused(0.5, 0) is None
    # 0.29 * 100 is 28.999999999999996, and 29 impostors pass above the genuine pair.
    scores, same = torch.cat([torch.tensor([70.5]), torch.arange(100.0)]), torch.arange(101) < 1
    assert [tar_at_far(scores, same, far).item() for far in (0.29, 0.28)] == [1, 0]


SCORES, SAME = torch.rand(20), torch.arange(20) < 10


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        *(((SCORES, SAME, far), r"far must be in \(0, 1\]") for far in (0.0, 1.1, float("nan"))),
        ((SCORES, SAME.long(), 0.1), "same must be bool of shape"),
        ((SCORES.long(), SAME, 0.1), "scores must be a floating"),
        ((SCORES.numpy(), SAME, 0.1), r"scores must be a torch.Tensor of shape \(P,\); got ndarray"),
    ],
)
def test_errors(arguments, message):
    scores, same, far = arguments
    for call in (tar_at_far, lambda *_: operating_point(roc_curve(scores, same), far)):
        with pytest.raises((ValueError, TypeError), match=message):
            call(*arguments)
