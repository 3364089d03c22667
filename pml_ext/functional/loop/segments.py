"""Closest points of two straight segments from the squared distances of their ends."""

import copy
from typing import Any

import torch
from torch import Tensor

from pml_ext._checks import check_broadcastable
from pml_ext.functional.loop.arcs import check_ends, distance_of_points


def segment_distance(x1: Tensor, x2: Tensor, y1: Tensor, y2: Tensor) -> Tensor:
    """Smallest Euclidean distance between the straight segments x1→x2 and y1→y2.

    Args:
        x1, x2, y1, y2: (..., D), broadcastable, of any length.
    Returns:
        (...,) >= 0. The gradient is finite everywhere, 0 where the segments meet.
    Source: Vasudeva et al., "LoOp", ICCV 2021, section 4.2 (k1, k2 in [0, 1]).

    >>> x1, x2, y1, y2 = torch.tensor([[0.0, 0], [2, 0], [1, 1], [1, 3]])
    >>> segment_distance(x1, x2, y1, y2).item()
    1.0
    """
    check_ends(x1, x2, y1, y2)
    with torch.no_grad():
        squares = [(a - b).square().sum(-1) for a, b in ((x1, y1), (x1, y2), (x2, y1), (x2, y2), (x1, x2), (y1, y2))]
        _, w1, w2, v1, v2 = (t.unsqueeze(-1) for t in closest_on_segments(*squares))
    return distance_of_points(w1 * x1 + w2 * x2, v1 * y1 + v2 * y2)


@torch.no_grad()
def closest_on_segments(
    d11: Tensor, d12: Tensor, d21: Tensor, d22: Tensor, dx: Tensor, dy: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Smallest ‖p − q‖² over p on the segment x1→x2 and q on y1→y2, with p and q. Not differentiable.

    Args:
        d11, d12, d21, d22: ‖x_i − y_j‖², broadcastable.
        dx, dy: ‖x1 − x2‖² and ‖y1 − y2‖²; 0 for a point.
    Returns:
        the squared distance, then w1, w2, v1, v2 >= 0 with p = w1 x1 + w2 x2, q = v1 y1 + v2 y2 and
        w1 + w2 = v1 + v2 = 1.

    >>> d11, d12, d21, d22, dx, dy = torch.tensor([2.0, 10, 2, 10, 4, 4])  # the segments of segment_distance
    >>> [value.item() for value in closest_on_segments(d11, d12, d21, d22, dx, dy)]
    [1.0, 0.5, 0.5, 1.0, 0.0]
    """
    check_broadcastable("closest_on_segments", d11=d11, d12=d12, d21=d21, d22=d22, dx=dx, dy=dy)
    d11, d12, d21, d22, dx, dy = torch.broadcast_tensors(d11, d12, d21, d22, dx, dy)
    x, y = Segment(dx), Segment(dy)
    square, at_x, at_y = closest_places_on_segments(torch.stack([d11, d21]), torch.stack([d12, d22]), x, y)
    return square, *x.weights(at_x), *y.weights(at_y)


class Segment:
    """Segments from e1 to e2, given their squared lengths. A place u in [−1, 1] is (1+u)/2 e1 + (1−u)/2 e2."""

    def __init__(self, square: Tensor) -> None:
        self.square = square
        self.inverse = _inverse(square)

    def __getitem__(self, some: Any) -> "Segment":
        """Index or reshape the segments like a tensor."""
        part = copy.copy(self)
        part.square, part.inverse = self.square[some], self.inverse[some]
        return part

    def weights(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """The weights of e1 and e2 in the point at u."""
        return (1 + u) / 2, (1 - u) / 2


def closest_places_on_segments(to_y1: Tensor, to_y2: Tensor, x: Segment, y: Segment) -> tuple[Tensor, Tensor, Tensor]:
    """`closest_on_segments` with places instead of weights: the smallest ‖p − q‖², p's place on x, q's place on y.

    to_y1, to_y2: (2, ...), squared distances of x1 and x2 from y1 and y2, broadcast with x and y.
    """
    (d11, d21), (d12, d22) = to_y1, to_y2
    dx, dy = x.square, y.square
    # ‖p − q‖² = d11 + dx k1² + dy k2² − 2 b k1 k2 + 2 c k1 − 2 f k2 with p = x1 + k1 (x2 − x1), q likewise.
    b, c, f = (d12 + d21 - d11 - d22) / 2, (d21 - dx - d11) / 2, (d11 + dy - d12) / 2
    determinant = dx * dy - b * b
    floor = 16 * torch.finfo(d11.dtype).eps * dx * dy
    interior = (dx * f - b * c) * _inverse(torch.where(determinant > floor, determinant, 0))

    k2 = torch.zeros_like(b)
    k1, best = _nearest(k2, d11, dx, dy, b, c, f, x.inverse)
    # Every candidate is clamped to the segment, so all are feasible; the optimum is among them.
    for candidate in (torch.ones_like(b), f * y.inverse, (b + f) * y.inverse, interior):
        other = candidate.clamp(0, 1)
        nearest, value = _nearest(other, d11, dx, dy, b, c, f, x.inverse)
        wins = value < best
        best, k1, k2 = torch.minimum(best, value), torch.where(wins, nearest, k1), torch.where(wins, other, k2)
    return best.clamp_min(0), 1 - 2 * k1, 1 - 2 * k2


def _inverse(x: Tensor) -> Tensor:
    """1/x, 0 where x is 0."""
    return torch.where(x > 0, 1 / torch.where(x > 0, x, 1), 0)


def _nearest(
    k2: Tensor, d11: Tensor, dx: Tensor, dy: Tensor, b: Tensor, c: Tensor, f: Tensor, inverse_dx: Tensor
) -> tuple[Tensor, Tensor]:
    """k1 of the first segment's point nearest to the point q at k2, and their squared distance."""
    slope = b * k2 - c
    k1 = (slope * inverse_dx).clamp(0, 1)
    return k1, d11 + (dx * k1 - 2 * slope) * k1 + (dy * k2 - 2 * f) * k2
