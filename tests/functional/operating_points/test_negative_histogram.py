"""Counts from bins against exact counts, and sets for which bins fail."""

import pytest
import torch
from torch import Tensor

from pml_ext.functional import PairDistances, epsilon_opis_of_curves, opis_of_curves, utility_curves
from pml_ext.functional.operating_points.calibration import calibrated_curves
from pml_ext.functional.operating_points.negative_histogram import calibration_brackets, make_negative_histogram
from pml_ext.functional.operating_points.utility import UtilityCurves

COUNT = 2000


def a_set(labels: Tensor, size: int = 24, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Classes around random centres, with different spreads."""
    labels = labels[torch.randperm(len(labels))]
    centres, spread = torch.randn(int(labels.max()) + 1, size), torch.rand(int(labels.max()) + 1, 1) * 2
    return (centres[labels] + spread[labels] * torch.randn(len(labels), size)).to(dtype), labels


LABELS = {
    "four a class": torch.arange(COUNT) // 4,
    "classes across blocks": torch.arange(COUNT) // 700,
    "one huge class": torch.cat([torch.zeros(1200), 1 + torch.arange(800) // 5]).long(),
    "singletons": torch.cat([torch.arange(1000) // 10, 150 + torch.arange(1000)]),
    "unequal": (torch.linspace(0, 1, COUNT) ** 3 * 150).long(),
}


def curves_over(x: Tensor, y: Tensor, *far_ranges: tuple[float, float], exact: bool = False) -> list[UtilityCurves]:
    """`utility_curves` that uses bins for sets of any size."""
    return calibrated_curves(PairDistances(x, y), far_ranges=far_ranges, grid=100, exact=exact, exact_up_to=0)


def binned(x: Tensor, y: Tensor, far_range: tuple[float, float] = (1e-2, 1e-1)) -> UtilityCurves:
    return curves_over(x, y, far_range)[0]


def is_exact(curves: UtilityCurves, x: Tensor, y: Tensor) -> bool:
    return torch.equal(curves.tnr, utility_curves(x, y, exact=True).tnr)


@pytest.mark.parametrize(
    ("name", "dtype"), [*((name, torch.float32) for name in LABELS), ("singletons", torch.float64)]
)
def test_one_pass_is_within_1e_5_of_exact_counts(name: str, dtype: torch.dtype) -> None:
    x, y = a_set(LABELS[name], dtype=dtype)
    found, expected = binned(x, y), utility_curves(x, y, exact=True)
    assert opis_of_curves(found).item() == pytest.approx(opis_of_curves(expected).item(), rel=1e-5)
    for epsilon in (0.1, 0.5):
        assert epsilon_opis_of_curves(found, epsilon).item() == pytest.approx(
            epsilon_opis_of_curves(expected, epsilon).item(), rel=2e-5
        )
    torch.testing.assert_close(found.calibration_range.double(), expected.calibration_range.double(), rtol=1e-5, atol=0)
    assert torch.equal(found.classes, expected.classes)
    torch.testing.assert_close(found.tnr, expected.tnr, rtol=0, atol=2e-3)


def test_bins_are_used_if_possible() -> None:
    x, y = a_set(torch.arange(4000) // 40, size=8)
    curves = binned(x, y)
    assert not is_exact(curves, x, y)


def test_bins_count_all_pairs() -> None:
    x, y = a_set(LABELS["singletons"], dtype=torch.float64)
    pairs = PairDistances(x, y, block_rows=500)
    kept = pairs.positive_pairs > 0
    histogram = make_negative_histogram(pairs, (1e-2, 1e-1), kept)
    assert histogram is not None
    edges = 1 - (histogram.top - histogram.width * torch.tensor([1.0, 3, 17, 200]).double())
    thresholds = (2 * edges).sqrt()  # no interpolation at the edges
    torch.testing.assert_close(histogram.accepted(thresholds), pairs.accepted(thresholds)[1][kept].double())
    for rank in (int(far * pairs.total_negative_pairs) for far in (0.01, 0.03, 0.1)):
        distance, error = histogram.distance_at(rank) or (0, 0)
        exact = pairs.negative_distances_at([rank]).item()
        assert abs(distance - exact) < 5 * error < 1e-4
    for rank in (1, pairs.total_negative_pairs):
        assert histogram.distance_at(rank) is None
    assert histogram.clumping() < 1.5


def test_equal_distances_are_counted_exactly() -> None:
    # 16-bit codes: a distance is one of 17, so interpolation inside a bin would be wrong.
    y = LABELS["four a class"]
    codes = torch.randn(COUNT // 4, 16)[y] + 0.7 * torch.randn(COUNT, 16)
    codes = codes.sign()
    assert is_exact(binned(codes, y), codes, y)
    # Each class is one point: distances come in groups of 400.
    y = torch.arange(COUNT) // 20
    points = torch.randn(100, 8)[y]
    assert is_exact(binned(points, y), points, y)


def test_embeddings_on_one_point_are_counted_exactly() -> None:
    y = LABELS["four a class"][:600]
    near = torch.ones(600, 8) + 1e-5 * torch.randn(600, 8)
    assert is_exact(binned(near, y), near, y)
    assert opis_of_curves(binned(torch.ones(600, 8), y)).item() == 0


def test_concentrated_cosines_are_counted_in_bins() -> None:
    # Centres in random directions: all negative cosines are near 0 and OPIS is tiny.
    y = torch.arange(5000) % 500
    x = torch.randn(500, 128)[y] + torch.randn(5000, 128)
    curves, expected = utility_curves(x, y), utility_curves(x, y, exact=True)
    assert not torch.equal(curves.tnr, expected.tnr)
    assert 1e-7 < opis_of_curves(expected) < 1e-5
    for metric in (opis_of_curves, epsilon_opis_of_curves):
        assert metric(curves).item() == pytest.approx(metric(expected).item(), rel=2e-3, abs=2e-9)
    assert opis_of_curves(curves).item() == pytest.approx(opis_of_curves(expected).item(), abs=2e-9)


@pytest.mark.parametrize(("count", "size", "noise"), [(6000, 64, 1), (5000, 512, 2)])
def test_small_sets_of_small_classes_have_enough_bins(count: int, size: int, noise: float) -> None:
    y = torch.arange(count) // 4
    x = torch.randn(count // 4, size)[y] + noise * torch.randn(count, size)
    curves, expected = binned(x, y), utility_curves(x, y, exact=True)
    assert not torch.equal(curves.tnr, expected.tnr)
    assert opis_of_curves(curves).item() == pytest.approx(opis_of_curves(expected).item(), rel=1e-5)


def test_low_scores_and_low_rates_are_counted_exactly() -> None:
    y = LABELS["four a class"]
    alike = torch.randn(COUNT // 4, 64)[y] + 0.01 * torch.randn(COUNT, 64)  # all classes behave alike
    assert is_exact(binned(alike, y), alike, y)
    x, y = a_set(y)
    rare = (1e-6, 1e-5)  # two pairs at the lower end
    curves, expected = binned(x, y, rare), utility_curves(x, y, far_range=rare, exact=True)
    assert torch.equal(curves.tnr, expected.tnr)


def test_the_full_range_of_rates() -> None:
    x, y = a_set(LABELS["four a class"])
    ranges = [(1e-2, 1e-1), (1e-3, 1e-2), (0.2, 1.0), (1e-2, 1e-1)]
    found, expected = curves_over(x, y, *ranges), curves_over(x, y, *ranges, exact=True)
    assert torch.equal(found[0].tnr, found[3].tnr)
    for curves, exact in zip(found, expected, strict=True):
        assert opis_of_curves(curves).item() == pytest.approx(opis_of_curves(exact).item(), rel=2e-5)
        gap, exact_gap = (epsilon_opis_of_curves(each, 0.2).item() for each in (curves, exact))
        assert gap == pytest.approx(exact_gap, rel=2e-5)
        torch.testing.assert_close(
            curves.calibration_range.double(), exact.calibration_range.double(), rtol=2e-5, atol=0
        )
    alone = opis_of_curves(utility_curves(x, y, far_range=ranges[2], exact=True))
    assert opis_of_curves(expected[2]).item() == pytest.approx(alone.item(), rel=1e-9)


def test_order_and_duplicates_hardly_matter() -> None:
    x, y = a_set(LABELS["four a class"])
    expected = opis_of_curves(binned(x, y)).item()
    order = torch.randperm(COUNT)
    assert opis_of_curves(binned(x[order], y[order])).item() == pytest.approx(expected, rel=2e-5)
    x[:200] = x[200:400]  # copies of images, mostly under other labels
    found, exact = (opis_of_curves(curves_over(x, y, (1e-2, 1e-1), exact=each)[0]).item() for each in (False, True))
    assert found == pytest.approx(exact, rel=1e-5)


def test_the_bracket_encloses_the_range() -> None:
    y = torch.arange(3000) // 10
    x = torch.randn(300, 16)[y] + torch.randn(3000, 16)
    pairs = PairDistances(x, y)
    ranks = [int(far * pairs.total_negative_pairs) for far in (1e-2, 1e-1)]
    d_min, d_max = pairs.negative_distances_at(ranks).tolist()
    (bracket,) = calibration_brackets(pairs, [(1e-2, 1e-1)])
    assert bracket is not None
    assert bracket[0] > 1 - d_min**2 / 2 > 1 - d_max**2 / 2 > bracket[1]
    assert bracket[0] - bracket[1] < 3 * (d_max**2 - d_min**2) / 2


def test_a_sample_of_one_class_gives_no_bracket() -> None:
    y = torch.zeros(2100, dtype=torch.int64)
    y[0] = 1
    assert calibration_brackets(PairDistances(torch.randn(2100, 4), y), [(0.1, 0.1)]) == [None]


def test_equal_distances_give_no_bracket() -> None:
    y = torch.arange(2000) // 4
    assert calibration_brackets(PairDistances(torch.randn(2000, 16).sign(), y), [(1e-2, 1e-1)]) == [None]
