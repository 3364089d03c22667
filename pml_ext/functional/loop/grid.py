"""The grid of arcs by arcs of LoOp: solved from the pair matrix of the samples, and handed back to them."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from pml_ext.functional.loop.geometry import Geometry
from pml_ext.functional.loop.partners import Round

_BLOCK = 2**16  # pairs of arcs solved at a time: the temporaries stay in a processor's cache


def solve(pairs: Tensor, rows: Round, columns: Round, x: Any, y: Any, geometry: Geometry) -> tuple[Tensor, ...]:
    """(row arcs, column arcs): entries of the closest points and their two places.

    x and y are the curves of the rows and of the columns, of shape (arcs,). Of a symmetric grid only what is not the
    mirror image of a block before is solved.
    """
    height, width = len(rows.first), len(columns.first)
    found = value, at_x, at_y = tuple(pairs.new_empty(height, width) for _ in range(3))
    is_symmetric = rows is columns
    for block in row_blocks(height, width):
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


def curves_of(pairs: Tensor, within: Tensor | None, samples: Round, geometry: Geometry) -> Any:
    """(arcs,) curves from the entries of their two ends, exact where these are one sample."""
    entries = pairs[samples.first, samples.second] if within is None else within[samples.first]
    return geometry.curve(torch.where(samples.is_pair, entries, geometry.of_itself))


def row_blocks(height: int, width: int) -> Iterator[slice]:
    """Rows of a (height, width) grid, some at a time."""
    step = max(1, _BLOCK // max(1, width))
    for start in range(0, height, step):
        yield slice(start, min(start + step, height))
