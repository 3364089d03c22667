import pytest
import torch

from pml_ext.functional import segment_distance
from tests.oracles.arcs import brute_force_segments


def four(count: int, size: int) -> list[torch.Tensor]:
    return [3 * torch.randn(count, size, dtype=torch.float64) + 1 for _ in range(4)]


def degenerate(kind: str, count: int, size: int) -> list[torch.Tensor]:
    x1, x2, y1, y2 = four(count, size)
    return {
        "point": [x1, x1, y1, y2],
        "two points": [x1, x1, y1, y1],
        "shared end": [x1, x2, x1, y2],
        "identical": [x1, x2, x1, x2],
        "parallel": [x1, x2, y1, y1 + x2 - x1],
        "crossing": [x1, x2, (x1 + x2) / 2 + y1, (x1 + x2) / 2 - y1],
    }[kind]


KINDS = ["point", "two points", "shared end", "identical", "parallel", "crossing"]


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 5e-4), (torch.float64, 1e-7)])
@pytest.mark.parametrize("size", [1, 2, 3, 16])
def test_equals_brute_force(dtype: torch.dtype, tolerance: float, size: int) -> None:
    ends = [end.to(dtype) for end in four(150, size)]
    expected = brute_force_segments(*(end.double() for end in ends))
    assert (segment_distance(*ends).double() - expected).abs().max() <= tolerance


@pytest.mark.parametrize("kind", KINDS)
def test_equals_brute_force_on_degenerate_segments(kind: str) -> None:
    ends = degenerate(kind, 60, 3)
    assert (segment_distance(*ends) - brute_force_segments(*ends)).abs().max() <= 1e-6


def test_gradient_equals_finite_differences() -> None:
    assert torch.autograd.gradcheck(segment_distance, [end.requires_grad_() for end in four(12, 4)])


@pytest.mark.parametrize("kind", KINDS)
def test_gradient_is_finite_at_singular_points(kind: str) -> None:
    ends = [end.clone().requires_grad_() for end in degenerate(kind, 20, 4)]
    segment_distance(*ends).sum().backward()
    assert all(end.grad is not None and end.grad.isfinite().all() for end in ends)


def test_no_farther_than_any_two_ends_and_symmetric() -> None:
    x1, x2, y1, y2 = four(300, 4)
    distance = segment_distance(x1, x2, y1, y2)
    for x in (x1, x2):
        for y in (y1, y2):
            assert (distance <= (x - y).norm(dim=1) + 1e-9).all()
    assert torch.allclose(distance, segment_distance(y1, y2, x1, x2), atol=1e-8)
    assert torch.allclose(distance, segment_distance(x2, x1, y1, y2), atol=1e-8)
