"""LoOp over a batch: the closest points of the arcs (or segments) of every two samples, from their pair matrix."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pml_ext.functional.arcs import closest_on_arcs
from pml_ext.functional.segments import closest_on_segments

# geometry: what finds the closest points, its sign (larger is closer), the entry of a sample with itself
_GEOMETRIES: dict[str, tuple[Any, int, float]] = {
    "arc": (closest_on_arcs, 1, 1.0),
    "segment": (closest_on_segments, -1, 0.0),
}
_BLOCK = 2**15  # elements at a time: the temporaries stay in cache


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
        labels, ref_labels: (B,) and (R,) class ids; without ref_labels the columns are the rows' samples.
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
    ref_partners = partners if ref_labels is None else class_pairings(ref_labels, pairing)
    within = _within(pairs, points if ref_labels is not None else None, partners, geometry)
    ref_within = within if ref_labels is None else _within(pairs, ref_points, ref_partners, geometry)
    if len(partners) == len(ref_partners) == 1:
        rows = _Arcs(partners[0])
        columns = rows if ref_labels is None else _Arcs(ref_partners[0])
        closest = _closest_of_arcs(pairs, rows, columns, within[0], ref_within[0], geometry)
        return closest.index_select(0, rows.arc_of).index_select(1, columns.arc_of)
    row_round, column_round = _closest_rounds(pairs.detach(), partners, ref_partners, within, ref_within, geometry)
    # Only the winning arcs take part in the gradient.
    x2, y2 = partners.t().gather(1, row_round), ref_partners.gather(0, column_round)
    width = pairs.shape[1]
    return _ClosestPoints.apply(
        geometry,
        pairs,
        pairs.gather(1, y2),
        pairs.gather(0, x2),
        pairs.flatten().gather(0, (x2 * width + y2).flatten()).view_as(pairs),
        within.t().gather(1, row_round),
        ref_within.gather(0, column_round),
    )


def class_pairings(labels: Tensor, pairing: str) -> Tensor:
    """Rounds of partners inside each class; a sample without a partner in a round is its own.

    Returns:
        (rounds, B) indices: one round for "consecutive"; for "all" as many as it takes for every pair of a class to
        meet once (a round-robin tournament).
    """
    order = labels.argsort(stable=True)
    _, classes, counts = torch.unique_consecutive(labels[order], return_inverse=True, return_counts=True)
    start = (counts.cumsum(0) - counts)[classes]
    size, rank = counts[classes], torch.arange(len(labels), device=labels.device) - start
    if pairing == "consecutive":
        partner = (rank ^ 1).unsqueeze(0)
    else:
        # Circle method: with an odd number m of seats on the circle, i meets j in round (i + j) mod m; the sample
        # that would meet itself meets the one in the middle. Odd classes leave the middle empty.
        seats = size - 1 + size % 2
        rounds = torch.arange(int(seats.max()), device=labels.device).unsqueeze(1) % seats
        partner = (rounds - rank) % seats
        partner = torch.where(partner == rank, seats, partner)
        partner = torch.where(rank == seats, rounds * ((seats + 1) // 2) % seats, partner)
    partner = torch.where(partner < size, partner, rank)
    result = torch.empty_like(partner)
    result[:, order] = order[start + partner]
    return result


class _Arcs:
    """The arcs of one round: their two ends, and which arc each sample is on."""

    def __init__(self, partner: Tensor) -> None:
        itself = torch.arange(len(partner), device=partner.device)
        is_first = itself <= partner
        number = is_first.cumsum(0) - 1
        self.first = itself[is_first]
        self.ends = torch.cat([self.first, partner[is_first]])
        self.arc_of = torch.where(is_first, number, number[partner])


def _within(pairs: Tensor, points: Tensor | None, partners: Tensor, geometry: str) -> Tensor:
    """(rounds, B): the entry of each sample with its partner, exact where it is its own partner."""
    itself = torch.arange(partners.shape[1], device=partners.device)
    if points is None:
        entries = pairs[itself, partners]
    elif geometry == "arc":
        entries = torch.stack([(points * points[partner]).sum(1) for partner in partners])
    else:
        entries = torch.stack([(points - points[partner]).square().sum(1) for partner in partners])
    return torch.where(partners == itself, _GEOMETRIES[geometry][2], entries)


def _closest_of_arcs(
    pairs: Tensor, rows: _Arcs, columns: _Arcs, within: Tensor, ref_within: Tensor, geometry: str
) -> Tensor:
    """(arcs, ref arcs): the closest points of two arcs each."""
    return _ClosestOfGrid.apply(
        geometry,
        rows is columns,
        pairs.index_select(0, rows.ends).index_select(1, columns.ends),
        within[rows.first].unsqueeze(1),
        ref_within[columns.first].unsqueeze(0),
    )


@torch.no_grad()
def _closest_rounds(
    pairs: Tensor, partners: Tensor, ref_partners: Tensor, within: Tensor, ref_within: Tensor, geometry: str
) -> tuple[Tensor, Tensor]:
    """For each pair of samples the two rounds in which their arcs come closest, each (B, R)."""
    sign = _GEOMETRIES[geometry][1]
    best = pairs.new_full(pairs.shape, -torch.inf)
    row_round = torch.zeros(pairs.shape, dtype=torch.long, device=pairs.device)
    column_round = torch.zeros_like(row_round)
    ref_arcs = [_Arcs(partner) for partner in ref_partners]
    for i, partner in enumerate(partners):
        rows = _Arcs(partner)
        closest = pairs.new_full((len(rows.first), pairs.shape[1]), -torch.inf)
        at = torch.zeros(closest.shape, dtype=torch.long, device=pairs.device)
        for j, columns in enumerate(ref_arcs):
            value = _closest_of_arcs(pairs, rows, columns, within[i], ref_within[j], geometry)
            value = (sign * value).index_select(1, columns.arc_of)
            at.masked_fill_(value > closest, j)
            closest = torch.maximum(closest, value)
        closest, at = closest.index_select(0, rows.arc_of), at.index_select(0, rows.arc_of)
        is_closer = closest > best
        best = torch.maximum(best, closest)
        row_round.masked_fill_(is_closer, i)
        column_round = torch.where(is_closer, at, column_round)
    return row_round, column_round


class _ClosestPoints(torch.autograd.Function):
    """Cosine or squared distance of the closest points; by the envelope theorem their weights are constants.

    With p = w1 x1 + w2 x2 and q = v1 y1 + v2 y2 the derivative by entry (x_i, y_j) is w_i v_j, and by the entries
    inside the arcs −h w1 w2 and −h v1 v2 (p stays on the sphere), or −w1 w2 and −v1 v2 for segments.
    """

    @staticmethod
    def forward(ctx: Any, geometry: str, *entries: Tensor) -> Tensor:
        return _solve_and_save(ctx, geometry, False, *entries)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        at1, at2, v1, v2, inside_x, inside_y = _derivatives(ctx, grad)
        return None, at1 * v1, at1 * v2, at2 * v1, at2 * v2, inside_x, inside_y


class _ClosestOfGrid(torch.autograd.Function):
    """The same for all arcs of a batch: the entries between them come as one matrix, first ends before second ends."""

    @staticmethod
    def forward(ctx: Any, geometry: str, symmetric: bool, ends: Tensor, within: Tensor, ref_within: Tensor) -> Tensor:
        height, width = within.shape[0], ref_within.shape[1]
        entries = (quarter for half in ends.split(height) for quarter in half.split(width, 1))
        return _solve_and_save(ctx, geometry, symmetric, *entries, within, ref_within)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        at1, at2, v1, v2, inside_x, inside_y = _derivatives(ctx, grad)
        height, width = grad.shape
        by_ends = grad.new_empty(2 * height, 2 * width)
        for half, at in zip(by_ends.split(height), (at1, at2), strict=True):
            for quarter, v in zip(half.split(width, 1), (v1, v2), strict=True):
                torch.mul(at, v, out=quarter)
        return None, None, by_ends, inside_x, inside_y


def _solve_and_save(ctx: Any, geometry: str, symmetric: bool, *entries: Tensor) -> Tensor:
    """The closest points in blocks of rows; of a symmetric grid only what is not the mirror image of a block before."""
    solve = _GEOMETRIES[geometry][0]
    height, width = entries[0].shape
    value, w1, w2, v1, v2 = found = tuple(entries[0].new_empty(height, width) for _ in range(5))
    step = max(1, _BLOCK // max(1, width))
    for first in range(0, height, step):
        rows, columns = slice(first, first + step), slice(first if symmetric else 0, width)
        block = [e[rows if e.shape[0] > 1 else slice(1), columns if e.shape[1] > 1 else slice(1)] for e in entries]
        for whole, part in zip(found, solve(*block), strict=True):
            whole[rows, columns] = part
        if symmetric:
            below = slice(first + step, height)
            for whole, mirrored in ((value, value), (w1, v1), (w2, v2), (v1, w1), (v2, w2)):
                # Also inside the block: which of two roundings an entry gets must not depend on the blocks.
                whole[rows, rows] = whole[rows, rows].triu() + mirrored[rows, rows].triu(1).t()
                whole[below, rows] = mirrored[rows, below].t()
    ctx.save_for_backward(value if geometry == "arc" else torch.ones_like(value[:1, :1]), w1, w2, v1, v2)
    ctx.shapes = entries[4].shape, entries[5].shape
    return value


def _derivatives(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
    """grad · w1, grad · w2, v1, v2 and the derivatives by the entries inside the two arcs."""
    scale, w1, w2, v1, v2 = ctx.saved_tensors
    x_shape, y_shape = ctx.shapes
    at1, at2, minus = grad * w1, grad * w2, -grad * scale
    inside_x = (minus * w1 * w2).sum_to_size(x_shape)
    inside_y = (minus * v1 * v2).sum_to_size(y_shape)
    return at1, at2, v1, v2, inside_x, inside_y
