"""ROC curves, operating points and TAR at FAR against loops, scikit-learn and pyeer."""

import math

import numpy as np
import pytest
import sklearn.metrics
import torch

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
    sklearns = sklearn.metrics.roc_curve(same.numpy(), scores.double().numpy(), drop_intermediate=False)
    for ours, theirs in zip((roc.far, roc.tar, roc.thresholds.double()), sklearns, strict=True):
        np.testing.assert_allclose(ours.cpu(), theirs)
    assert roc_auc(roc).item() == pytest.approx(oracle.auc(*listed), rel=1e-12)
    assert roc_auc(roc).item() == pytest.approx(sklearn.metrics.roc_auc_score(same.numpy(), scores.double().numpy()))
    assert equal_error_rate(roc).far.item() == pytest.approx(oracle.equal_error_rate(*listed), rel=1e-12)


@pytest.mark.parametrize("ties", [True, False])
@pytest.mark.parametrize("far", [0.01, 0.07, 0.29, 0.5, 1.0])
def test_the_largest_true_accept_rate_within_the_target_and_its_threshold(ties, far):
    scores, same = pairs(ties, torch.float32)
    roc = roc_curve(scores, same)
    points = oracle.operating_points(scores.tolist(), same.tolist())
    threshold, accepts, false_accepts = [point for point in points if point[2] / 110 <= far][-1]
    assert [float(value) for value in operating_point(roc, far)] == [threshold, accepts / 40, false_accepts / 110]
    assert tar_at_far(scores, same, far).item() == accepts / 40
    found = errors_at(scores, same, threshold)
    assert (int(found.false_accepts), 40 - int(found.false_rejects)) == (false_accepts, accepts)


def test_equal_error_rate_crosses_between_points_and_at_them():
    # FAR, FRR: (0, 1), (0, 1/2), (1/3, 1/2), (1/3, 0): the last step crosses at FAR 1/3.
    roc = roc_curve(torch.tensor([0.9, 0.8, 0.7, 0.6, 0.5]), torch.tensor([1, 0, 1, 0, 0]).bool())
    assert [value.item() for value in equal_error_rate(roc)] == pytest.approx([0.7, 2 / 3, 1 / 3])
    # 3 of 10 on both sides, and 1 - 0.7 > 0.3 in float64
    scores = torch.tensor([0.9] * 7 + [0.1] * 3 + [0.8] * 3 + [0.2] * 7)
    assert equal_error_rate(roc_curve(scores, torch.arange(20) < 10)).threshold.item() == pytest.approx(0.8)
    # All scores tie: from (0, 1) to (1, 0) in one step.
    assert equal_error_rate(roc_curve(torch.zeros(4), torch.tensor([1, 0, 0, 0]).bool())).far == 0.5
    assert equal_error_rate(roc_curve(torch.tensor([2.0, 1.0]), torch.tensor([True, False]))).far == 0


def test_impostors_tied_at_the_top_allow_no_accepts():
    scores = torch.cat([torch.zeros(5), torch.ones(10)])
    point = operating_point(roc_curve(scores, torch.arange(15) < 5), 0.5)
    assert [value.item() for value in point] == [math.inf, 0, 0]


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
    assert roc_curve(scores[:0], same[:0]).thresholds.tolist() == [math.inf]


def test_the_rule_survives_rounding():
    assert [first_refused(far, 100) for far in (0.009, 0.01, 0.0199, 0.29, 1.0)] == [None, 2, 2, 30, 101]
    assert first_refused(0.5, 0) is None
    # 0.29 * 100 is 28.999999999999996, and 29 impostors pass above the genuine pair.
    scores, same = torch.cat([torch.tensor([70.5]), torch.arange(100.0)]), torch.arange(101) < 1
    assert [tar_at_far(scores, same, far).item() for far in (0.29, 0.28)] == [1, 0]


@pytest.mark.parametrize("far", [0.002, 0.01, 0.07, 0.29, 1.0])
def test_scores_curves_histograms_and_all_pairs_agree(far):
    # Corners of a cube have exact cosines: many genuine and impostor pairs tie.
    x, labels = torch.randint(0, 2, (40, 4)).double() * 2 - 1, torch.randint(0, 4, (40,))
    i, j = torch.triu_indices(40, 40, 1)
    scores, same = (x @ x.T)[i, j] / 4, labels[i] == labels[j]
    histogram = ScoreHistogram()
    histogram.update(scores, same)
    found = [
        tar_at_far(scores, same, far),
        operating_point(roc_curve(scores, same), far).tar,
        tar_bounds(histogram.roc(), far)[0],
        operating_point(labelled_pairs_roc(x, labels, fars=(far,)), far).tar,
    ]
    assert [float(value) for value in found] == pytest.approx([float(found[0])] * 4, rel=1e-12, nan_ok=True)


def test_fastreid_computes_a_different_rate():
    """FastReID calls roc_curve with impostors as 1 and distances as scores, and takes the nearest FAR: the share of
    impostors refused where about `far` of the genuine pairs are refused."""
    same = torch.arange(1100) < 100
    scores = torch.randn(1100, dtype=torch.float64) + 2 * same
    false_positives, true_positives, _ = sklearn.metrics.roc_curve((~same).numpy(), -scores.numpy(), pos_label=1)
    fastreids = true_positives[np.abs(false_positives - 0.05).argmin()]
    genuine = scores[same].sort().values
    assert fastreids == pytest.approx((scores[~same] <= genuine[4]).double().mean().item())
    assert abs(fastreids - tar_at_far(scores, same, 0.05).item()) > 0.02


def test_rates_of_pyeer():
    """Its FNMR at an FMR is that of the closest FMR, ours of the largest that is not above the target: not compared."""
    pyeer = pytest.importorskip("pyeer.eer_stats", reason="pip install pyeer")
    scores, same = pairs(True, genuine=300, impostors=1200)
    roc = roc_curve(scores, same)
    thresholds, *rates = pyeer.calculate_roc(scores[same].numpy(), scores[~same].numpy())
    points = zip(roc.thresholds.tolist(), roc.far.tolist(), roc.tar.tolist(), strict=True)
    ours = {threshold: (far, 1 - tar) for threshold, far, tar in points}
    for threshold, *both in zip(thresholds, *rates, strict=True):
        assert ours[threshold] == pytest.approx(both, abs=1e-12)
    *_, low, high, _ = pyeer.get_eer_values(*rates)
    assert low - 1e-12 <= float(equal_error_rate(roc).far) <= high + 1e-12
    # pyeer's curve lacks the point where nothing is accepted.
    complete = [np.append(rate, end) for rate, end in zip(rates, (0.0, 1.0), strict=True)]
    assert float(roc_auc(roc)) == pytest.approx(pyeer.calculate_roc_auc(*complete), abs=1e-12)


SCORES, SAME = torch.rand(20), torch.arange(20) < 10


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        *(((SCORES, SAME, far), r"far must be in \(0, 1\]") for far in (0.0, 1.1, float("nan"))),
        ((SCORES, SAME.long(), 0.1), "same must be bool of shape"),
        ((SCORES, SAME[1:], 0.1), "same must be bool of shape"),
        ((SCORES.long(), SAME, 0.1), "scores must be a floating"),
        ((SCORES * torch.nan, SAME, 0.1), "scores must be finite; got NaN or infinity in 20 of 20 rows"),
        ((SCORES.numpy(), SAME, 0.1), r"scores must be a torch.Tensor of shape \(P,\); got ndarray"),
        ((SCORES, SAME.tolist(), 0.1), "same must be a"),
    ],
)
def test_errors(arguments, message):
    scores, same, far = arguments
    for call in (tar_at_far, lambda *_: operating_point(roc_curve(scores, same), far)):
        with pytest.raises((ValueError, TypeError), match=message):
            call(*arguments)
