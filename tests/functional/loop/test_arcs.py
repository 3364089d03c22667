import pytest
import torch
import torch.nn.functional as F

from pml_ext.functional import arc_distance, closest_on_arcs, segment_distance
from tests.oracles.arcs import brute_force_arcs, brute_force_segments, trigonometric_similarity


def unit(count: int, size: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(count, size, dtype=torch.float64, generator=generator), dim=1)


def four(count: int, size: int, spread: float | None = None) -> list[torch.Tensor]:
    ends = [unit(count, size, seed) for seed in range(4)]
    return ends if spread is None else [F.normalize(ends[0] + spread * end, dim=1) for end in ends]


def degenerate(kind: str, count: int, size: int) -> list[torch.Tensor]:
    x1, x2, y1, y2 = four(count, size)
    if kind == "point":
        return [x1, x1, y1, y2]
    if kind == "two points":
        return [x1, x1, y1, y1]
    if kind == "shared end":
        return [x1, x2, x1, y2]
    if kind == "identical":
        return [x1, x2, x1, x2]
    if kind == "reversed":
        return [x1, x2, x2, x1]
    middle = F.normalize(x1 + x2, dim=1)
    return [x1, x2, F.normalize(middle + 0.3 * y1, dim=1), F.normalize(middle - 0.3 * y1, dim=1)]  # crossing


@pytest.mark.parametrize("size", [2, 3, 5, 16, 64])
@pytest.mark.parametrize("spread", [None, 0.3])
def test_equals_brute_force_on_10_000_arcs(size: int, spread: float | None) -> None:
    ends = four(1000, size, spread)
    expected = brute_force_arcs(*ends)
    excess = arc_distance(*ends) - expected
    assert excess.abs().max() <= 1e-6
    assert excess.max() <= 1e-9
    single = arc_distance(*(end.float() for end in ends))
    assert (single - expected).abs().max() <= 2e-3  # a distance near 0 keeps half the digits of its cosine


@pytest.mark.parametrize("kind", ["point", "two points", "shared end", "identical", "reversed", "crossing"])
@pytest.mark.parametrize("size", [2, 3, 32])
def test_equals_brute_force_on_degenerate_arcs(kind: str, size: int) -> None:
    ends = degenerate(kind, 60, size)
    excess = arc_distance(*ends) - brute_force_arcs(*ends)
    assert excess.abs().max() <= 1e-6
    assert excess.max() <= 1e-7  # coinciding ends differ by rounding, which brute force divides by

    if kind not in ("point", "two points"):
        assert arc_distance(*ends).max() <= 1e-7


def test_antipodal_ends_count_as_two_points() -> None:
    x, _, y1, y2 = four(60, 7)
    distance = arc_distance(x, -x, y1, y2)
    by_point = torch.minimum(arc_distance(x, x, y1, y2), arc_distance(-x, -x, y1, y2))
    assert torch.allclose(distance, by_point, atol=1e-12)


def test_value_of_an_example() -> None:
    x1, x2 = torch.tensor([1.0, 0, 0]), torch.tensor([0, 1.0, 0])
    y = torch.tensor([1.0, 1, 1]) / 3**0.5
    cosine = (2 / 3) ** 0.5  # at the midpoint of the quarter circle
    assert arc_distance(x1, x2, y, y).item() == pytest.approx((2 - 2 * cosine) ** 0.5, abs=1e-6)
    assert arc_distance(3 * x1, 2 * x2, y, 5 * y).item() == pytest.approx((2 - 2 * cosine) ** 0.5, abs=1e-6)


@pytest.mark.parametrize("spread", [None, 0.5])
def test_gradient_equals_finite_differences(spread: float | None) -> None:
    ends = [end.requires_grad_() for end in four(12, 6, spread)]
    assert torch.autograd.gradcheck(arc_distance, ends)


def test_gradient_equals_plain_autograd() -> None:
    ends = [end.requires_grad_() for end in four(40, 5)]
    by_weights = (1 - arc_distance(*ends).square() / 2).sum()
    plain = sum(trigonometric_similarity(*(F.normalize(end[i], dim=0) for end in ends)) for i in range(40))
    assert torch.allclose(by_weights, plain, atol=1e-10)
    for ours, other in zip(torch.autograd.grad(by_weights, ends), torch.autograd.grad(plain, ends), strict=True):
        assert torch.allclose(ours, other, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "kind", ["point", "two points", "shared end", "identical", "reversed", "crossing", "antipodal"]
)
def test_gradient_is_finite_at_singular_points(kind: str, dtype: torch.dtype) -> None:
    x1, x2, y1, y2 = degenerate(kind, 20, 4) if kind != "antipodal" else [*four(20, 4)]
    ends = [end.to(dtype).clone().requires_grad_() for end in (x1, -x1 if kind == "antipodal" else x2, y1, y2)]
    arc_distance(*ends).sum().backward()
    assert all(end.grad is not None and end.grad.isfinite().all() for end in ends)


def test_weights_give_points_on_the_arcs_with_the_returned_cosine() -> None:
    x1, x2, y1, y2 = four(500, 5)
    pairs = ((x1, y1), (x1, y2), (x2, y1), (x2, y2), (x1, x2), (y1, y2))
    h, *weights = closest_on_arcs(*((a * b).sum(1) for a, b in pairs))
    w1, w2, v1, v2 = (w[:, None] for w in weights)
    p, q = w1 * x1 + w2 * x2, v1 * y1 + v2 * y2
    assert min(float(w.min()) for w in weights) >= 0
    assert torch.allclose(p.norm(dim=1), torch.ones(500, dtype=torch.float64), atol=1e-10)
    assert torch.allclose(q.norm(dim=1), torch.ones(500, dtype=torch.float64), atol=1e-10)
    assert torch.allclose((p * q).sum(1), h, atol=1e-10)


@pytest.mark.parametrize("which", range(4))
def test_nan_stays_nan(which: int) -> None:
    ends = four(3, 4)
    ends[which][1] = float("nan")
    assert arc_distance(*ends).isnan().tolist() == [False, True, False]


def test_broadcasts() -> None:
    x1, x2, y1, y2 = four(6, 3)
    grid = arc_distance(x1[:, None], x2[:, None], y1[None], y2[None])
    assert grid.shape == (6, 6)
    assert torch.allclose(grid.diagonal(), arc_distance(x1, x2, y1, y2))


def four_points(count: int, size: int) -> list[torch.Tensor]:
    return [3 * torch.randn(count, size, dtype=torch.float64) + 1 for _ in range(4)]


def degenerate_segments(kind: str, count: int, size: int) -> list[torch.Tensor]:
    x1, x2, y1, y2 = four_points(count, size)
    middle = (x1 + x2) / 2
    kinds = {"point": [x1, x1, y1, y2], "two points": [x1, x1, y1, y1], "shared end": [x1, x2, x1, y2]}
    kinds |= {"identical": [x1, x2, x1, x2], "parallel": [x1, x2, y1, y1 + x2 - x1]}
    kinds |= {"crossing": [x1, x2, middle + y1, middle - y1]}
    return kinds[kind]


KINDS = ["point", "two points", "shared end", "identical", "parallel", "crossing"]


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 5e-4), (torch.float64, 1e-7)])
@pytest.mark.parametrize("size", [1, 2, 3, 16])
def test_equals_brute_force(dtype: torch.dtype, tolerance: float, size: int) -> None:
    ends = [end.to(dtype) for end in four_points(150, size)]
    expected = brute_force_segments(*(end.double() for end in ends))
    assert (segment_distance(*ends).double() - expected).abs().max() <= tolerance


@pytest.mark.parametrize("kind", KINDS)
def test_equals_brute_force_on_degenerate_segments(kind: str) -> None:
    ends = degenerate_segments(kind, 60, 3)
    assert (segment_distance(*ends) - brute_force_segments(*ends)).abs().max() <= 1e-6


def test_segments_gradient_equals_finite_differences() -> None:
    assert torch.autograd.gradcheck(segment_distance, [end.requires_grad_() for end in four_points(12, 4)])


@pytest.mark.parametrize("kind", KINDS)
def test_segments_gradient_is_finite_at_singular_points(kind: str) -> None:
    ends = [end.clone().requires_grad_() for end in degenerate_segments(kind, 20, 4)]
    segment_distance(*ends).sum().backward()
    assert all(end.grad is not None and end.grad.isfinite().all() for end in ends)


def test_no_farther_than_any_two_ends_and_symmetric() -> None:
    x1, x2, y1, y2 = four_points(300, 4)
    distance = segment_distance(x1, x2, y1, y2)
    for x in (x1, x2):
        for y in (y1, y2):
            assert (distance <= (x - y).norm(dim=1) + 1e-9).all()
    assert torch.allclose(distance, segment_distance(y1, y2, x1, x2), atol=1e-8)
    assert torch.allclose(distance, segment_distance(x2, x1, y1, y2), atol=1e-8)
