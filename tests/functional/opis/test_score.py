"""OPIS, ε-OPIS and their curves against loops over pairs."""

import pytest
import torch
from pytest import approx
from torch.testing import assert_close

from pml_ext.functional import (
    PairDistances,
    UtilityCurves,
    epsilon_opis,
    epsilon_opis_of_curves,
    opis,
    opis_of_curves,
    opis_sensitivity,
    utility_curves,
)
from pml_ext.functional.opis.utility import (
    TooFewClassesError,
    TooFewPairsError,
    utility_of_rates,
    why_opis_says_nothing,
)
from tests.oracles import metrics as oracle
from tests.refusals import refusals


def a_set():
    """Classes of unequal spread and size; the last is a single sample."""
    labels = torch.sort(torch.randint(0, 6, (40,)))[0]
    labels[-1] = 6
    centres, spread = torch.randn(7, 5).double(), torch.rand(7, 1) * 1.5
    return centres[labels] + spread[labels] * torch.randn(40, 5), labels * 7 + 3


@pytest.mark.parametrize("far_range", [(1e-2, 1e-1), (2e-3, 0.5), (0.2, 1.0)])
@pytest.mark.parametrize("grid", [10, 37])
def test_equals_the_loops(far_range, grid, device):
    x, y = a_set()
    given, options = (x.to(device), y.to(device)), {"far_range": far_range, "grid": grid}
    loops = x.numpy(), y.tolist(), far_range, grid
    score = opis(*given, **options).item()
    assert score == approx(oracle.opis(*loops), rel=1e-9)
    for epsilon in (0.1, 0.3, 0.4, 0.45, 1.0):
        gap = epsilon_opis(*given, epsilon=epsilon, **options).item()
        assert gap == approx(oracle.epsilon_opis(*loops, epsilon), rel=1e-9, abs=1e-15)
    rows = opis_sensitivity(*given, far_ranges=[far_range, (0.05, 0.3), far_range], epsilon=0.45, grid=grid)
    assert [row.far_range for row in rows] == [far_range, (0.05, 0.3), far_range] and rows[0] == rows[2] != rows[1]
    gap = oracle.epsilon_opis(*loops, 0.45)
    assert rows[0][1:3] == approx((score, gap), rel=1e-9, abs=1e-15)
    ends = oracle.calibration_range(oracle.all_pairs(*loops[:2]), far_range)
    assert rows[0][3:] == approx(ends, rel=1e-9)


@pytest.mark.parametrize(("dtype", "rel"), [(torch.float32, 1e-5), (torch.float16, 5e-3), (torch.bfloat16, 5e-3)])
def test_narrow_types_are_measured_in_float32(dtype, rel):
    x, y = a_set()
    expected = oracle.opis(x.to(dtype).double().numpy(), y.tolist(), (1e-2, 1e-1), 20)
    assert opis(x.to(dtype), y, grid=20).item() == approx(expected, rel=rel)


def test_curves_equal_the_loops():
    x, y = a_set()
    pairs, thresholds = oracle.all_pairs(x.numpy(), y.tolist()), torch.linspace(0, 2, 21).double()
    curves = utility_curves(x, y, thresholds=thresholds)
    expected = oracle.rates(pairs, thresholds.tolist())
    assert curves.classes.tolist() == list(expected) and y[-1] not in curves.classes  # it has no positive pair
    tpr, tnr = torch.tensor(list(expected.values()), dtype=torch.float64).unbind(1)
    assert_close((curves.tpr, curves.tnr, curves.thresholds), (tpr, tnr, thresholds))
    utilities = [*map(oracle.harmonic, tpr.flatten().tolist(), tnr.flatten().tolist())]
    assert curves.utilities.flatten().tolist() == approx(utilities) and 0 in utilities
    assert curves.calibration_range.tolist() == approx(oracle.calibration_range(pairs, (1e-2, 1e-1)), rel=1e-12)


def test_the_weight_of_equation_1():
    """By hand: c = 2 makes the utility 5 φ ψ / (4 φ + ψ), so a class with low sensitivity loses more."""
    rates = torch.tensor([[1.0], [0.5]], dtype=torch.float64)
    for tpr, tnr, worse in ((rates, torch.ones_like(rates), 2.5 / 4.5), (torch.ones_like(rates), rates, 2.5 / 3)):
        curves = UtilityCurves(torch.tensor([0.5]), torch.tensor([0, 1]), tpr, tnr, 2 * tpr * tnr / (tpr + tnr), rates)
        assert opis_of_curves(curves, c=2).item() == approx(((1 - worse) / 2) ** 2, rel=1e-12)
        assert epsilon_opis_of_curves(curves, 0.5, c=2).item() == approx((1 - worse) ** 2, rel=1e-12)
        assert opis_of_curves(curves).item() == opis_of_curves(curves, c=1).item()
    assert not utility_of_rates(0 * rates, 0 * rates).any(), "0 for 0/0"
    with pytest.raises(ValueError, match="c must be"):
        opis_of_curves(curves, c=0)


def test_classes_are_told_apart_by_one_genuine_pair_in_a_hundred():
    """Thresholds outside the calibration range, at which all is right, do not count; those at its ends do."""
    thresholds = torch.tensor([0.1, 0.25, 0.5, 0.75])
    for gap, is_told in ((1 / 64, True), (1 / 128, False)):
        tpr = torch.tensor([[1, 0.5, 0.5 + 2 * gap, 1]], dtype=torch.float64)
        tnr = torch.tensor([[1, 0.5, 0.5, 1]], dtype=torch.float64)
        curves = UtilityCurves(thresholds, torch.tensor([0]), tpr, tnr, tpr, thresholds[1:3])
        said = why_opis_says_nothing(curves)
        share = 100 * (0.5 + gap)
        assert said == "" if is_told else f"({share:.1f} % of genuine pairs are accepted, 50.0 %" in said
    assert why_opis_says_nothing(curves._replace(calibration_range=thresholds[[1, 1]])) == ""
    assert why_opis_says_nothing(curves._replace(calibration_range=torch.tensor([0.3, 0.4]))) == ""


def test_classes_that_behave_alike_collapsed_embeddings_and_zero_rows():
    y = torch.arange(4).repeat_interleave(6)
    for alike in (torch.eye(4)[y], torch.ones(24, 3)):
        assert opis(alike, y).item() == epsilon_opis(alike, y).item() == 0.0
    x = torch.randn(24, 3)
    x[:4] = 0
    assert 0 < opis(x, y).item() <= 0.25
    # Negative distances are all sqrt(2): the first reaches both rates, and with it all are accepted.
    curves = utility_curves(torch.eye(4, dtype=torch.float64)[y], y)
    assert curves.calibration_range.tolist() == approx([2**0.5] * 2) and curves.tnr.max() == 0


def test_rates_below_one_pair_are_errors():
    x, y = a_set()
    total = PairDistances(x, y).total_negative_pairs
    with pytest.raises(TooFewPairsError, match=f"needs at least 1000 negative pairs .*; got {total}"):
        opis(x, y, far_range=(1e-3, 0.1))
    # At given thresholds the range is reported only.
    curves = utility_curves(x, y, far_range=(1e-3, 0.1), thresholds=torch.tensor([0.5, 1.0]))
    assert curves.calibration_range.isnan().tolist() == [True, False]
    assert curves.utilities.isfinite().all() and curves.utilities.std() > 0


X, Y = torch.randn(10, 4), torch.arange(10) // 5


@pytest.mark.parametrize("labels", [0 * Y, torch.arange(10), torch.tensor([0] * 9 + [1])])
def test_fewer_than_two_classes_are_an_error(labels):
    with pytest.raises(TooFewClassesError, match="OPIS needs at least 2 classes"):
        opis(X, labels)


REFUSED = [
    (lambda: opis(X, Y, grid=9), "grid must be at least 10"),
    *(
        (lambda ends=ends: opis(X, Y, far_range=ends), "far_range must be two ascending rates")
        for ends in ((0.0, 0.1), (0.1, 1.5), (0.1, 0.1), (0.1, 0.2, 0.3))
    ),
    (lambda: epsilon_opis(X, Y, epsilon=1.5), "epsilon must be in"),
    (lambda: opis_sensitivity(X, Y, far_ranges=[]), "far_ranges must have at least one"),
    (lambda: utility_curves(X, Y, thresholds=torch.tensor([1.0, 0.5])), "thresholds must be an ascending"),
]
test_errors = refusals(REFUSED)
