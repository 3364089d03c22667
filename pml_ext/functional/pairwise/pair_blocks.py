"""Cosines of all pairs of a data set in blocks, without an N × N matrix, and of listed pairs."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch import distributed as dist

from pml_ext._ops.distributed import share_of_rank
from pml_ext._ops.numerics import SIDE, full_precision, row_blocks, unit_rows
from pml_ext._shared.checks import check_embeddings, check_finite, check_floating, check_labels, check_whole


def both_sides(unit: Tensor, offsets: Tensor | None) -> tuple[Tensor, Tensor]:
    """Returns two sides whose inner products are cosine(i, j) − offset(i) − offset(j), each (N, D + 2).

    unit: (N, D) of length 1; offsets: (N,), or None, for which both sides are `unit` itself.
    """
    if offsets is None:
        return unit, unit
    column = -offsets.to(unit)[:, None]
    one = torch.ones_like(column)
    return torch.cat([unit, column, one], dim=1), torch.cat([unit, one, column], dim=1)


def check_offsets(offsets: Tensor | None, count: int) -> None:
    """Raise unless offsets are None or (count,) finite numbers."""
    if offsets is not None:
        check_floating(offsets, "offsets", "(N,)")
        if len(offsets) != count:
            raise ValueError(f"offsets must have shape ({count},), one per embedding; got {tuple(offsets.shape)}")
        check_finite(offsets, "offsets")


def listed_cosines(unit: Tensor, ref_unit: Tensor, rows: Tensor, ref_rows: Tensor) -> Tensor:
    """Returns (P,) inner products of unit[rows[p]] and ref_unit[ref_rows[p]], block by block.

    unit, ref_unit: (N, D), (R, D) of length 1; rows, ref_rows: (P,) int64.
    """
    with full_precision(unit.device):
        cosines = [
            (unit[rows[block]] * ref_unit[ref_rows[block]]).sum(dim=1)
            for block in row_blocks(len(rows), unit.shape[1], unit.device)
        ]
    return torch.cat(cosines) if cosines else unit.new_empty(0)


# A search for accepted pairs synchronises with the device once per block, so GPUs get fewer, larger blocks.
_BLOCK_ROWS_ON_A_DEVICE = 4096
_ROWS_OF_POSITIVES = 128


class Block(NamedTuple):
    """Cosines of some rows with some columns, sorted by class; overwritten by the next block."""

    rows: slice
    columns: slice  # if rows and columns start at the same sample, only pairs right of the diagonal count
    cosines: Tensor  # (r, c)
    mixed: bool  # whether the block has positive pairs


class PairBlocks:
    """All unordered pairs of a data set, sorted by class; see `PairDistances` for arguments and attributes."""

    def __init__(
        self,
        embeddings: Tensor,
        labels: Tensor,
        *,
        block_rows: int | None = None,
        group: dist.ProcessGroup | None = None,
        offsets: Tensor | None = None,
        cameras: Tensor | None = None,
    ) -> None:
        check_embeddings(embeddings)
        labels = check_labels(labels, len(embeddings))
        check_finite(embeddings)
        check_offsets(offsets, len(embeddings))
        if block_rows is not None:
            check_whole(block_rows, "block_rows", 1)
        order = torch.argsort(labels.to(embeddings.device), stable=True)
        unit = unit_rows(embeddings.detach().index_select(0, order))
        self.unit, self.other = both_sides(unit, None if offsets is None else offsets.to(order.device)[order])
        self.classes, self.index, sizes = torch.unique(
            labels.to(embeddings.device)[order], return_inverse=True, return_counts=True
        )
        self.class_end = sizes.cumsum(0)[self.index]
        self.group = group
        self._index_on_host = self.index.cpu()
        self.block_rows = block_rows or (SIDE if embeddings.device.type == "cpu" else _BLOCK_ROWS_ON_A_DEVICE)
        self.camera = None
        self.positive_pairs = sizes * (sizes - 1) // 2
        if cameras is not None:
            self.camera = check_labels(cameras, len(embeddings), "cameras").to(order.device)[order]
            cells, sizes_of_cells = torch.unique(torch.stack([self.index, self.camera]), dim=1, return_counts=True)
            within = sizes_of_cells * (sizes_of_cells - 1) // 2
            self.positive_pairs = self.positive_pairs.index_add(0, cells[0], within, alpha=-1)
        self.negative_pairs = sizes * (len(embeddings) - sizes)

    @property
    def total_negative_pairs(self) -> int:
        return int(self.negative_pairs.sum()) // 2  # each pair counts for two classes

    @property
    def total_positive_pairs(self) -> int:
        return int(self.positive_pairs.sum())

    def classes_of(self, samples: slice) -> tuple[int, int]:
        """Returns the range of class indices of a range of samples, without synchronising with the device."""
        return int(self._index_on_host[samples.start]), int(self._index_on_host[samples.stop - 1]) + 1

    def blocks(self, *, positives_only: bool = False) -> Iterator[Block]:
        """This rank's share of the blocks on and above the diagonal."""
        buffer: Tensor | None = None
        for rows, columns in share_of_rank(self._cuts(positives_only), self.group):
            height, width = rows.stop - rows.start, columns.stop - columns.start
            if buffer is None:
                size = min(self.block_rows, len(self.unit)) ** 2
                buffer = torch.empty(size, dtype=self.unit.dtype, device=self.unit.device)
            cosines = buffer[: height * width].view(height, width)
            torch.mm(self.unit[rows], self.other[columns].T, out=cosines)
            mixed = bool(self._index_on_host[rows.stop - 1] >= self._index_on_host[columns.start])
            yield Block(rows, columns, cosines, mixed)

    def _cuts(self, positives_only: bool) -> Iterator[tuple[slice, slice]]:
        count, size = len(self.unit), self.block_rows
        if not positives_only:
            for i in range(0, count, size):
                for j in range(i, count, size):
                    yield slice(i, min(i + size, count)), slice(j, min(j + size, count))
            return
        ends = torch.bincount(self._index_on_host).cumsum(0)
        for i in range(0, count, min(size, _ROWS_OF_POSITIVES)):
            rows = slice(i, min(i + min(size, _ROWS_OF_POSITIVES), count))
            end = int(ends[self._index_on_host[rows.stop - 1]])
            for j in range(i, end, size):
                yield rows, slice(j, min(j + size, end))

    def negative_mask(self, block: Block) -> Tensor:
        """Returns the (r, c) mask of a mixed block's unordered negative pairs: right of the row's class."""
        columns = torch.arange(block.columns.start, block.columns.stop, device=self.unit.device)
        negative: Tensor = columns >= self.class_end[block.rows, None]
        return negative

    def positive_places(self, block: Block) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the `true_places` of a mixed block's unordered positive pairs (across cameras, if any)."""
        device, width = self.unit.device, block.columns.stop - block.columns.start
        rows = torch.arange(block.rows.start, block.rows.stop, device=device)
        first = (rows + 1 - block.columns.start).clamp_min_(0)
        lengths = ((self.class_end[block.rows] - block.columns.start).clamp_max_(width) - first).clamp_min_(0)
        row = torch.repeat_interleave(lengths)
        before = lengths.cumsum(0) - lengths
        column = torch.arange(len(row), device=device) + (first - before)[row]
        if self.camera is not None:
            across = self.camera[block.rows][row] != self.camera[block.columns][column]
            row, column = row[across], column[across]
        return row * width + column, row, column


def true_places(mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns int64 flat indices (ascending), rows and columns of the true entries of a (r, c) mask."""
    rows, columns = mask.nonzero(as_tuple=True)
    return rows * mask.shape[1] + columns, rows, columns
