"""Counts of negative pairs in bins of cosine, in one pass over the blocks."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pml_ext.functional.pairwise.pair_blocks import Block
from pml_ext.functional.pairwise.pair_distances import PairDistances

# np.flatnonzero is three times faster on a mask with more than a tenth of true entries, so the search below adds some.
# Below _SPARSE that no longer pays.
_DENSE, _SPARSE = 0.1, 0.04


class SimilarPairs(NamedTuple):
    """Negative pairs, each once."""

    cosines: Tensor  # (P,), in the order of the block
    rows: Tensor  # (P,) int32, the finder's values of the pairs' samples
    columns: Tensor  # (P,) int32


class SimilarPairFinder:
    """Finds the negative pairs with cosine >= bottom in one block after another, reusing its memory.

    values: (N,) int32, a value for each sample, in the order of `pairs.unit`.
    """

    def __init__(self, pairs: PairDistances, bottom: float, values: Tensor) -> None:
        self._bottom, self._values = bottom, values
        self._class_end = pairs.class_end  # first column of each row's negative pairs above the diagonal
        self._mask = np.empty(0, bool)
        self._share = _DENSE  # share of the last block's similar pairs, an estimate for the next block

    def find(self, block: Block) -> SimilarPairs:
        return self._find_on_host(block) if block.cosines.is_cpu else self._find_on_device(block)

    def _find_on_device(self, block: Block) -> SimilarPairs:
        similar = block.cosines >= self._bottom
        if block.mixed:
            columns = torch.arange(block.columns.start, block.columns.stop, device=similar.device)
            similar &= columns >= self._class_end[block.rows, None]
        row, column = similar.nonzero(as_tuple=True)
        return SimilarPairs(
            block.cosines[row, column], self._values[block.rows][row], self._values[block.columns][column]
        )

    def _find_on_host(self, block: Block) -> SimilarPairs:
        height, width = block.cosines.shape
        cosines = block.cosines.numpy().reshape(-1)
        places = self._search(cosines)
        starts = np.arange(height + 1) * width
        per_row = np.diff(np.searchsorted(places, starts))
        column = places - np.repeat(starts[:-1], per_row)
        values = self._values.numpy()
        row_value = np.repeat(values[block.rows], per_row)
        if block.mixed:
            negative = column >= np.repeat(self._class_end.numpy()[block.rows] - block.columns.start, per_row)
            places, column, row_value = places[negative], column[negative], row_value[negative]
        similar = cosines.take(places), row_value, values[block.columns].take(column)
        return SimilarPairs(*(torch.from_numpy(each) for each in similar))

    def _search(self, cosines: np.ndarray) -> np.ndarray:
        """Returns the flat indices of cosines >= bottom, ascending, int64."""
        size = len(cosines)
        if len(self._mask) < size:
            self._mask = np.empty(size + size // 8 + 16, bool)
        np.greater_equal(cosines, self._bottom, out=self._mask[:size])
        filled = size
        if _SPARSE < self._share <= _DENSE:  # append true entries to make the mask dense
            filled += int((_DENSE - self._share) * size / (1 - _DENSE)) + 8
            self._mask[size:filled] = True
        places = np.flatnonzero(self._mask[:filled])
        count = len(places) - (filled - size)
        self._share = count / size
        return places[:count]


class Bins(NamedTuple):
    """Bins of cosine, the most similar first: bin 0 has all pairs more similar than top."""

    top: float  # cosine at which bin 1 begins
    bottom: float  # cosine below which pairs do not count
    width: float  # of a bin, in cosine
    log_parts: int  # a bin has 2 to this power parts

    @property
    def scale(self) -> float:
        """Returns the factor of a cosine's part, which is shift − scale × cosine, truncated."""
        return (1 << self.log_parts) / self.width

    @property
    def shift(self) -> float:
        return (1 << self.log_parts) + self.scale * self.top


def count_pairs(pairs: PairDistances, bins: Bins, cells: Tensor, by_class: Tensor, pooled: Tensor) -> None:
    """Add this rank's negative pairs to the pooled counters and to the counters of both their classes.

    by_class: (classes × bins,); pooled: (bins × parts of a bin,).
    cells: (N,) int32, index in by_class of the first counter of each sample's class, in the order of `pairs.unit`.
    """
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
