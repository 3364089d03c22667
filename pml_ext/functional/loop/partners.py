"""LoOp's arcs over a batch: pairings of the samples of a class, and the block-wise solver for pairs of arcs."""

from collections.abc import Iterator
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


def consecutive_partners(labels: Tensor) -> list[int]:
    """Returns each sample's partner: the 1st and 2nd sample of a class, the 3rd and 4th, …; itself if it has none."""
    ids = labels.tolist()
    partner = list(range(len(ids)))
    unpaired: dict[int, int] = {}
    for i, label in enumerate(ids):
        other = unpaired.pop(label, None)
        if other is None:
            unpaired[label] = i
        else:
            partner[i], partner[other] = other, i
    return partner


def consecutive_pairs(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Returns (pairs,) anchors and positives: consecutive partners, in both directions."""
    partner = consecutive_partners(labels)
    anchors = [i for i, j in enumerate(partner) if i != j]
    positives = [partner[i] for i in anchors]
    options: dict[str, Any] = {"dtype": torch.int64, "device": labels.device}
    return torch.tensor(anchors, **options), torch.tensor(positives, **options)


def class_pairings(labels: Tensor, pairing: str) -> list[list[int]]:
    """Returns, for each round, the index of each sample's partner in its class; itself if it has none in that round.

    "consecutive" takes one round; "all" is a round-robin tournament in which every two samples of a class meet once.
    """
    if pairing == "consecutive":
        return [consecutive_partners(labels)]
    sorted_labels, order = labels.sort(stable=True)
    start = torch.searchsorted(sorted_labels, sorted_labels)
    rank = torch.arange(len(labels), device=labels.device) - start
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
    rounds_of_partners: list[list[int]] = result.tolist()
    return rounds_of_partners


class Round:
    """The arcs of one round of partners: those that join two samples, then the samples without a partner.

    first, second: (arcs,) samples at the ends, equal from number `pairs` on. ends: both, in a row. arc_of: (B,) arc of
    each sample. end_of: (B,) index of each sample in `ends`, that of the first end if both are the sample.
    """

    def __init__(self, partner: list[int], device: torch.device) -> None:
        first = [i for i, j in enumerate(partner) if i < j]
        self.pairs = len(first)
        first += [i for i, j in enumerate(partner) if i == j]
        ends = first + [partner[i] for i in first]
        end_of = dict(zip(reversed(ends), range(len(ends) - 1, -1, -1), strict=True))
        ends_of = [end_of[i] for i in range(len(partner))]
        arcs_of = [end_of[min(pair)] for pair in enumerate(partner)]
        tables = torch.tensor(ends + ends_of + arcs_of, device="cpu").to(device, non_blocking=True)
        self.ends, self.end_of, self.arc_of = tables.split([len(ends), len(partner), len(partner)])
        self.first, self.second = self.ends.chunk(2)


def solve(
    pairs: Tensor, rows: Round, columns: Round, x: Any, y: Any, geometry: Geometry
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the (row arcs, column arcs) entries of the arcs' closest points, and their places on x and on y.

    pairs: (B, R) cosines or squared distances. x: curves of the rows, in a column. If rows and columns are the same
    round and there are several blocks, only the upper half of the grid is solved; the lower half is mirrored.
    """
    height, width = len(rows.first), len(columns.first)
    blocks = list(grid_blocks(height, width, pairs.device))
    if len(blocks) == 1:
        value, at_x, at_y = geometry.closest_places(*_between_ends(pairs, rows.ends, columns.ends), x, y)
        return value, at_x, at_y
    value, at_x, at_y = closest = [pairs.new_empty(height, width) for _ in range(3)]
    is_symmetric = rows is columns
    for block in blocks:
        beyond = slice(block.start if is_symmetric else 0, width)
        row_ends = torch.cat([rows.first[block], rows.second[block]])
        column_ends = torch.cat([columns.first[beyond], columns.second[beyond]])
        to_ends = _between_ends(pairs, row_ends, column_ends)
        for whole, part in zip(closest, geometry.closest_places(*to_ends, x[block], y[beyond]), strict=True):
            whole[block, beyond] = part
        if is_symmetric and block.stop < height:
            below = slice(block.stop, height)
            for whole, mirrored in ((value, value), (at_x, at_y), (at_y, at_x)):
                whole[below, block] = mirrored[block, below].t()
    return value, at_x, at_y


def _between_ends(pairs: Tensor, rows: Tensor, columns: Tensor) -> tuple[Tensor, ...]:
    """Returns (2, row arcs, column arcs) entries of both ends of the rows with the columns' first ends, and second."""
    entries = pairs.index_select(0, rows).index_select(1, columns)
    return entries.view(2, len(rows) // 2, 2, len(columns) // 2).unbind(2)


def of_samples(of_arcs: Tensor, rows: Round, columns: Round) -> Tensor:
    """Returns (B, R) values: each pair of samples gets the value of their arcs."""
    return of_arcs.index_select(1, columns.arc_of).index_select(0, rows.arc_of)


def inside_of(pairs: Tensor, within: Tensor | None, samples: Round, geometry: Geometry) -> Tensor:
    """Returns (arcs,) entries of the two ends of each arc, exact if they are one sample.

    within: (B,) entries of each sample with its partner, if `pairs` does not contain them.
    """
    entries = pairs[samples.first, samples.second] if within is None else within[samples.first]
    if samples.pairs < len(entries):
        entries[samples.pairs :] = geometry.of_itself
    return entries


def grid_blocks(height: int, width: int, device: torch.device) -> Iterator[slice]:
    """Yield blocks of rows of a grid of arcs."""
    return row_blocks(height, width, device, entries=_ENTRIES if device.type == "cpu" else None)
