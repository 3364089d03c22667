"""Counts negative pairs in bins of cosine, in one pass over the blocks; large sets use compiled loops."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pml_ext.functional.operating_points.compiled_counting import compiled_count_rows
from pml_ext.functional.operating_points.similar_pairs import SimilarPairFinder
from pml_ext.functional.pairwise.compiled_loops import Loops
from pml_ext.functional.pairwise.pair_distances import PairDistances

# From this size compiled loops save more time than loading them costs (0.3 s, 1.5 s the first time on a machine)
# within two or three calls of a process; at twice the size within one.
_WORTH_LOADING = 10_000


class Bins(NamedTuple):
    """Bins of cosine, the most similar first: bin 0 has all pairs more similar than top."""

    top: float  # cosine at which bin 1 begins
    bottom: float  # cosine below which pairs do not count
    width: float  # of a bin, in cosine
    log_parts: int  # a bin has 2 to this power parts

    @property
    def scale(self) -> float:
        """The part of a cosine is shift − scale × cosine, truncated."""
        return (1 << self.log_parts) / self.width

    @property
    def shift(self) -> float:
        return (1 << self.log_parts) + self.scale * self.top


def count_pairs(pairs: PairDistances, bins: Bins, cells: Tensor, by_class: Tensor, pooled: Tensor) -> None:
    """Add this rank's negative pairs to the pooled counters and to the counters of both their classes.

    by_class: (classes × bins,); pooled: (bins × parts of a bin,).
    cells: (N,) int32, where the counters of each sample's class begin in by_class, in the order of `pairs.unit`.
    """
    count_rows = None
    if pairs.unit.device.type == "cpu" and len(pairs.unit) >= _WORTH_LOADING:
        cosine, *counters = (each[:0].numpy().dtype for each in (pairs.unit, by_class, pooled))
        count_rows = compiled_count_rows(cosine, *counters)
    if count_rows is None:
        count_by_search(pairs, bins, cells, by_class, pooled)
    else:
        count_by_loops(count_rows, pairs, bins, cells, by_class, pooled)


def count_by_loops(
    count_rows: Loops, pairs: PairDistances, bins: Bins, cells: Tensor, by_class: Tensor, pooled: Tensor
) -> None:
    """`count_pairs` by compiled loops on the CPU."""
    number = pairs.unit.numpy().dtype.type
    numbers = tuple(map(number, (bins.bottom, -bins.scale, bins.shift, len(pooled) - 1)))
    counters, cell_of = (by_class.numpy(), pooled.numpy()), cells.numpy()
    for block in pairs.blocks():
        first = np.zeros(len(block.cosines), np.int64)
        if block.mixed:
            first = (pairs.class_end[block.rows] - block.columns.start).clamp_min_(0).numpy()
        cell = cell_of[block.rows], cell_of[block.columns]
        count_rows(block.cosines.numpy(), first, *numbers, np.uint32(bins.log_parts), *cell, *counters)


def count_by_search(pairs: PairDistances, bins: Bins, cells: Tensor, by_class: Tensor, pooled: Tensor) -> None:
    """`count_pairs` by torch and numpy operators on any device."""
    finder = SimilarPairFinder(pairs, bins.bottom, cells)
    ones, ones_by_class = torch.ones_like(pooled[:0]), torch.ones_like(by_class[:0])
    for block in pairs.blocks():
        cosines, *of_sides = finder.find(block)
        parts = cosines.mul_(-bins.scale).add_(bins.shift).clamp_(0, len(pooled) - 1).int()
        if len(parts) > len(ones):
            ones = torch.ones(block.cosines.numel(), dtype=pooled.dtype, device=parts.device)
            ones_by_class = ones.to(by_class.dtype)
        # In place: bincount would clear and add as many counters as there are pairs.
        pooled.index_add_(0, parts, ones[: len(parts)])
        parts >>= bins.log_parts
        for cell in of_sides:
            by_class.index_add_(0, cell.add_(parts), ones_by_class[: len(parts)])
