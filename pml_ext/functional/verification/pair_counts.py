"""One pass over all pairs of a set: their scores in fine bins, and the single scores of some ranges."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from pml_ext._ops.distributed import gather_rows, lengths_of_ranks, sum_over_ranks
from pml_ext._ops.precision import full_precision
from pml_ext.functional.pairwise.pair_blocks import Block
from pml_ext.functional.pairwise.pair_distances import PairDistances
from pml_ext.functional.verification.histogram import ScoreHistogram

Range = tuple[float, float]
"""low <= score < high."""
Kept = tuple[Tensor, Tensor]
"""(P,) scores and whether each is of one class."""

_SEARCHED_AT_ONCE = 2**16  # temporaries stay in the cache


def count_scores(
    pairs: PairDistances, ranges: Sequence[Range], *, most: int
) -> tuple[ScoreHistogram, list[Kept | None]]:
    """Counts of all pairs, of all ranks, and the pairs in each of the ranges; None where these are more than `most`.

    All scores are counted as impostors', and the few genuine ones moved: a look at every pair's classes would take a
    quarter of the product's time.
    """
    histogram = ScoreHistogram(device=pairs.unit.device)
    impossible = 0  # entries of blocks that are no pair, counted in the first bin
    kept: list[list[Kept] | None] = [[] for _ in ranges]
    room = [most] * len(ranges)
    with full_precision(pairs.unit.device):
        for block in pairs.blocks():
            flat = block.cosines.view(-1)
            if block.mixed:
                genuine = flat[pairs._positive_places(block)[0]]
                histogram.update(genuine, torch.ones_like(genuine, dtype=torch.bool))
            if block.rows.start == block.columns.start:
                square = block.cosines[:, : len(block.cosines)]
                square.masked_fill_(torch.ones_like(square, dtype=torch.bool).tril_(), -torch.inf)
                impossible += len(square) * (len(square) + 1) // 2
            histogram.count_as_impostors(flat)
            _keep(block, pairs, ranges, kept, room)
    histogram.counts[0] -= histogram.counts[1]
    histogram.counts[0, 0] -= impossible
    sum_over_ranks(histogram.counts, pairs.group)
    return histogram, [_of_all_ranks(found, pairs, most) for found in kept]


def _keep(
    block: Block, pairs: PairDistances, ranges: Sequence[Range], kept: list[list[Kept] | None], room: list[int]
) -> None:
    """Append the block's pairs in the ranges; None instead where `room` is left for fewer."""
    if not ranges:
        return
    lowest = max(min(low for low, _ in ranges), torch.finfo(block.cosines.dtype).min)  # −inf is no pair
    place = _places_from(lowest, block.cosines.view(-1))
    scores, width = block.cosines.view(-1)[place], block.cosines.shape[1]
    for i, (low, high) in enumerate(ranges):
        so_far = kept[i]
        if so_far is None:
            continue
        inside = (scores >= low) & (scores < high)
        room[i] -= int(inside.sum())
        if room[i] < 0:
            kept[i] = None
            continue
        row, column = place[inside] // width + block.rows.start, place[inside] % width + block.columns.start
        so_far.append((scores[inside], pairs.index[row] == pairs.index[column]))


def _places_from(lowest: float, scores: Tensor) -> Tensor:
    """The indices of the scores >= lowest."""
    if scores.device.type != "cpu":
        return (scores >= lowest).nonzero().squeeze(1)
    # numpy compares and searches eight times faster than torch
    found = [np.flatnonzero(some.numpy() >= lowest) for some in scores.split(_SEARCHED_AT_ONCE)]
    return torch.from_numpy(np.concatenate([part + i * _SEARCHED_AT_ONCE for i, part in enumerate(found)]))


def _of_all_ranks(found: list[Kept] | None, pairs: PairDistances, most: int) -> Kept | None:
    if pairs.group is not None:
        count = most + 1 if found is None else sum(len(part) for part, _ in found)
        if int(sum_over_ranks(torch.tensor(count, device=pairs.unit.device), pairs.group)) > most:
            return None
    if found is None:
        return None
    parts = [(pairs.unit.new_empty(0), pairs.index.new_empty(0, dtype=torch.bool)), *found]
    scores, same = (torch.cat(part) for part in zip(*parts, strict=True))
    if pairs.group is None or not max(lengths := lengths_of_ranks(scores, pairs.group)):
        return scores, same
    return (
        gather_rows(scores, pairs.group, lengths=lengths),
        gather_rows(same.byte(), pairs.group, lengths=lengths).bool(),
    )
