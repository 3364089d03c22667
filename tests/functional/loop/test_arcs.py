"""Closest points of two arcs and of two segments against brute force."""

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import gradcheck
from torch.testing import assert_close

from pml_ext.functional import arc_distance, closest_on_arcs, closest_on_segments, segment_distance
from tests.oracles.arcs import brute_force_arcs, brute_force_segments

KINDS = ["point", "two points", "shared end", "identical", "reversed", "crossing"]


def four(count, size, spread=None):
    x, *others = (F.normalize(torch.randn(count, size, dtype=torch.float64), dim=1) for _ in range(4))
    return [x, *others] if spread is None else [x, *(F.normalize(x + spread * other, dim=1) for other in others)]


def four_points(count, size):
    return [3 * torch.randn(count, size, dtype=torch.float64) + 1 for _ in range(4)]


def degenerate(kind, x1, x2, y1, y2):
    middle = (x1 + x2) / 2
    return {
        "point": [x1, x1, y1, y2],
        "two points": [x1, x1, y1, y1],
        "shared end": [x1, x2, x1, y2],
        "identical": [x1, x2, x1, x2],
        "reversed": [x1, x2, x2, x1],
        "crossing": [x1, x2, middle + 0.1 * y1, middle - 0.1 * y1],
        "parallel": [x1, x2, y1, y1 + x2 - x1],
        "antipodal": [x1, -x1, y1, y2],
    }[kind]


@pytest.mark.parametrize("size", [2, 3, 16, 64])
@pytest.mark.parametrize("kind", ["far apart", "close", *KINDS])
def test_arcs_equal_brute_force(size, kind, device):
    if kind in KINDS:
        ends = [F.normalize(end, dim=1) for end in degenerate(kind, *four(60, size))]
    else:
        ends = four(1000, size, 0.3 if kind == "close" else None)
    expected = brute_force_arcs(*ends)
    found = arc_distance(*(end.to(device) for end in ends)).cpu()
    excess = found - expected
    # Coinciding ends differ by rounding, which brute force divides by.
    assert excess.abs().max() <= 1e-6 and excess.max() <= (1e-7 if kind in KINDS else 1e-9)
    if kind in KINDS and "point" not in kind:
        assert found.max() <= 1e-7
    if kind not in KINDS:
        single = arc_distance(*(3 * end.float() for end in ends))
        assert (single.square() - expected.square()).abs().max() <= 1e-4


@pytest.mark.parametrize("kind", [None, "point", "shared end", "crossing"])
def test_weights_give_the_closest_points(kind):
    for closest, points in ((closest_on_arcs, four(200, 3)), (closest_on_segments, four_points(200, 3))):
        x1, x2, y1, y2 = points if kind is None else degenerate(kind, *points)
        if closest is closest_on_arcs:
            x1, x2, y1, y2 = (F.normalize(end, dim=1) for end in (x1, x2, y1, y2))
        ends = [(x1, y1), (x1, y2), (x2, y1), (x2, y2), (x1, x2), (y1, y2)]
        products = [(a * b).sum(1) for a, b in ends]
        squares = [(a - b).square().sum(1) for a, b in ends]
        value, *weights = closest(*(products if closest is closest_on_arcs else squares))
        assert torch.stack(weights).min() >= 0
        w1, w2, v1, v2 = (weight[:, None] for weight in weights)
        p, q = w1 * x1 + w2 * x2, v1 * y1 + v2 * y2
        if closest is closest_on_arcs:
            expected = 1 - brute_force_arcs(x1, x2, y1, y2).square() / 2
            assert_close((p * q).sum(1), expected, rtol=0, atol=1e-9)
            assert_close(p.norm(dim=1) * q.norm(dim=1), torch.ones(200).double())
        else:
            expected = brute_force_segments(x1, x2, y1, y2).square()
            assert_close((p - q).square().sum(1), expected, rtol=0, atol=1e-7)
            assert_close(torch.stack([w1 + w2, v1 + v2]), torch.ones(2, 200, 1).double())
        assert_close(value, expected, rtol=0, atol=1e-7)


def test_antipodal_ends_count_as_two_points():
    x, _, y1, y2 = four(60, 7)
    by_point = torch.minimum(arc_distance(x, x, y1, y2), arc_distance(-x, -x, y1, y2))
    assert_close(arc_distance(x, -x, y1, y2), by_point)


@pytest.mark.parametrize("size", [1, 2, 3, 16])
@pytest.mark.parametrize("kind", [None, *KINDS, "parallel"])
def test_segments_equal_brute_force(size, kind, device):
    ends = four_points(60, size)
    ends = ends if kind is None else degenerate(kind, *ends)
    expected = brute_force_segments(*ends)
    found = segment_distance(*(end.to(device) for end in ends)).cpu()
    assert (found.square() - expected.square()).abs().max() <= 1e-7
    if kind is None:
        single = segment_distance(*(end.float() for end in ends))
        assert (single.square() - expected.square()).abs().max() <= 1e-4


def test_gradients_equal_finite_differences():
    for ends in (four(12, 6), four(12, 6, 0.5)):
        assert gradcheck(arc_distance, [end.requires_grad_() for end in ends])
    assert gradcheck(segment_distance, [end.requires_grad_() for end in four_points(12, 4)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", [*KINDS, "parallel", "antipodal"])
def test_gradients_are_finite_at_singular_points(kind, dtype):
    for distance in (arc_distance, segment_distance):
        ends = [end.to(dtype, copy=True).requires_grad_() for end in degenerate(kind, *four(20, 4))]
        assert all(g.isfinite().all() for g in torch.autograd.grad(distance(*ends).sum(), ends))


def test_nan_stays_in_its_row_and_shapes_broadcast():
    x1, x2, y1, y2 = ends = four(6, 3)
    grid = arc_distance(x1[:, None], x2[:, None], y1[None], y2[None])
    assert torch.allclose(grid.diagonal(), arc_distance(*ends)) and grid.shape == (6, 6)
    for end in ends:
        end[1] = float("nan")
        assert arc_distance(*ends).isnan().tolist() == [False, True] + 4 * [False]
        end[1] = 1
    with pytest.raises(ValueError, match=r"x1 must have shape \(..., D\), D >= 1"):
        arc_distance(*(end[:, :0] for end in ends))
