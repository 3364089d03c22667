"""Statistics over every pair of a data set, block by block: nothing of size N × N is ever stored."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pml_ext._checks import check_embeddings, check_finite, check_labels
from pml_ext.functional.precision import full_precision, unit_rows

BLOCK_ROWS = 1024
# Bins a unit of distance: a power of two, so that scaling is exact and a bin's edges are exact floats.
_BINS_PER_UNIT = 2**15
_COLLECTED_AT_ONCE = 2**22


class _Block(NamedTuple):
    rows: slice
    columns: slice
    distances: Tensor  # (r, c)
    positives: Tensor | None  # (r, c) masks of unordered pairs; None: the block holds negative pairs only
    negatives: Tensor | None


class PairDistances:
    """The distances of all unordered pairs of a data set, never stored, with counts over them.

    Distances are L2 between L2-normalised embeddings, sqrt(2 − 2 cosine), in [0, 2], computed in float32 (float64
    for float64 input) on the embeddings' device. In float32 the distance of two equal rows is below 1e-3, not
    always 0. A zero row is at sqrt(2) from everything. Samples are sorted by class, so that positive pairs lie in
    the blocks next to the diagonal only. All counts are exact and deterministic.

    Args:
        embeddings: (N, D), any finite values; normalised here.
        labels: (N,) integer class ids.
        block_rows: rows of a block; memory is a few block_rows² floats.
    Attributes:
        classes: (T,) the class ids, sorted.
        positive_pairs, negative_pairs: (T,) int64, pairs inside the class; pairs of one sample in it and one outside.
    Raises:
        ValueError: embeddings that are not (N, D) floating and finite; labels of another length or not integer.
    """

    def __init__(self, embeddings: Tensor, labels: Tensor, *, block_rows: int = BLOCK_ROWS) -> None:
        check_embeddings(embeddings)
        check_labels(labels, len(embeddings))
        check_finite(embeddings)
        order = torch.argsort(labels.to(embeddings.device), stable=True)
        self._unit = unit_rows(embeddings)[order]
        self.classes, self._index, sizes = torch.unique(
            labels.to(embeddings.device)[order], return_inverse=True, return_counts=True
        )
        self._index_on_host = self._index.cpu()
        self._block_rows = block_rows
        self.positive_pairs = sizes * (sizes - 1) // 2
        self.negative_pairs = sizes * (len(embeddings) - sizes)

    @property
    def total_negative_pairs(self) -> int:
        """Every negative pair belongs to two classes."""
        return int(self.negative_pairs.sum()) // 2

    @property
    def total_positive_pairs(self) -> int:
        return int(self.positive_pairs.sum())

    def negative_distances_at(self, ranks: Sequence[int]) -> Tensor:
        """Order statistics of the pooled negative distances: the k-th smallest for each k.

        A histogram finds each rank's bin; a second pass collects the values of these bins alone.

        Args:
            ranks: ranks k, from 1 to total_negative_pairs.
        Returns:
            (len(ranks),) distances, in the embeddings' precision.
        """
        total = self.total_negative_pairs
        if any(not 1 <= k <= total for k in ranks):
            raise ValueError(f"ranks must be from 1 to {total}, the number of negative pairs; got {list(ranks)}")
        wanted = torch.tensor(list(ranks), device=self._unit.device)
        with full_precision(self._unit.device):
            up_to = torch.cumsum(self._histogram(), dim=0)
            bins = torch.searchsorted(up_to, wanted)
            below = torch.where(bins > 0, up_to[bins - 1], 0)
            values, counts = self._values_in(torch.unique(bins))
            bin_of_value = (values * _BINS_PER_UNIT).long()
            found = []
            for k, bin_, before in zip(wanted, bins, below, strict=True):
                inside = bin_of_value == bin_
                found.append(values[inside][torch.searchsorted(before + counts[inside].cumsum(0), k)])
        return torch.stack(found)

    def accepted(self, thresholds: Tensor, *, positives_only: bool = False) -> tuple[Tensor, Tensor]:
        """How many pairs of each class have a distance of at most each threshold.

        Args:
            thresholds: (M,) ascending distances.
            positives_only: leave the negative counts at 0 and skip the blocks without positive pairs.
        Returns:
            positives, negatives: (T, M) int64. A negative pair counts for both of its classes.
        """
        device = self._unit.device
        thresholds = thresholds.to(device=device, dtype=self._unit.dtype).contiguous()
        shape = (len(self.classes), len(thresholds))
        positives, negatives = (torch.zeros(shape, dtype=torch.int64, device=device) for _ in range(2))
        with full_precision(device):
            for block in self._blocks(positives_only=positives_only):
                accepted = block.distances <= thresholds[-1]
                if block.positives is not None:
                    self._count(positives, block, accepted & block.positives, thresholds, [block.rows])
                if not positives_only:
                    taken = accepted if block.negatives is None else accepted & block.negatives
                    self._count(negatives, block, taken, thresholds, [block.rows, block.columns])
        return positives.cumsum(1), negatives.cumsum(1)

    def _count(self, into: Tensor, block: _Block, taken: Tensor, thresholds: Tensor, sides: list[slice]) -> None:
        """Add a block's pairs to the rows of their classes, at the first threshold that accepts them."""
        places = taken.nonzero(as_tuple=True)
        first = torch.bucketize(block.distances[places], thresholds)
        for side, place in zip(sides, places, strict=False):
            classes = self._index[side]
            low, high = int(self._index_on_host[side.start]), int(self._index_on_host[side.stop - 1]) + 1
            width = into.shape[1]
            counts = torch.bincount((classes - low)[place] * width + first, minlength=(high - low) * width)
            into[low:high] += counts.view(high - low, width)

    def _histogram(self) -> Tensor:
        """Counts of negative distances in bins of 1 / _BINS_PER_UNIT from 0 to 2."""
        bins = 2 * _BINS_PER_UNIT + 1
        histogram = torch.zeros(bins, dtype=torch.int64, device=self._unit.device)
        for block in self._blocks():
            distances = block.distances if block.negatives is None else block.distances[block.negatives]
            histogram += torch.bincount((distances * _BINS_PER_UNIT).int().view(-1), minlength=bins)
        return histogram

    def _values_in(self, bins: Tensor) -> tuple[Tensor, Tensor]:
        """The distinct negative distances inside some bins, ascending, and how often each occurs."""
        edges = [(int(b) / _BINS_PER_UNIT, (int(b) + 1) / _BINS_PER_UNIT) for b in bins]
        values = torch.empty(0, dtype=self._unit.dtype, device=self._unit.device)
        counts = torch.empty(0, dtype=torch.int64, device=self._unit.device)
        pending: list[Tensor] = []

        def merged() -> tuple[Tensor, Tensor]:
            distinct, place = torch.unique(torch.cat([values, *pending]), return_inverse=True)
            weights = torch.ones_like(place)
            weights[: len(counts)] = counts
            return distinct, torch.zeros_like(distinct, dtype=torch.int64).index_add_(0, place, weights)

        for block in self._blocks():
            d = block.distances
            for low, high in edges:
                inside = (d >= low) & (d < high)
                pending.append(d[inside if block.negatives is None else inside & block.negatives])
            # Equal distances (collapsed embeddings) fold into one value: memory stays bounded.
            if sum(map(len, pending)) > _COLLECTED_AT_ONCE:
                values, counts = merged()
                pending = []
        return merged()

    def _blocks(self, *, positives_only: bool = False) -> Iterator[_Block]:
        """Blocks on and above the diagonal, always cut the same way: a pair's distance is the same in every pass."""
        count, size = len(self._unit), self._block_rows
        for i in range(0, count, size):
            rows = slice(i, min(i + size, count))
            last_class = self._index_on_host[rows.stop - 1]
            for j in range(i, count, size):
                columns = slice(j, min(j + size, count))
                mixed = bool(last_class >= self._index_on_host[j])
                if positives_only and not mixed:
                    break
                distances = self._unit[rows] @ self._unit[columns].T
                distances.mul_(-2).add_(2).clamp_(0, 4).sqrt_()
                if not mixed:
                    yield _Block(rows, columns, distances, None, None)
                    continue
                same = self._index[rows, None] == self._index[columns]
                if i == j:
                    yield _Block(rows, columns, distances, same.triu(1), (~same).triu(1))
                else:
                    yield _Block(rows, columns, distances, same, ~same)
