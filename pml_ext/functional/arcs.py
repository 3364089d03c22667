"""Closest points of two arcs on the unit sphere, from inner products of their ends alone."""

import torch
import torch.nn.functional as F
from torch import Tensor


def arc_distance(x1: Tensor, x2: Tensor, y1: Tensor, y2: Tensor) -> Tensor:
    """Smallest Euclidean distance between the arcs x1→x2 and y1→y2 (shorter great-circle arcs).

    Args:
        x1, x2, y1, y2: (..., D), broadcastable; normalised here, so any non-zero length will do.
    Returns:
        (...,) in [0, 2]. The gradient is finite everywhere. Where the arcs meet the distance has a kink: there it is
        0, or by rounding that of a distance of the order of sqrt(eps).
        Ends that coincide are a point; antipodal ends span no unique arc and count as two points.
    Source: Vasudeva et al., "LoOp", ICCV 2021, section 4.1. Paper: nine KKT cases; here: the same optimum
        as the best of the interior, four edges and four corners.
    """
    x1, x2, y1, y2 = (F.normalize(t, dim=-1) for t in (x1, x2, y1, y2))
    with torch.no_grad():
        grams = [(a * b).sum(-1) for a, b in ((x1, y1), (x1, y2), (x2, y1), (x2, y2), (x1, x2), (y1, y2))]
        _, w1, w2, v1, v2 = (t.unsqueeze(-1) for t in closest_on_arcs(*grams))
    # At the optimum the weights are stationary, so they are constants for the gradient (envelope theorem).
    return distance_of_points(F.normalize(w1 * x1 + w2 * x2, dim=-1), F.normalize(v1 * y1 + v2 * y2, dim=-1))


def distance_of_points(p: Tensor, q: Tensor) -> Tensor:
    """‖p − q‖ over the last dimension, with gradient 0 instead of nan where p = q."""
    return safe_sqrt((p - q).square().sum(-1))


def safe_sqrt(x: Tensor) -> Tensor:
    """Square root of x clamped at 0, with gradient 0 instead of inf where x <= 0."""
    return torch.where(x <= 0, 0, torch.where(x <= 0, 1, x).sqrt())


def closest_on_arcs(
    g11: Tensor, g12: Tensor, g21: Tensor, g22: Tensor, cx: Tensor, cy: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Largest p·q over p on the arc x1→x2 and q on the arc y1→y2, and where it is. Not differentiable.

    Args:
        g11, g12, g21, g22: x_i·y_j, broadcastable.
        cx, cy: x1·x2 and y1·y2; an arc with 1 − c² below 16 machine epsilons counts as its two ends.
    Returns:
        h = p·q in [−1, 1], then w1, w2, v1, v2 >= 0 with p = w1 x1 + w2 x2 and q = v1 y1 + v2 y2. nan where an
        inner product is nan.
    """
    cx, ix = _curvature(cx)
    cy, iy = _curvature(cy)
    # Best q first: an end of its arc, the point nearest to an end of the other arc, or the interior optimum.
    best, at_y2 = _to_arc(g11, g21, cx, ix), _to_arc(g12, g22, cx, ix)
    v2 = _exceeds(at_y2, best)
    v1 = 1 - v2
    best = torch.maximum(best, at_y2)
    found = _better((best, v1, v2), _peak(g11, g12, cy, iy))
    found = _better(found, _peak(g21, g22, cy, iy))
    _, v1, v2 = _better(found, _interior(g11, g12, g21, g22, cx, ix, cy, iy))
    # Then p is the point of its arc nearest to q.
    g1, g2 = v1 * g11 + v2 * g12, v1 * g21 + v2 * g22
    height, u1, u2, inside = _peak(g1, g2, cx, ix)
    at_x2 = _exceeds(g2, g1)
    h = torch.lerp(torch.maximum(g1, g2), height, inside).clamp_(-1, 1)
    return h, torch.lerp(1 - at_x2, u1, inside), torch.lerp(at_x2, u2, inside), v1, v2


def _exceeds(a: Tensor, b: Tensor | float) -> Tensor:
    """1 where a > b and 0 elsewhere, written as floats: a boolean in between costs several times as much."""
    return torch.gt(a, b, out=torch.empty_like(a))


def _better(
    found: tuple[Tensor, Tensor, Tensor], candidate: tuple[Tensor, Tensor, Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """The candidate (height, weights, inside) where it is inside and higher than what was found."""
    height, u1, u2, inside = candidate
    wins = _exceeds(height, found[0]).mul_(inside)
    return torch.lerp(found[0], height, wins), torch.lerp(found[1], u1, wins), torch.lerp(found[2], u2, wins)


def _curvature(c: Tensor) -> tuple[Tensor, Tensor]:
    """c and 1/(1 − c²), or 1 and 0 where the ends coincide or are antipodal: then no peak lies inside."""
    s2 = (1 - c) * (1 + c)
    is_point = s2 <= 16 * torch.finfo(c.dtype).eps
    return torch.where(is_point, 1, c), torch.where(is_point, 0, 1 / torch.where(is_point, 1, s2))


def _peak(g1: Tensor, g2: Tensor, c: Tensor, i: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Peak over the whole great circle for a point with inner products g1, g2 to the ends; inside the arc or not."""
    n1, n2 = g1 - c * g2, g2 - c * g1
    height = ((g1 * n1 + g2 * n2) * i).clamp_min(1e-30).sqrt()
    scale = i / height
    return height, n1 * scale, n2 * scale, _exceeds(torch.minimum(n1, n2), 0)


def _to_arc(g1: Tensor, g2: Tensor, c: Tensor, i: Tensor) -> Tensor:
    """Largest inner product of a point with an arc: the peak if inside, else the better end."""
    n1, n2 = g1 - c * g2, g2 - c * g1
    height = ((g1 * n1 + g2 * n2) * i).clamp_min(1e-30).sqrt()
    return torch.lerp(torch.maximum(g1, g2), height, _exceeds(torch.minimum(n1, n2), 0))


def _interior(
    g11: Tensor, g12: Tensor, g21: Tensor, g22: Tensor, cx: Tensor, ix: Tensor, cy: Tensor, iy: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Top singular pair of M, the inner products of two orthonormal bases; inside both arcs or not."""
    rx, ry = ix.sqrt(), iy.sqrt()
    m12, m21 = (g12 - cy * g11) * ry, (g21 - cx * g11) * rx
    m22 = (g22 - cx * g12 - cy * (g21 - cx * g11)) * (rx * ry)
    # Left singular vector (cos α, sin α) by half-angle formulas from cos 2α and sin 2α, taken with sin α >= 0.
    cos2, sin2 = g11 * g11 + m12 * m12 - m21 * m21 - m22 * m22, 2 * (g11 * m21 + m12 * m22)
    large, small = torch.hypot(cos2, sin2) + cos2.abs(), sin2.abs()
    norm = torch.hypot(large, small).clamp_min(1e-30)
    is_small_angle = torch.ge(cos2, 0, out=torch.empty_like(cos2))
    cos = torch.copysign(torch.lerp(small, large, is_small_angle) / norm, sin2)
    sin = torch.lerp(large, small, is_small_angle) / norm
    t1, t2 = cos * g11 + sin * m21, cos * m12 + sin * m22
    height = torch.hypot(t1, t2).clamp_min(1e-30)
    u1, u2 = (t1 - cy * ry * t2) / height, ry * t2 / height
    return height, u1, u2, _exceeds(torch.minimum(torch.minimum(u1, u2), cos - cx * rx * sin), 0)
