"""The pairs that a matcher gets most wrong: two identities most alike, and two samples of one least alike."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from pml_ext._ops.numerics import full_precision
from pml_ext.functional.pairwise.pair_distances import PairDistances
from pml_ext.metrics.threshold.fields import Sample, WorstPair, WorstPairs

Found = list[tuple[float, int, int]]
"""Values of pairs and the places of both samples, ascending by value."""


def most_wrong_pairs(
    pairs: PairDistances,
    ids: Tensor,
    names: Sequence[int | str],
    *,
    rows: Sequence[int] | None,
    paths: Sequence[str | Path | None] | None,
    count: int = 6,
) -> WorstPairs:
    """The impostor pairs of the highest cosine and the genuine pairs of the lowest, worst first; at most `count` each.

    ids, names: (N,) as the pairs were made from, and the name of each id; rows, paths: the N samples' numbers where
    they come from, and their pictures. Genuine pairs are those that `pairs` counts.
    """
    order = torch.argsort(ids, stable=True).tolist()
    closest: Found = []
    farthest: Found = []

    def keep_smallest(found: Found, values: Tensor, one: Tensor, other: Tensor) -> None:
        best, at = values.topk(min(count, len(values)), largest=False)
        new = zip(best.tolist(), one[at].tolist(), other[at].tolist(), strict=True)
        found[:] = sorted([*found, *new])[:count]

    with full_precision(pairs.unit.device):
        for block in pairs.blocks():
            if block.mixed:
                flat, row, column = pairs._positive_places(block)
                values = block.cosines.reshape(-1)[flat]
                keep_smallest(farthest, values, row + block.rows.start, column + block.columns.start)
                negative = pairs._negative(block)
                block.cosines.masked_fill_(~negative, -torch.inf)
            best, place = block.cosines.reshape(-1).topk(min(count, block.cosines.numel()))
            width = block.cosines.shape[1]
            kept = best > -torch.inf
            best, place = best[kept], place[kept]
            keep_smallest(closest, -best, place // width + block.rows.start, place % width + block.columns.start)

    def sample(place: int) -> Sample:
        at = order[place]
        path = None if paths is None else paths[at]
        return Sample(at if rows is None else int(rows[at]), names[int(ids[at])], None if path is None else str(path))

    def named(found: Found, sign: int) -> tuple[WorstPair, ...]:
        return tuple(WorstPair(sign * value, sample(one), sample(other)) for value, one, other in found)

    return WorstPairs(named(closest, -1), named(farthest, 1))
