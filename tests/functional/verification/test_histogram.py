import pytest
import torch
from pytest import approx

from pml_ext.functional import (
    ScoreHistogram,
    auc_bounds,
    eer_bounds,
    equal_error_rate,
    errors_at,
    operating_point,
    roc_auc,
    roc_curve,
    tar_bounds,
)
from tests.refusals import refusals

FARS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)


def pairs(count, spread=0.2, dtype=torch.float32):
    same = torch.rand(count) < 0.1
    return (spread * (torch.randn(count) + 2 * same)).clamp(-1, 1).to(dtype), same


def counted(scores, same, **options):
    histogram = ScoreHistogram(**options)
    histogram.update(scores, same)
    return histogram


# A spread of 1e-5 puts thousands of scores into one bin.
@pytest.mark.parametrize(
    ("spread", "dtype", "tolerance"),
    [(0.2, torch.float32, 2e-4), (1e-3, torch.float16, 1), (1e-3, torch.bfloat16, 1), (1e-5, torch.float64, 1)],
)
def test_bounds_contain_the_exact_values(spread, dtype, tolerance, device):
    scores, same = pairs(200_000, spread, dtype)
    exact, binned = roc_curve(scores, same), counted(scores, same, device=device).roc()
    for far in FARS:
        lower, upper = tar_bounds(binned, far)
        assert lower <= operating_point(exact, far).tar <= upper <= lower + tolerance
        # The reported threshold reaches the lower bound within the rate.
        point = operating_point(binned, far)
        at_threshold = errors_at(scores, same, point.threshold)
        assert point.tar == lower and at_threshold.far == point.far <= far
        assert 1 - at_threshold.frr == approx(lower.item())
    for bounds, value in ((auc_bounds, roc_auc), (eer_bounds, lambda roc: equal_error_rate(roc).far)):
        lower, upper = bounds(binned)
        for found in (value(exact), value(binned)):
            assert lower - 1e-12 <= found <= upper + 1e-12 < lower + tolerance + 1e-9


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scores_are_on_the_right_side_of_edges(dtype):
    edges = torch.tensor([-1 + 2**-19, -0.25, 0.0, 2**-19, 0.3125, 1 - 2**-19, 1.0], dtype=dtype)
    below = edges.nextafter(edges.new_tensor(-2.0))
    scores = torch.cat([edges, below, edges.new_tensor([1e-30, -1e-30])])
    roc = counted(scores, torch.ones(len(scores), dtype=torch.bool)).roc()
    for threshold, accepted in zip(roc.thresholds, roc.true_accepts, strict=True):
        assert int((scores.double() >= threshold).sum()) == accepted
    assert {*edges.tolist()} <= {*roc.thresholds.tolist()}


def test_scores_outside_the_range_still_count():
    scores, same = torch.tensor([-5.0, -1.5, 0.2, 1.00001, 7.0]), torch.tensor([0, 1, 0, 0, 1]).bool()
    roc = counted(scores - 1, same, low=-2, high=0).roc()
    assert roc.thresholds.tolist() == [torch.inf, 0.0, approx(-0.8, abs=2e-6), -torch.inf]
    assert (roc.false_accepts.tolist(), roc.true_accepts.tolist()) == ([0, 1, 2, 3], [0, 1, 1, 2])
    for far in (0.34, 0.67, 1.0):
        lower, upper = tar_bounds(roc, far)
        assert lower <= operating_point(roc_curve(scores, same), far).tar <= upper


@pytest.mark.parametrize(("genuine", "impostors"), [((1, 2, 1), (0, 2, 2)), ((2, 2, 0), (1, 3, 0))])
def test_the_bounds_of_the_equal_error_rate_are_tight(genuine, impostors):
    """Pairs above a bin, in it and below it; in the bin all genuine pairs score higher, or all impostor pairs."""
    rates, bounds = [], []
    for alike, other in ((0.125001, 0.1250001), (0.1250001, 0.125001)):
        places = torch.tensor([0.5, alike, -0.5, 0.5, other, -0.5], dtype=torch.float64)
        counts = torch.tensor([*genuine, *impostors])
        scores, same = places.repeat_interleave(counts), (torch.arange(6) < 3).repeat_interleave(counts)
        rates.append(float(equal_error_rate(roc_curve(scores, same)).far))
        bounds.append([float(bound) for bound in eer_bounds(counted(scores, same).roc())])
    assert bounds == [rates, rates]


REFUSED = [
    *((lambda ends=ends: ScoreHistogram(*ends), "ascending integers") for ends in ((1, -1), (0, 0), (-0.5, 1))),
    (lambda: ScoreHistogram(0, 129), "at most 128 apart"),
    (lambda: ScoreHistogram().merge(ScoreHistogram(-2, 0)), r"the range \[-1, 1\] of this .*; got \[-2, 0\]"),
]
test_errors = refusals(REFUSED)
