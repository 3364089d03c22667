"""LoOp's arcs over a batch: which samples of a class are partners, and the grid of arcs by arcs, block by block."""

from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pml_ext._ops.blocks import row_blocks
from pml_ext.functional.loop.arcs import Arc, closest_places_on_arcs
from pml_ext.functional.loop.segments import Segment, closest_places_on_segments

PAIRINGS = ("consecutive", "all")

# Pairs of arcs solved at a time on a processor. The solver has some twelve tensors of a block in use: at 1,024 samples
# 2**18 takes 10 to 25 % longer than 2**16 (one thread), 2**14 takes 4 to 10 % longer.
_ENTRIES = 2**16


@dataclass(frozen=True)
class Geometry:
    """What joins two samples, what finds the closest places of two such curves, and how their pair entries behave."""

    curve: Any
    closest_places: Any
    sign: int  # 1 where a larger entry is closer
    of_itself: float  # the entry of a sample with itself


GEOMETRIES = {
    "arc": Geometry(Arc, closest_places_on_arcs, 1, 1.0),
    "segment": Geometry(Segment, closest_places_on_segments, -1, 0.0),
}


def class_pairings(labels: Tensor, pairing: str) -> Tensor:
    """Rounds of partners inside each class; a sample without a partner in a round is its own.

    Args:
        labels: (B,) class ids.
        pairing: "consecutive" or "all", see `loop_pairs`.
    Returns:
        (rounds, B) indices: one round for "consecutive"; for "all" as many as it takes for every pair of a class to
        meet once (a round-robin tournament).
    """
    sorted_labels, order = labels.sort(stable=True)
    place = torch.arange(len(labels), device=labels.device)
    begins = torch.ones_like(place, dtype=torch.bool)
    torch.ne(sorted_labels[1:], sorted_labels[:-1], out=begins[1:])
    start = (place * begins).cummax(0)[0]
    rank = place - start
    if pairing == "consecutive":
        other = (start + (rank ^ 1)).clamp_max_(len(labels) - 1)
        partner = torch.where(sorted_labels[other] == sorted_labels, other, place).unsqueeze(0)
    else:
        size = torch.searchsorted(sorted_labels, sorted_labels, right=True) - start
        # Circle method: with an odd number m of seats on the circle, i meets j in round (i + j) mod m; the sample
        # that would meet itself meets the one in the middle. Odd classes leave the middle empty.
        seats = size - 1 + size % 2
        rounds = torch.arange(int(seats.max()), device=labels.device).unsqueeze(1) % seats
        partner = (rounds - rank) % seats
        partner = torch.where(partner == rank, seats, partner)
        partner = torch.where(rank == seats, rounds * ((seats + 1) // 2) % seats, partner)
        partner = start + torch.where(partner < size, partner, rank)
    result = torch.empty_like(partner)
    result[:, order] = order[partner]
    return result


def consecutive_pairs(labels: Tensor, order: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """(anchors, positives): each sample and its partner, the 1st and 2nd sample of a class, the 3rd and 4th, ….

    A pair stands there twice, once from either end; a sample left over does not.

    Args:
        labels: (B,) class ids.
        order: (B,) indices, the order in which samples are counted; None: that of the batch.
    Returns:
        two (pairs,) tensors of indices, on the device of the labels.
    """
    partner = class_pairings(labels if order is None else labels[order], "consecutive")[0]
    if order is not None:
        partner = torch.empty_like(partner).scatter_(0, order, order[partner])
    anchors = (partner != torch.arange(len(labels), device=labels.device)).nonzero().view(-1)
    return anchors, partner[anchors]


class Round:
    """The arcs of one round of partners, in order of their first ends.

    Attributes:
        first, second: (arcs,) samples at the two ends; the same one twice where a sample is its own partner.
        arc_of: (B,) the arc that each sample is on.
        end_of: (B,) the place of each sample in first ends followed by second ends (a first end where it is both).
        is_second: (B,) whether it is a second end.
        is_pair: (arcs,) whether the two ends are two samples.
    """

    def __init__(self, partner: Tensor) -> None:
        itself = torch.arange(len(partner), device=partner.device)
        is_first = itself <= partner
        number = is_first.cumsum(0) - 1
        self.first = itself[is_first]
        self.second = partner[is_first]
        self.arc_of = torch.where(is_first, number, number[partner])
        self.is_second = ~is_first
        self.end_of = self.arc_of + self.is_second * len(self.first)
        self.is_pair = self.first != self.second

    def to(self, device: torch.device) -> "Round":
        """The same on a device. It is made where the partners are: how many arcs there are the CPU reads at once."""
        moved = copy(self)
        for name, table in vars(self).items():
            setattr(moved, name, table.to(device, non_blocking=True))
        return moved


def solve(
    pairs: Tensor, rows: Round, columns: Round, x: Any, y: Any, geometry: Geometry, *, entries: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """The closest points of every arc of the rows and every arc of the columns.

    Where rows and columns are the same round, only the upper half of the grid is solved and mirrored.

    Args:
        pairs: (B, R) cosines or squared distances of the samples.
        x, y: (row arcs,) and (column arcs,) curves of the geometry.
        entries: of one block, as in `grid_blocks`.
    Returns:
        three times (row arcs, column arcs): the entry of the closest points, their places on x and on y.
    """
    height, width = len(rows.first), len(columns.first)
    found = value, at_x, at_y = (pairs.new_empty(height, width), *pairs.new_empty(2, height, width))
    is_symmetric = rows is columns
    for block in grid_blocks(height, width, pairs.device, entries):
        beyond = slice(block.start if is_symmetric else 0, width)
        first, second = columns.first[beyond], columns.second[beyond]
        of_ends = pairs.index_select(0, torch.cat([rows.first[block], rows.second[block]]))  # first, then second ends
        to_ends = (of_ends.index_select(1, ends).view(2, -1, len(ends)) for ends in (first, second))
        for whole, part in zip(found, geometry.closest_places(*to_ends, x[block, None], y[beyond]), strict=True):
            whole[block, beyond] = part
        if is_symmetric and block.stop < height:
            below = slice(block.stop, height)
            for whole, mirrored in ((value, value), (at_x, at_y), (at_y, at_x)):
                whole[below, block] = mirrored[block, below].t()
    return found


def of_samples(of_arcs: Tensor, rows: Round, columns: Round) -> Tensor:
    """(B, R): each pair of samples gets what the pair of their arcs has."""
    return of_arcs.index_select(1, columns.arc_of).index_select(0, rows.arc_of)


def inside_of(pairs: Tensor, within: Tensor | None, samples: Round, geometry: Geometry) -> Tensor:
    """(arcs,): the entry of the two ends of each arc, exact where these are one sample.

    Args:
        within: (B,) entry of each sample with its partner, where `pairs` does not hold it.
    """
    entries = pairs[samples.first, samples.second] if within is None else within[samples.first]
    return torch.where(samples.is_pair, entries, geometry.of_itself)


def grid_blocks(height: int, width: int, device: torch.device, entries: int | None = None) -> Iterator[slice]:
    """Rows of a grid of arcs, one block after the other; `entries` of one block, None: the size measured best."""
    return row_blocks(height, width, device, entries=_ENTRIES if entries is None and device.type == "cpu" else entries)
