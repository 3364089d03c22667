"""Counts from bins against exact counts, and sets for which bins fail."""

from functools import partial

import pytest
import torch
from pytest import approx
from torch.testing import assert_close

from pml_ext.functional import PairDistances, epsilon_opis_of_curves, opis_of_curves, utility_curves
from pml_ext.functional.opis.utility import calibrated_curves

COUNT = 2000
USUAL = (1e-2, 1e-1)


def a_set(labels, size=24, dtype=torch.float32):
    """Classes around random centres, with different spreads."""
    labels = labels[torch.randperm(len(labels))]
    centres, spread = torch.randn(int(labels.max()) + 1, size), torch.rand(int(labels.max()) + 1, 1) * 2
    return (centres[labels] + spread[labels] * torch.randn(len(labels), size)).to(dtype), labels


def around_centres(count, classes, size, noise=1.0):
    labels = torch.arange(count) * classes // count
    return torch.randn(classes, size)[labels] + noise * torch.randn(count, size), labels


def curves_over(x, y, *far_ranges, exact=False):
    """`utility_curves` that uses bins for sets of any size."""
    return calibrated_curves(PairDistances(x, y), far_ranges=far_ranges, grid=100, exact=exact, exact_up_to=0)


def assert_near(found, exact, rel=1e-5, floor=0.0):
    assert opis_of_curves(found).item() == approx(opis_of_curves(exact).item(), rel=rel, abs=floor)
    for epsilon in (0.1, 0.2, 0.5):
        gaps = [epsilon_opis_of_curves(curves, epsilon).item() for curves in (found, exact)]
        assert gaps[0] == approx(gaps[1], rel=2 * rel, abs=floor)
    ranges = [curves.calibration_range.double() for curves in (found, exact)]
    assert_close(*ranges, rtol=2e-5, atol=0)


FOUR = torch.arange(COUNT) // 4
HALF_ALONE = torch.cat([torch.arange(3000) // 10, 450 + torch.arange(3000)])
BINNED = {
    "large classes": (partial(a_set, torch.arange(4000) // 40, size=8), 1e-5, 0),
    "singletons": (partial(a_set, HALF_ALONE, size=8), 1e-5, 0),
    "small classes": (partial(around_centres, 6000, 1500, 64), 1e-5, 0),
    "512 columns": (partial(around_centres, 5000, 1250, 512, noise=2), 1e-5, 0),
    # Centres in random directions: all negative cosines are near 0 and OPIS is tiny.
    "concentrated cosines": (partial(around_centres, 5000, 500, 128), 1e-3, 2e-9),
}


@pytest.mark.parametrize(("make", "rel", "floor"), BINNED.values(), ids=BINNED)
def test_one_pass_in_bins_is_near_exact_counts(make, rel, floor, device):
    x, y = make()
    (found,), exact = curves_over(x.to(device), y, USUAL), utility_curves(x.to(device), y, exact=True)
    assert not torch.equal(found.tnr, exact.tnr)
    assert opis_of_curves(found).item() == approx(opis_of_curves(exact).item(), rel=rel, abs=floor)
    assert_near(found, exact, 1e-3, floor)


def test_several_ranges_and_duplicates():
    x, y = a_set(FOUR)
    x[:200] = x[200:400]  # copies of images, mostly under other labels
    ranges = [USUAL, (1e-3, 1e-2), (0.2, 1.0), USUAL]
    found, exact = curves_over(x, y, *ranges), curves_over(x, y, *ranges, exact=True)
    assert torch.equal(found[0].tnr, found[3].tnr)
    for curves, expected in zip(found, exact, strict=True):
        assert_near(curves, expected, rel=2e-5)
    assert_near(exact[2], utility_curves(x, y, far_range=ranges[2], exact=True), rel=1e-9)


HARD = {
    # 16-bit codes: a distance is one of 17, so interpolation inside a bin would be wrong.
    "codes": lambda: ((torch.randn(COUNT // 4, 16)[FOUR] + 0.7 * torch.randn(COUNT, 16)).sign(), FOUR),
    # Each class is one point: distances come in groups of 400.
    "points": lambda: around_centres(COUNT, 100, 8, noise=0),
    "nearly one point": lambda: (torch.ones(600, 8) + 1e-5 * torch.randn(600, 8), FOUR[:600]),
    "one point": lambda: (torch.ones(600, 8), FOUR[:600]),
    "all classes behave alike": lambda: around_centres(COUNT, COUNT // 4, 64, noise=0.01),
}


@pytest.mark.parametrize("make", HARD.values(), ids=HARD)
def test_sets_for_which_bins_fail_are_counted_exactly(make):
    x, y = make()
    (found,) = curves_over(x, y, USUAL)
    assert torch.equal(found.tnr, utility_curves(x, y, exact=True).tnr)


def test_low_rates_are_counted_exactly():
    x, y = a_set(FOUR)
    rare = (1e-6, 1e-5)  # two pairs at the lower end
    assert torch.equal(curves_over(x, y, rare)[0].tnr, utility_curves(x, y, far_range=rare, exact=True).tnr)
