"""LoOp's arcs over a batch: pairings of the samples of a class, and the block-wise solver for pairs of arcs."""

from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from pml_ext._ops.numerics import row_blocks
from pml_ext.functional.loop.arcs import Arc, Segment, closest_places_on_arcs, closest_places_on_segments

Pairing = Literal["consecutive", "all"]
Curve = Literal["arc", "segment"]
PAIRINGS = get_args(Pairing)

# Pairs of arcs per block on the CPU. The solver uses about twelve tensors of this size: at 1,024 samples 2**18 takes 10
# to 25 % longer than 2**16 (one thread), 2**14 takes 4 to 10 % longer.
_ENTRIES = 2**16


@dataclass(frozen=True)
class Geometry:
    """The curve that joins two samples, the solver for two curves, and the meaning of pair entries."""

    curve: Any
    closest_places: Any
    sign: int  # 1 if larger entries are closer, else −1
    of_itself: float  # the entry of a sample with itself


GEOMETRIES = {
    "arc": Geometry(Arc, closest_places_on_arcs, 1, 1.0),
    "segment": Geometry(Segment, closest_places_on_segments, -1, 0.0),
}


def class_pairings(labels: Tensor, pairing: str) -> Tensor:
    """Returns (rounds, B) indices of each sample's partner in its class; itself if it has none in that round.

    "consecutive" takes one round; "all" is a round-robin tournament in which every two samples of a class meet once.
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
        # Circle method: with an odd number m of seats on the circle, i meets j in round (i + j) mod m; a sample that
        # would meet itself meets the one in the middle, which is empty for odd classes.
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
    """Returns (pairs,) anchors and positives: 1st and 2nd sample of a class, 3rd and 4th, …, in both directions.

    order: (B,) sample indices in counting order; None: batch order.
    """
    partner = class_pairings(labels if order is None else labels[order], "consecutive")[0]
    if order is not None:
        partner = torch.empty_like(partner).scatter_(0, order, order[partner])
    anchors = (partner != torch.arange(len(labels), device=labels.device)).nonzero().view(-1)
    return anchors, partner[anchors]


class Round:
    """The arcs of one round of partners, in order of their first ends.

    first, second: (arcs,) samples at the ends, equal where is_pair is False. arc_of: (B,) arc of each sample.
    end_of: (B,) index of each sample in first ends followed by second ends; is_second: (B,) True for second ends.
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
        """Copy to a device. Build the round on the CPU, where reading the number of arcs does not block."""
        moved = copy(self)
        for name, table in vars(self).items():
            setattr(moved, name, table.to(device, non_blocking=True))
        return moved


def solve(
    pairs: Tensor, rows: Round, columns: Round, x: Any, y: Any, geometry: Geometry
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the (row arcs, column arcs) entries of the arcs' closest points, and their places on x and on y.

    pairs: (B, R) cosines or squared distances. If rows and columns are the same round, only the upper half of the grid
    is solved; the lower half is mirrored.
    """
    height, width = len(rows.first), len(columns.first)
    closest = value, at_x, at_y = (pairs.new_empty(height, width), *pairs.new_empty(2, height, width))
    is_symmetric = rows is columns
    for block in grid_blocks(height, width, pairs.device):
        beyond = slice(block.start if is_symmetric else 0, width)
        first, second = columns.first[beyond], columns.second[beyond]
        of_ends = pairs.index_select(0, torch.cat([rows.first[block], rows.second[block]]))  # first, then second ends
        to_ends = (of_ends.index_select(1, ends).view(2, -1, len(ends)) for ends in (first, second))
        for whole, part in zip(closest, geometry.closest_places(*to_ends, x[block, None], y[beyond]), strict=True):
            whole[block, beyond] = part
        if is_symmetric and block.stop < height:
            below = slice(block.stop, height)
            for whole, mirrored in ((value, value), (at_x, at_y), (at_y, at_x)):
                whole[below, block] = mirrored[block, below].t()
    return closest


def of_samples(of_arcs: Tensor, rows: Round, columns: Round) -> Tensor:
    """Returns (B, R) values: each pair of samples gets the value of their arcs."""
    return of_arcs.index_select(1, columns.arc_of).index_select(0, rows.arc_of)


def inside_of(pairs: Tensor, within: Tensor | None, samples: Round, geometry: Geometry) -> Tensor:
    """Returns (arcs,) entries of the two ends of each arc, exact if they are one sample.

    within: (B,) entries of each sample with its partner, if `pairs` does not contain them.
    """
    entries = pairs[samples.first, samples.second] if within is None else within[samples.first]
    return torch.where(samples.is_pair, entries, geometry.of_itself)


def grid_blocks(height: int, width: int, device: torch.device) -> Iterator[slice]:
    """Yield blocks of rows of a grid of arcs."""
    return row_blocks(height, width, device, entries=_ENTRIES if device.type == "cpu" else None)
