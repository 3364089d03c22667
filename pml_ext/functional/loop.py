"""LoOp over a batch: the closest points of the arcs (or segments) of every two samples, from their pair matrix."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pml_ext.functional.arcs import Arc, closest_places_on_arcs
from pml_ext.functional.class_pairings import Round, class_pairings
from pml_ext.functional.segments import Segment, closest_places_on_segments

_BLOCK = 2**16  # pairs of arcs solved at a time: the temporaries stay in a processor's cache


class Geometry(NamedTuple):
    """What joins two samples, what finds the closest places of two, and how their pair entries behave."""

    curve: Any
    closest_places: Any
    sign: int  # 1 where a larger entry is closer
    of_itself: float  # the entry of a sample with itself


_GEOMETRIES = {
    "arc": Geometry(Arc, closest_places_on_arcs, 1, 1.0),
    "segment": Geometry(Segment, closest_places_on_segments, -1, 0.0),
}


def loop_pairs(
    pairs: Tensor,
    labels: Tensor,
    ref_labels: Tensor | None = None,
    *,
    points: Tensor | None = None,
    ref_points: Tensor | None = None,
    pairing: str = "consecutive",
    geometry: str = "arc",
) -> Tensor:
    """For each pair of samples the closest points of an arc through the one and an arc through the other.

    Args:
        pairs: (B, R), cosines for geometry "arc", squared distances for "segment".
        labels, ref_labels: (B,) and (R,) class ids; without ref_labels the columns are the rows' samples, and
            `pairs` is symmetric.
        points, ref_points: (B, D) and (R, D), needed beside ref_labels: there `pairs` does not hold the
            pairs inside a class. Unit vectors for "arc".
        pairing: "consecutive": the 1st and 2nd sample of a class, the 3rd and 4th …, in batch order, are an arc.
            "all": every pair of a class is one, and the closest of all arcs through the two samples counts.
            A sample left over is its own arc.
        geometry: "arc" or "segment".
    Returns:
        (B, R): the largest cosine or the smallest squared distance. Entries of one class mean nothing.
        Memory is O(BR) and, for "all", O(B) times the class size. No double backward.
    Source: Vasudeva et al., "LoOp", ICCV 2021. Paper: consecutive pairs, even counts; here: any count, and "all".
    """
    partners = class_pairings(labels, pairing)
    if ref_labels is None:
        ref_partners, within, ref_within = partners, None, None
    else:
        ref_partners = class_pairings(ref_labels, pairing)
        assert points is not None and ref_points is not None
        within, ref_within = _within(points, partners, geometry), _within(ref_points, ref_partners, geometry)
    if len(partners) == len(ref_partners) == 1:
        rows = Round(partners[0])
        columns = rows if ref_within is None else Round(ref_partners[0])
        inside = (None, None) if within is None or ref_within is None else (within[0], ref_within[0])
        return _OneRound.apply(pairs, *inside, rows, columns, _GEOMETRIES[geometry])
    return _Rounds.apply(pairs, within, ref_within, partners, ref_partners, _GEOMETRIES[geometry])


def _within(points: Tensor, partners: Tensor, geometry: str) -> Tensor:
    """(rounds, B): the entry of each sample with its partner, exact where it is its own partner."""
    if geometry == "arc":
        entries = torch.stack([(points * points[partner]).sum(1) for partner in partners])
    else:
        entries = torch.stack([(points - points[partner]).square().sum(1) for partner in partners])
    itself = torch.arange(partners.shape[1], device=partners.device)
    return torch.where(partners == itself, _GEOMETRIES[geometry].of_itself, entries)


# By the envelope theorem the weights of the closest points p = w1 x1 + w2 x2 and q = v1 y1 + v2 y2 are constants in the
# gradient: the derivative by entry (x_i, y_j) is w_i v_j, and by the entries inside the arcs −h w1 w2 and −h v1 v2 (p
# stays on the sphere), or −w1 w2 and −v1 v2 for segments.
class _OneRound(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        pairs: Tensor,
        within: Tensor | None,
        ref_within: Tensor | None,
        rows: Round,
        columns: Round,
        geometry: Geometry,
    ) -> Tensor:
        solved = _solve(pairs, within, ref_within, rows, columns, geometry)
        ctx.save_for_backward(pairs, within, ref_within, *solved)
        ctx.rows, ctx.columns, ctx.geometry = rows, columns, geometry
        return _of_samples(solved[0], rows, columns)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        pairs, within, ref_within, value, at_x, at_y = ctx.saved_tensors
        rows, columns, geometry = ctx.rows, ctx.columns, ctx.geometry
        x_inside = _entries_inside(pairs, within, rows, geometry)
        y_inside = x_inside if rows is columns else _entries_inside(pairs, ref_within, columns, geometry)
        x, y = geometry.curve(x_inside.unsqueeze(1)), geometry.curve(y_inside)
        height, width = value.shape
        by_ends = pairs.new_empty(2, height, 2, width)
        x_pair, y_pair = rows.is_pair.to(grad.dtype).unsqueeze(1), columns.is_pair.to(grad.dtype)
        x_point, y_point = 1 - x_pair, 1 - y_pair
        by_x, by_y = torch.empty_like(x_inside), torch.zeros_like(y_inside)
        for block in _row_blocks(height, width):
            # Each arc collects from the samples on it (a point from its one sample).
            at = grad.index_select(0, rows.first[block])
            at += grad.index_select(0, rows.second[block]).mul_(x_pair[block])
            at = at.index_select(1, columns.first).addcmul_(at.index_select(1, columns.second), y_pair)
            w1, w2 = x[block].weights(at_x[block])
            v1, v2 = y.weights(at_y[block])
            at_value = at * value[block] if geometry.sign > 0 else at
            by_x[block] = -(w1 * w2).mul_(at_value).sum(1)
            by_y -= (v1 * v2).mul_(at_value).sum(0)
            # Both ends of a point are one sample: it gets the sum of their weights as a first end.
            w1.addcmul_(w2, x_point[block])
            v1.addcmul_(v2, y_point)
            for i, w in enumerate((w1, w2)):
                w.mul_(at)
                for j, v in enumerate((v1, v2)):
                    torch.mul(w, v, out=by_ends[i, block, j])
        by_pairs = by_ends.view(2 * height, 2 * width).index_select(1, columns.end_of).index_select(0, rows.end_of)
        by_x, by_y = by_x * rows.is_pair, by_y * columns.is_pair
        if within is not None:
            return by_pairs, _to_samples(by_x, rows), _to_samples(by_y, columns), None, None, None
        by_pairs.index_put_((rows.first, rows.second), by_x + by_y, accumulate=True)
        return by_pairs, None, None, None, None, None


class _Rounds(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        pairs: Tensor,
        within: Tensor | None,
        ref_within: Tensor | None,
        partners: Tensor,
        ref_partners: Tensor,
        geometry: Geometry,
    ) -> Tensor:
        rounds = [Round(partner) for partner in partners]
        ref_rounds = rounds if ref_within is None else [Round(partner) for partner in ref_partners]
        # Of each pair of samples: the entry with its sign, the places of p and q (1 at the samples themselves), the
        # two rounds that they are from.
        best = torch.full_like(pairs, -torch.inf, memory_format=torch.contiguous_format)
        at_x, at_y, meeting = (torch.zeros_like(best) for _ in range(3))
        for i, rows in enumerate(rounds):
            for j, columns in enumerate(ref_rounds):
                if ref_within is None and j < i:
                    continue
                of_rows = None if within is None else within[i]
                of_columns = None if ref_within is None else ref_within[j]
                value, x, y = _solve(pairs, of_rows, of_columns, rows, columns, geometry)
                _keep_closer(value, x, y, rows, columns, i * len(ref_rounds) + j, geometry, best, at_x, at_y, meeting)
                if ref_within is None and j > i:  # the same arcs the other way round
                    value, x, y = value.t().contiguous(), y.t().contiguous(), x.t().contiguous()
                    number = j * len(ref_rounds) + i
                    _keep_closer(value, x, y, columns, rows, number, geometry, best, at_x, at_y, meeting)
        value = best.mul_(geometry.sign)
        ctx.save_for_backward(pairs, within, ref_within, partners, ref_partners, value, at_x, at_y, meeting)
        ctx.geometry = geometry
        return value.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        pairs, within, ref_within, partners, ref_partners, value, at_x, at_y, meeting = ctx.saved_tensors
        height, width = pairs.shape
        x_inside = _entries_of_rounds(pairs, partners, ctx.geometry) if within is None else within
        y_inside = x_inside if ref_within is None else ref_within
        by_pairs = torch.zeros_like(pairs, memory_format=torch.contiguous_format)
        flat = by_pairs.view(-1)
        by_x, by_y = torch.zeros_like(x_inside).t().contiguous(), torch.zeros_like(y_inside)
        for block in _row_blocks(height, width):
            number = meeting[block].long()
            i, j = number // len(ref_partners), number % len(ref_partners)
            x2, y2 = partners.t()[block].gather(1, i), ref_partners.gather(0, j)
            w1, w2 = ctx.geometry.curve(x_inside.t()[block].gather(1, i)).weights(at_x[block])
            v1, v2 = ctx.geometry.curve(y_inside.gather(0, j)).weights(at_y[block])
            at = grad[block]
            at_value = at * value[block] if ctx.geometry.sign > 0 else at
            by_x[block].scatter_add_(1, i, -at_value * w1 * w2)
            by_y.scatter_add_(0, j, -at_value * v1 * v2)
            w1, w2 = at * w1, at * w2
            by_pairs[block].add_(w1 * v1).scatter_add_(1, y2, w1 * v2)
            start = x2 * width
            flat.scatter_add_(0, (start + torch.arange(width, device=x2.device)).view(-1), (w2 * v1).view(-1))
            flat.scatter_add_(0, (start + y2).view(-1), (w2 * v2).view(-1))
        by_x = by_x.t() * _is_pair(partners)
        by_y *= _is_pair(ref_partners)
        if within is not None:
            return by_pairs, by_x, by_y, None, None, None
        starts = torch.arange(height, device=pairs.device) * width
        flat.scatter_add_(0, (starts + partners).reshape(-1), (by_x + by_y).reshape(-1))
        return by_pairs, None, None, None, None, None


def _solve(
    pairs: Tensor, within: Tensor | None, ref_within: Tensor | None, rows: Round, columns: Round, geometry: Geometry
) -> tuple[Tensor, ...]:
    """(row arcs, column arcs): entries of the closest points and their two places.

    Of a symmetric grid only what is not the mirror image of a block before is solved.
    """
    height, width = len(rows.first), len(columns.first)
    found = value, at_x, at_y = tuple(pairs.new_empty(height, width) for _ in range(3))
    x = geometry.curve(_entries_inside(pairs, within, rows, geometry).unsqueeze(1))
    y = geometry.curve(_entries_inside(pairs, ref_within, columns, geometry))
    is_symmetric = rows is columns
    for block in _row_blocks(height, width):
        beyond = slice(block.start if is_symmetric else 0, width)
        first, second = columns.first[beyond], columns.second[beyond]
        of_ends = pairs.index_select(0, torch.cat([rows.first[block], rows.second[block]]))  # first, then second ends
        to_ends = (of_ends.index_select(1, ends).view(2, -1, len(ends)) for ends in (first, second))
        for whole, part in zip(found, geometry.closest_places(*to_ends, x[block], y[beyond]), strict=True):
            whole[block, beyond] = part
        if is_symmetric and block.stop < height:
            below = slice(block.stop, height)
            for whole, mirrored in ((value, value), (at_x, at_y), (at_y, at_x)):
                whole[below, block] = mirrored[block, below].t()
    return found


def _keep_closer(
    value: Tensor,
    x: Tensor,
    y: Tensor,
    rows: Round,
    columns: Round,
    number: int,
    geometry: Geometry,
    best: Tensor,
    at_x: Tensor,
    at_y: Tensor,
    meeting: Tensor,
) -> None:
    """Take over, in place, what is closer on the arcs of this meeting of two rounds."""
    value = _of_samples(geometry.sign * value, rows, columns)
    is_closer = torch.gt(value, best, out=torch.empty_like(best))
    torch.maximum(best, value, out=best)
    turn_x, turn_y = (1 - 2 * samples.is_second.to(value.dtype) for samples in (rows, columns))
    at_x.lerp_(_of_samples(x, rows, columns).mul_(turn_x.unsqueeze(1)), is_closer)
    at_y.lerp_(_of_samples(y, rows, columns).mul_(turn_y), is_closer)
    meeting.lerp_(torch.full_like(value, number), is_closer)


def _of_samples(of_arcs: Tensor, rows: Round, columns: Round) -> Tensor:
    """(B, R): each pair of samples gets what the pair of their arcs has."""
    return of_arcs.index_select(1, columns.arc_of).index_select(0, rows.arc_of)


def _to_samples(of_arcs: Tensor, samples: Round) -> Tensor:
    """(B,): first ends get what their arc has, second ends 0."""
    return of_arcs[samples.arc_of] * ~samples.is_second


def _entries_inside(pairs: Tensor, within: Tensor | None, samples: Round, geometry: Geometry) -> Tensor:
    """(arcs,) entries of the two ends of each arc, exact where they are one sample."""
    entries = pairs[samples.first, samples.second] if within is None else within[samples.first]
    return torch.where(samples.is_pair, entries, geometry.of_itself)


def _entries_of_rounds(pairs: Tensor, partners: Tensor, geometry: Geometry) -> Tensor:
    """(rounds, B) entries of each sample with its partner, exact where it is its own."""
    entries = pairs[torch.arange(partners.shape[1], device=pairs.device), partners]
    return torch.where(_is_pair(partners), entries, geometry.of_itself)


def _is_pair(partners: Tensor) -> Tensor:
    return partners != torch.arange(partners.shape[1], device=partners.device)


def _row_blocks(height: int, width: int) -> Iterator[slice]:
    step = max(1, _BLOCK // max(1, width))
    for start in range(0, height, step):
        yield slice(start, min(start + step, height))
