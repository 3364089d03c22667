"""The closed form of LoOp: the closest points of two arcs on the unit sphere from the inner products of their ends.

`closest_places_on_arcs` is the closed form; `arc_distance` and `closest_on_arcs` are the public functions.
"""

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pml_ext._ops.custom_gradient import to_sphere
from pml_ext._shared.checks import check_broadcastable


def arc_distance(x1: Tensor, x2: Tensor, y1: Tensor, y2: Tensor) -> Tensor:
    r"""Returns the smallest Euclidean distance between the arcs x1→x2 and y1→y2 (shorter great-circle arcs).

    $$\min_{p ∈ A_x, q ∈ A_y} ‖p - q‖$$

    Args:
        x1, x2, y1, y2: (..., D), broadcastable, of any non-zero length (they are normalised here).
    Returns:
        (...,) in [0, 2]. The gradient is finite everywhere. Where the arcs intersect, the distance has a kink: the
        gradient there is 0, or, if rounding leaves a distance of about sqrt(eps), the gradient of this distance.
        An arc whose ends coincide is a point. Antipodal ends span no unique arc and count as two points.
    Source: Vasudeva et al., "LoOp", ICCV 2021, section 4.1. Paper: nine KKT cases; here: the same optimum as the best
        of the interior, four edges and four corners. Paper: opposite signs (± and ∓) for the two places in the
        interior case; here: equal signs, as only these solve both its equations.

    >>> e1, e2, e3 = torch.eye(3)
    >>> round(arc_distance(e1, e2, e3, e1 + e2 + e3).item(), 3)  # between e1 + e2 and e1 + e2 + e3
    0.606
    """
    check_ends(x1, x2, y1, y2)
    x1, x2, y1, y2 = (to_sphere(t) for t in (x1, x2, y1, y2))
    with torch.no_grad():
        cosines = [(a * b).sum(-1) for a, b in _pairs_of_ends(x1, x2, y1, y2)]
        _, w1, w2, v1, v2 = (t.unsqueeze(-1) for t in closest_on_arcs(*cosines))
    # The weights are stationary at the optimum, so the gradient treats them as constants (envelope theorem).
    return distance_of_points(to_sphere(w1 * x1 + w2 * x2), to_sphere(v1 * y1 + v2 * y2))


def _pairs_of_ends(x1: Tensor, x2: Tensor, y1: Tensor, y2: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Returns the entries of each end of x with each end of y, of the two ends of x, and of the two ends of y."""
    return [(x1, y1), (x1, y2), (x2, y1), (x2, y2), (x1, x2), (y1, y2)]


def check_ends(x1: Tensor, x2: Tensor, y1: Tensor, y2: Tensor) -> None:
    """Raise unless the four tensors are (..., D) with D >= 1 and broadcast."""
    check_broadcastable("the ends of arcs or segments", x1=x1, x2=x2, y1=y1, y2=y2)
    for name, value in (("x1", x1), ("x2", x2), ("y1", y1), ("y2", y2)):
        if not value.ndim or not value.shape[-1]:
            raise ValueError(f"{name} must have shape (..., D), D >= 1; got {tuple(value.shape)}")


def distance_of_points(p: Tensor, q: Tensor) -> Tensor:
    """Returns ‖p − q‖ over the last dimension, with gradient 0 instead of nan where p = q."""
    return safe_sqrt((p - q).square().sum(-1))


def two_plus(x: Tensor, factor: float) -> Tensor:
    """Returns 2 + factor · x by one operator, which on a device is one launch."""
    return torch.add(torch.tensor(2.0, device="cpu"), x, alpha=factor)


def safe_sqrt(x: Tensor) -> Tensor:
    """Returns sqrt(x) with gradient 0 instead of inf or nan where x <= 0; the value there is negligible, 1e-19."""
    tiny = torch.finfo(x.dtype).tiny
    return torch.nn.functional.threshold(x, tiny, tiny).sqrt()


@torch.no_grad()
def closest_on_arcs(
    g11: Tensor, g12: Tensor, g21: Tensor, g22: Tensor, cx: Tensor, cy: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Returns the largest p·q over p on the arc x1→x2 and q on the arc y1→y2, with p and q. Not differentiable.

    Args:
        g11, g12, g21, g22: x_i·y_j, broadcastable.
        cx, cy: x1·x2 and y1·y2; an arc with 1 − c² of 16 machine epsilons or less counts as its two ends.
    Returns:
        h = p·q in [−1, 1], then w1, w2, v1, v2 >= 0 with p = w1 x1 + w2 x2 and q = v1 y1 + v2 y2; nan where an inner
        product is nan.

    >>> g, right = torch.tensor(0.4), torch.tensor(0.0)
    >>> # Two quarter circles: their middles are closest.
    >>> h, *weights = closest_on_arcs(g, g, g, g, right, right)
    >>> [round(float(value), 3) for value in (h, *weights)]
    [0.8, 0.707, 0.707, 0.707, 0.707]
    """
    check_broadcastable("closest_on_arcs", g11=g11, g12=g12, g21=g21, g22=g22, cx=cx, cy=cy)
    return _with_weights(Arc, closest_places_on_arcs, g11, g12, g21, g22, cx, cy)


def _with_weights(
    curve: Any, closest_places: Callable[..., tuple[Tensor, Tensor, Tensor]], *entries: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Returns the value of the closest places on two curves and their weights, from the entries of `_pairs_of_ends`."""
    e11, e12, e21, e22, of_x, of_y = torch.broadcast_tensors(*entries)
    x, y = curve(of_x), curve(of_y)
    value, at_x, at_y = closest_places(torch.stack([e11, e21]), torch.stack([e12, e22]), x, y)
    return value, *x.weights(at_x), *y.weights(at_y)


class _Curves:
    """Curves whose attributes are tensors with one entry per curve."""

    def __getitem__(self, some: Any) -> Any:
        """Index or reshape the curves like a tensor."""
        part = copy.copy(self)
        for name, table in vars(self).items():
            setattr(part, name, table[some])
        return part


class Arc(_Curves):
    """Arcs from e1 to e2, from the cosines of their ends. A place u in [−1, 1] is the direction (1+u) e1 + (1−u) e2.

    This parameter makes both ends exact (u = ±1) and needs no trigonometry.
    """

    def __init__(self, cosine: Tensor) -> None:
        # If the ends coincide or are antipodal, the arc is just its two ends: `ratio` moves every nearest place to one
        # of them, and length² is set to 4.
        is_point = cosine.abs() >= math.sqrt(1 - 16 * torch.finfo(cosine.dtype).eps)
        cosine = cosine.masked_fill(is_point, 1)
        self.plus, self.minus = two_plus(cosine, 2), two_plus(cosine, -2)
        self.ratio = (self.plus / self.minus).clamp_max_(_STEEP)  # cot² of half the angle

    def square_length(self, u: Tensor) -> Tensor:
        """Returns ‖(1+u) e1 + (1−u) e2‖²."""
        squares = u.square()
        return torch.addcmul(self.plus, self.minus, squares, out=squares)

    def weights(self, u: Tensor, dim: int = 0) -> Tensor:
        """Returns the weights of e1 and e2 in the unit vector at u, in a new dimension of size 2."""
        inverse = self.square_length(u).rsqrt_()
        return torch.stack([torch.addcmul(inverse, inverse, u), torch.addcmul(inverse, inverse, u, value=-1)], dim)

    def nearest(self, total: Tensor, difference: Tensor) -> Tensor:
        """Returns the place nearest to a vector z; total, difference: z·e1 ± z·e2."""
        # The peak over the great circle, or the better end if the peak is off the arc (or behind it: total <= 0).
        u = (difference + _NOT_ZERO).mul_(self.ratio)
        return u.div_(total.clamp_min(_BEHIND)).clamp_(-1, 1)


_NOT_ZERO = 1e-30  # added to differences to choose one of two equally good ends
_BEHIND = 1e-37  # _NOT_ZERO / _BEHIND is far above 1, which clamps the place to an end
_STEEP = 1e16  # above every ratio of an arc, and its square times that of another arc is finite in float32


def closest_places_on_arcs(to_y1: Tensor, to_y2: Tensor, x: Arc, y: Arc) -> tuple[Tensor, Tensor, Tensor]:
    """Solve `closest_on_arcs` with places, not weights: returns the largest p·q, the place of p on x and of q on y.

    to_y1, to_y2: (2, ...), inner products of x1 and x2 with y1 and y2, broadcast with x and y.
    """
    total, difference = to_y1 + to_y2, to_y1 - to_y2
    of_x1, of_x2 = torch.stack([total, difference]).split(1, 1)
    # (y1 ± y2)·(x1 ± x2); the first dimension is that of ± x2.
    constant, slope = torch.stack([of_x1 + of_x2, of_x1 - of_x2], 1)
    # Candidates for q: the places nearest to the ends of x, the peak over both great circles, and the ends of y.
    peak = _peak(constant, slope, x, y)
    end = torch.ones_like(peak)
    at_y = torch.cat([y.nearest(total, difference), peak, end, -end])
    del to_y1, to_y2, of_x1, of_x2, peak, end  # half of the memory at the peak
    # For each q the nearest p; (1+u) y1 + (1−u) y2 = (y1 + y2) + u (y1 − y2).
    total, difference = torch.addcmul(constant, slope, at_y)
    del constant, slope
    at_x = x.nearest(total, difference)
    values = total.addcmul_(difference, at_x)
    del difference
    values = values.div_(x.square_length(at_x).mul_(y.square_length(at_y)).sqrt_())
    value, best = values.max(0, keepdim=True)
    return value[0].clamp_(-1, 1), at_x.gather(0, best)[0], at_y.gather(0, best)[0]


def _peak(constant: Tensor, slope: Tensor, x: Arc, y: Arc) -> Tensor:
    """Returns the place on y of the largest p·q over both great circles, clamped to the arc.

    In orthonormal bases (midpoint of an arc, its tangent) p·q is a 2×2 matrix with the entries constant and slope up to
    scale; the place is the half angle of its first right singular vector.
    """
    root = y.ratio.sqrt()
    twice = slope * (2 * root)
    of_midpoint, of_tangent = constant * twice
    across = of_midpoint.addcmul_(of_tangent, x.ratio)
    of_midpoint, of_tangent = constant.square().addcmul_(twice, twice, value=-0.25)
    along = of_midpoint.addcmul_(of_tangent, x.ratio)
    half = across.hypot(along).add_(along).clamp_min_(_BEHIND)
    place: Tensor = across.mul_(root).div_(half).clamp_(-1, 1)
    return place


def segment_distance(x1: Tensor, x2: Tensor, y1: Tensor, y2: Tensor) -> Tensor:
    """Returns the smallest Euclidean distance between the straight segments x1→x2 and y1→y2.

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
        squares = [(a - b).square().sum(-1) for a, b in _pairs_of_ends(x1, x2, y1, y2)]
        _, w1, w2, v1, v2 = (t.unsqueeze(-1) for t in closest_on_segments(*squares))
    return distance_of_points(w1 * x1 + w2 * x2, v1 * y1 + v2 * y2)


@torch.no_grad()
def closest_on_segments(
    d11: Tensor, d12: Tensor, d21: Tensor, d22: Tensor, dx: Tensor, dy: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Returns the smallest ‖p − q‖² over p on the segment x1→x2 and q on y1→y2, with p and q. Not differentiable.

    Args:
        d11, d12, d21, d22: ‖x_i − y_j‖², broadcastable.
        dx, dy: ‖x1 − x2‖² and ‖y1 − y2‖²; 0 for a point.
    Returns:
        the squared distance, then w1, w2, v1, v2 >= 0 with p = w1 x1 + w2 x2, q = v1 y1 + v2 y2 and
        w1 + w2 = v1 + v2 = 1.

    >>> # The segments of segment_distance
    >>> d11, d12, d21, d22, dx, dy = torch.tensor([2.0, 10, 2, 10, 4, 4])
    >>> [value.item() for value in closest_on_segments(d11, d12, d21, d22, dx, dy)]
    [1.0, 0.5, 0.5, 1.0, 0.0]
    """
    check_broadcastable("closest_on_segments", d11=d11, d12=d12, d21=d21, d22=d22, dx=dx, dy=dy)
    return _with_weights(Segment, closest_places_on_segments, d11, d12, d21, d22, dx, dy)


class Segment(_Curves):
    """Segments from e1 to e2, from their squared lengths. A place u in [−1, 1] is (1+u)/2 e1 + (1−u)/2 e2."""

    def __init__(self, square: Tensor) -> None:
        self.square = square
        self.inverse = _inverse(square)

    def weights(self, u: Tensor, dim: int = 0) -> Tensor:
        """Returns the weights of e1 and e2 in the point at u, in a new dimension of size 2."""
        return torch.stack([1 + u, 1 - u], dim).div_(2)


def closest_places_on_segments(to_y1: Tensor, to_y2: Tensor, x: Segment, y: Segment) -> tuple[Tensor, Tensor, Tensor]:
    """Solve `closest_on_segments` with places, not weights: returns the smallest ‖p − q‖², p's place on x and q's on y.

    to_y1, to_y2: (2, ...), squared distances of x1 and x2 from y1 and y2, broadcast with x and y.
    """
    (d11, d21), (d12, d22) = to_y1, to_y2
    dx, dy = x.square, y.square
    # ‖p − q‖² = d11 + dx k1² + dy k2² − 2 b k1 k2 + 2 c k1 − 2 f k2 with p = x1 + k1 (x2 − x1), q likewise.
    b = (d12 + d21 - d11 - d22) / 2
    c = (d21 - dx - d11) / 2
    f = (d11 + dy - d12) / 2
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
        best = torch.minimum(best, value)
        k1 = torch.where(wins, nearest, k1)
        k2 = torch.where(wins, other, k2)
    return best.clamp_min(0), 1 - 2 * k1, 1 - 2 * k2


def _inverse(x: Tensor) -> Tensor:
    """Returns 1/x, 0 where x is 0."""
    return torch.where(x > 0, 1 / torch.where(x > 0, x, 1), 0)


def _nearest(
    k2: Tensor, d11: Tensor, dx: Tensor, dy: Tensor, b: Tensor, c: Tensor, f: Tensor, inverse_dx: Tensor
) -> tuple[Tensor, Tensor]:
    """Returns k1 of the first segment's point nearest to the point q at k2, and their squared distance."""
    slope = b * k2 - c
    k1 = (slope * inverse_dx).clamp(0, 1)
    return k1, d11 + (dx * k1 - 2 * slope) * k1 + (dy * k2 - 2 * f) * k2
