"""The pairs that a matcher gets most wrong: two identities most alike, and two samples of one least alike."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from pml_ext._ops.precision import full_precision
from pml_ext.functional.pairwise.pair_distances import PairDistances
from pml_ext.metrics.threshold.fields import Sample, WorstPair, WorstPairs

SHOWN = 6


def most_wrong_pairs(
    pairs: PairDistances,
    ids: Tensor,
    names: Sequence[int | str],
    *,
    rows: Sequence[int] | None,
    paths: Sequence[str | Path | None] | None,
    count: int = SHOWN,
) -> WorstPairs:
    """The impostor pairs of the highest cosine and the genuine pairs of the lowest, worst first.

    Args:
        pairs: of the set; genuine are the positive pairs that it counts.
        ids, names: (N,) as the pairs were made from; the name of each id.
        rows, paths: N numbers of the samples where they come from, and their pictures; None: 0, 1, …, and none.
        count: of each kind, at most.
    """
    order = torch.argsort(ids, stable=True).tolist()
    closest, farthest = _Smallest(count), _Smallest(count)
    with full_precision(pairs.unit.device):
        for block in pairs.blocks():
            if block.mixed:
                flat, row, column = pairs._positive_places(block)
                values = block.cosines.reshape(-1)[flat]
                farthest.add(values, row + block.rows.start, column + block.columns.start)
                negative = pairs._negative(block)
                block.cosines.masked_fill_(~negative, -torch.inf)
            best, place = block.cosines.reshape(-1).topk(min(count, block.cosines.numel()))
            width = block.cosines.shape[1]
            kept = best > -torch.inf
            best, place = best[kept], place[kept]
            closest.add(-best, place // width + block.rows.start, place % width + block.columns.start)

    def sample(place: int) -> Sample:
        at = order[place]
        path = None if paths is None else paths[at]
        return Sample(at if rows is None else int(rows[at]), names[int(ids[at])], None if path is None else str(path))

    def named(found: list[tuple[float, int, int]], sign: int) -> tuple[WorstPair, ...]:
        return tuple(WorstPair(sign * value, sample(one), sample(other)) for value, one, other in found)

    return WorstPairs(named(closest.found, -1), named(farthest.found, 1))


class _Smallest:
    """The pairs with the smallest values seen so far, ascending."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.found: list[tuple[float, int, int]] = []

    def add(self, values: Tensor, one: Tensor, other: Tensor) -> None:
        if not len(values):
            return
        best, at = values.topk(min(self.count, len(values)), largest=False)
        new = zip(best.tolist(), one[at].tolist(), other[at].tolist(), strict=True)
        self.found = sorted([*self.found, *new])[: self.count]
