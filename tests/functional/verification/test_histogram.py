import pytest
import torch
from torch import Tensor

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

FARS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)


def pairs(count: int, spread: float = 0.2, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    same = torch.rand(count) < 0.1
    scores = (spread * torch.randn(count) + 0.4 * spread / 0.2 * same).clamp(-1, 1)
    return scores.to(dtype), same


def counted(scores: Tensor, same: Tensor, **options: int) -> ScoreHistogram:
    histogram = ScoreHistogram(**options)
    histogram.update(scores, same)
    return histogram


# A spread of 1e-5 puts thousands of scores into one bin.
@pytest.mark.parametrize("spread", [0.2, 1e-3, 1e-5])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_bounds_contain_the_exact_values(spread: float, dtype: torch.dtype) -> None:
    scores, same = pairs(200_000, spread, dtype)
    exact, binned = roc_curve(scores, same), counted(scores, same).roc()
    for far in FARS:
        lower, upper = tar_bounds(binned, far)
        assert lower <= operating_point(exact, far).tar <= upper
        # The reported threshold reaches the lower bound within the rate.
        point = operating_point(binned, far)
        at_threshold = errors_at(scores, same, point.threshold)
        assert point.tar == lower and point.far <= far
        assert at_threshold.far == point.far
        assert 1 - at_threshold.frr == pytest.approx(lower.item())
    for bounds, value in ((auc_bounds, roc_auc), (eer_bounds, lambda roc: equal_error_rate(roc).far)):
        lower, upper = bounds(binned)
        assert lower - 1e-12 <= value(exact) <= upper + 1e-12
        assert lower - 1e-12 <= value(binned) <= upper + 1e-12


def test_bounds_are_tight_for_a_million_scores() -> None:
    scores, same = pairs(1_000_000)
    exact, binned = roc_curve(scores, same), counted(scores, same).roc()
    found = [*(tar_bounds(binned, far) for far in FARS), auc_bounds(binned), eer_bounds(binned)]
    expected = [*(operating_point(exact, far).tar for far in FARS), roc_auc(exact), equal_error_rate(exact).far]
    for (lower, upper), value in zip(found, expected, strict=True):
        assert lower - 1e-12 <= value <= upper + 1e-12 < lower + 5e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scores_are_on_the_right_side_of_edges(dtype: torch.dtype) -> None:
    edges = torch.tensor([-1 + 2**-19, -0.25, 0.0, 2**-19, 0.3125, 1 - 2**-19, 1.0], dtype=dtype)
    scores = torch.cat(
        [edges, edges.nextafter(torch.tensor(-2.0, dtype=dtype)), torch.tensor([1e-30, -1e-30]).to(dtype)]
    )
    same = torch.ones(len(scores), dtype=torch.bool)
    roc = counted(scores, same).roc()
    for threshold, accepted in zip(roc.thresholds, roc.true_accepts, strict=True):
        assert int((scores.double() >= threshold).sum()) == accepted
    assert {*edges.tolist()} <= {*roc.thresholds.tolist()}


def test_scores_outside_the_range_still_count() -> None:
    scores = torch.tensor([-5.0, -1.5, 0.2, 1.00001, 7.0])
    same = torch.tensor([False, True, False, False, True])
    roc = counted(scores, same).roc()
    assert roc.thresholds.tolist() == [torch.inf, 1.0, pytest.approx(0.2, abs=2e-6), -torch.inf]
    assert roc.false_accepts.tolist() == [0, 1, 2, 3]
    assert roc.true_accepts.tolist() == [0, 1, 1, 2]
    for far in (0.34, 0.67, 1.0):
        lower, upper = tar_bounds(roc, far)
        assert lower <= operating_point(roc_curve(scores, same), far).tar <= upper


def test_updates_merges_and_all_reduces_of_parts_equal_one_update() -> None:
    scores, same = pairs(700_000)  # more than are counted at once
    whole = counted(scores, same)
    parts = [counted(*part) for part in zip(scores.split(300_000), same.split(300_000), strict=True)]
    assert torch.equal(sum(part.counts for part in parts), whole.counts)
    parts[0].merge(parts[1])
    parts[0].update(scores[600_000:], same[600_000:])
    assert torch.equal(parts[0].counts, whole.counts)
    assert whole.counts.sum(1).tolist() == [int((~same).sum()), int(same.sum())]
    whole.reset()
    assert whole.roc().thresholds.tolist() == [torch.inf]


def test_negated_distances() -> None:
    scores, same = pairs(2000)
    distances = (2 - 2 * scores).sqrt()
    lower, upper = tar_bounds(counted(-distances, same, low=-2, high=0).roc(), 0.01)
    assert lower <= operating_point(roc_curve(scores, same), 0.01).tar <= upper < lower + 0.01


@pytest.mark.parametrize(("genuine", "impostors"), [((1, 2, 1), (0, 2, 2)), ((2, 2, 0), (1, 3, 0))])
def test_the_bounds_of_the_equal_error_rate_are_tight(
    genuine: tuple[int, int, int], impostors: tuple[int, int, int]
) -> None:
    """Pairs above a bin, in it and below it; in the bin all genuine pairs score higher, or all impostor pairs."""
    lower, upper = [], []
    for alike, other, found in ((0.125001, 0.1250001, lower), (0.1250001, 0.125001, upper)):
        places = torch.tensor([0.5, alike, -0.5, 0.5, other, -0.5], dtype=torch.float64)
        counts = torch.tensor([*genuine, *impostors])
        scores, same = places.repeat_interleave(counts), (torch.arange(6) < 3).repeat_interleave(counts)
        found.extend([float(equal_error_rate(roc_curve(scores, same)).far), eer_bounds(counted(scores, same).roc())])
    assert [float(bound) for bound in lower[1]] == [float(bound) for bound in upper[1]] == [lower[0], upper[0]]


def test_missing_pairs_are_nan() -> None:
    scores, same = pairs(100)
    for kind in (True, False):
        roc = counted(scores, torch.full_like(same, kind)).roc()
        for bounds in (tar_bounds(roc, 0.5), auc_bounds(roc), eer_bounds(roc)):
            assert all(value.isnan() for value in bounds)


def test_errors() -> None:
    for low, high in ((1, -1), (0, 0), (-0.5, 1)):
        with pytest.raises(ValueError, match="low and high must be ascending integers"):
            ScoreHistogram(low, high)
    histogram = ScoreHistogram()
    with pytest.raises(ValueError, match=r"other must have the range \[-1, 1\] of this histogram; got \[-2, 0\]"):
        histogram.merge(ScoreHistogram(-2, 0))
    with pytest.raises(ValueError, match="scores must be finite"):
        histogram.update(torch.tensor([0.1, torch.nan]), torch.tensor([True, False]))
    with pytest.raises(ValueError, match="same must be bool of shape"):
        histogram.update(torch.rand(3), torch.ones(2, dtype=torch.bool))
    assert histogram.counts.sum() == 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda() -> None:
    scores, same = pairs(200_000)
    expected, here, there = counted(scores, same), ScoreHistogram(), ScoreHistogram(device="cuda")
    for histogram in (here, there):
        histogram.update(scores.cuda(), same.cuda())
        assert torch.equal(histogram.counts.cpu(), expected.counts)
    for far in FARS:
        assert operating_point(there.roc(), far).tar.item() == operating_point(expected.roc(), far).tar.item()
