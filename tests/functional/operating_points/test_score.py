import pytest
import torch
from torch import Tensor

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
from pml_ext.functional.operating_points.calibration import TooFewClassesError, TooFewPairsError
from tests.oracles import metrics as oracle


def a_set(
    count: int = 40, classes: int = 6, size: int = 5, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor]:
    """Classes of unequal spread and size; the last is a single sample."""
    labels = torch.sort(torch.randint(0, classes, (count,)))[0]
    labels[-1] = classes
    centres, spread = torch.randn(classes + 1, size), torch.rand(classes + 1, 1) * 1.5
    return (centres[labels] + spread[labels] * torch.randn(count, size)).to(dtype), labels * 7 + 3


@pytest.mark.parametrize("far_range", [(1e-2, 1e-1), (2e-3, 0.5), (0.2, 1.0)])
@pytest.mark.parametrize("grid", [10, 37])
def test_equals_the_loops(far_range: tuple[float, float], grid: int) -> None:
    x, y = a_set()
    options = {"far_range": far_range, "grid": grid}
    assert opis(x, y, **options).item() == pytest.approx(oracle.opis(x.numpy(), y.tolist(), far_range, grid), rel=1e-9)
    for epsilon in (0.1, 0.3, 0.4, 0.45, 1.0):
        expected = oracle.epsilon_opis(x.numpy(), y.tolist(), far_range, grid, epsilon)
        assert epsilon_opis(x, y, epsilon=epsilon, **options).item() == pytest.approx(expected, rel=1e-9, abs=1e-15)


@pytest.mark.parametrize(("dtype", "rel"), [(torch.float32, 1e-5), (torch.float16, 5e-3), (torch.bfloat16, 5e-3)])
def test_narrow_types_are_measured_in_float32(dtype: torch.dtype, rel: float) -> None:
    x, y = a_set()
    rounded = x.to(dtype)
    expected = oracle.opis(rounded.double().numpy(), y.tolist(), (1e-2, 1e-1), 20)
    assert opis(rounded, y, grid=20).item() == pytest.approx(expected, rel=rel)


def test_curves_equal_the_loops() -> None:
    x, y = a_set()
    pairs = oracle.all_pairs(x.numpy(), y.tolist())
    thresholds = torch.linspace(0, 2, 21, dtype=torch.float64)
    curves = utility_curves(x, y, thresholds=thresholds)
    expected = oracle.rates(pairs, thresholds.tolist())
    assert curves.classes.tolist() == list(expected)
    assert y[-1] not in curves.classes  # a single sample has no positive pair
    torch.testing.assert_close(curves.tpr, torch.tensor([tpr for tpr, _ in expected.values()], dtype=torch.float64))
    torch.testing.assert_close(curves.tnr, torch.tensor([tnr for _, tnr in expected.values()], dtype=torch.float64))
    torch.testing.assert_close(curves.thresholds, thresholds)
    assert curves.calibration_range.tolist() == pytest.approx(oracle.calibration_range(pairs, (1e-2, 1e-1)), rel=1e-12)
    assert curves.utilities.shape == (6, 21)
    # nothing accepted, everything accepted
    assert curves.utilities[:, 0].tolist() == [0.0] * 6
    assert curves.utilities[:, -1].tolist() == [0.0] * 6


def test_both_metrics_come_from_one_set_of_curves() -> None:
    x, y = a_set()
    curves = utility_curves(x, y, far_range=(0.05, 0.3), grid=15)
    assert opis_of_curves(curves) == opis(x, y, far_range=(0.05, 0.3), grid=15)
    assert epsilon_opis_of_curves(curves, 0.3) == epsilon_opis(x, y, epsilon=0.3, far_range=(0.05, 0.3), grid=15)


def test_the_weight_of_equation_1() -> None:
    """By hand: c = 2 makes the utility 5 φ ψ / (4 φ + ψ), so a class with low sensitivity loses more."""
    rates = torch.tensor([[1.0], [0.5]], dtype=torch.float64)
    for tpr, tnr, worse in ((rates, torch.ones_like(rates), 2.5 / 4.5), (torch.ones_like(rates), rates, 2.5 / 3)):
        curves = UtilityCurves(torch.tensor([0.5]), torch.tensor([0, 1]), tpr, tnr, 2 * tpr * tnr / (tpr + tnr), rates)
        assert opis_of_curves(curves, c=2).item() == pytest.approx(((1 - worse) / 2) ** 2, rel=1e-12)
        assert epsilon_opis_of_curves(curves, 0.5, c=2).item() == pytest.approx((1 - worse) ** 2, rel=1e-12)
        assert opis_of_curves(curves).item() == opis_of_curves(curves, c=1).item()
    with pytest.raises(ValueError, match="c must be"):
        opis_of_curves(curves, c=0)


def test_sensitivity_is_a_row_for_each_range() -> None:
    x, y = a_set()
    ranges = [(0.05, 0.3), (0.2, 1.0), (0.05, 0.3)]
    rows = opis_sensitivity(x, y, far_ranges=ranges, epsilon=0.2, grid=15)
    assert [row.far_range for row in rows] == ranges
    assert rows[0] == rows[2]
    for row, far_range in zip(rows, ranges, strict=True):
        curves = utility_curves(x, y, far_range=far_range, grid=15)
        assert row.opis == pytest.approx(opis_of_curves(curves).item(), rel=1e-9)
        assert row.epsilon_opis == pytest.approx(epsilon_opis_of_curves(curves, 0.2).item(), rel=1e-9)
        assert (row.d_min, row.d_max) == pytest.approx(curves.calibration_range.tolist(), rel=1e-9)
    with pytest.raises(ValueError, match="far_ranges must have at least one"):
        opis_sensitivity(x, y, far_ranges=[])


def test_classes_that_behave_alike_score_zero() -> None:
    y = torch.arange(4).repeat_interleave(6)
    assert opis(torch.eye(4)[y], y).item() == 0.0
    assert epsilon_opis(torch.eye(4)[y], y).item() == 0.0
    x, labels = a_set()
    assert epsilon_opis(x, labels, epsilon=1.0).item() == 0.0


def test_collapsed_embeddings_and_zero_rows_are_finite() -> None:
    y = torch.arange(5).repeat_interleave(4)
    assert opis(torch.ones(20, 3), y).item() == 0.0
    x = torch.randn(20, 3)
    x[:4] = 0
    assert 0 < opis(x, y).item() <= 0.25


def test_ties_at_the_ends_of_the_range_are_accepted_together() -> None:
    # Negative distances are all sqrt(2): the first reaches both rates, and with it all are accepted.
    y = torch.arange(4).repeat_interleave(6)
    curves = utility_curves(torch.eye(4, dtype=torch.float64)[y], y)
    assert curves.calibration_range.tolist() == pytest.approx([2**0.5] * 2)
    assert curves.tnr.max() == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_copies_have_distance_zero(dtype: torch.dtype) -> None:
    x, y = a_set(200, dtype=dtype, size=64)
    x[100:] = x[:100]  # copies under other labels: a negative pair each
    y[100:] += 1000
    pairs = PairDistances(x, y)
    found = pairs.negative_distances_at([1, 100, 101])
    assert found[:2].tolist() == [0, 0]
    assert found[2] > 0.01
    assert pairs.accepted(torch.zeros(1, dtype=dtype))[1].sum() == 200  # for both of their classes


def test_rates_below_one_pair_are_errors() -> None:
    x, y = a_set()
    total = PairDistances(x, y).total_negative_pairs
    needed = int(1 / 1e-3)
    with pytest.raises(TooFewPairsError, match=f"needs at least {needed} negative pairs .*; got {total}"):
        opis(x, y, far_range=(1e-3, 0.1))
    with pytest.raises(TooFewPairsError):
        opis(x, y, far_range=(1e-4, 0.1), negatives_per_positive=5)
    # At given thresholds the range is reported only.
    curves = utility_curves(x, y, far_range=(1e-3, 0.1), thresholds=torch.tensor([0.5, 1.0]))
    assert curves.calibration_range.isnan().tolist() == [True, False]
    assert curves.utilities.isfinite().all() and curves.utilities.std() > 0


def test_errors() -> None:
    x, y = a_set()
    with pytest.raises(ValueError, match="grid must be at least 10"):
        opis(x, y, grid=9)
    for far_range in ((0.1, 0.01), (0.0, 0.1), (0.1, 1.5), (0.1, 0.1)):
        with pytest.raises(ValueError, match="far_range must be two ascending rates"):
            opis(x, y, far_range=far_range)
    with pytest.raises(ValueError, match="epsilon must be in"):
        epsilon_opis(x, y, epsilon=1.5)
    with pytest.raises(ValueError, match="thresholds must be an ascending"):
        utility_curves(x, y, thresholds=torch.tensor([1.0, 0.5]))
    with pytest.raises(ValueError, match="labels must have shape"):
        opis(x, y[:-1])
    x[3, 1] = torch.nan
    with pytest.raises(ValueError, match="must be finite; got NaN or infinity in 1 of 40 rows"):
        opis(x, y)


@pytest.mark.parametrize("labels", [torch.zeros(10).long(), torch.arange(10), torch.tensor([0] * 9 + [1])])
def test_fewer_than_two_classes_are_an_error(labels: Tensor) -> None:
    with pytest.raises(TooFewClassesError, match="OPIS needs at least 2 classes"):
        opis(torch.randn(10, 4), labels)


def test_sizes_must_be_whole_numbers() -> None:
    x, y = a_set()
    with pytest.raises(ValueError, match=r"grid must be a whole number; got 10\.5"):
        opis(x, y, grid=10.5)
    with pytest.raises(ValueError, match="negatives_per_positive must be a whole number; got nan"):
        opis(x, y, negatives_per_positive=float("nan"))
    with pytest.raises(ValueError, match="far_range must be two ascending rates"):
        opis(x, y, far_range=(0.1, 0.2, 0.3))
    with pytest.raises(ValueError, match="thresholds must be an ascending"):
        utility_curves(x, y, thresholds=torch.tensor([0.1, float("nan")]))
