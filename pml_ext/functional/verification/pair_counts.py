"""One pass over all pairs of a set: their scores in fine bins, and the single scores of some ranges."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from pml_ext._ops.distributed import gather_rows, lengths_of_ranks, sum_over_ranks
from pml_ext._ops.precision import full_precision
from pml_ext.functional.pairwise.compiled_loops import Loops
from pml_ext.functional.pairwise.pair_blocks import Block
from pml_ext.functional.pairwise.pair_distances import PairDistances
from pml_ext.functional.verification.counting_loops import compiled_count_and_find
from pml_ext.functional.verification.histogram import ScoreHistogram

Range = tuple[float, float]
"""low <= score < high."""
Kept = tuple[Tensor, Tensor]
"""(P,) scores and whether each is of one class."""

# From this size compiled loops save more time than loading them costs within two or three calls of a process.
_WORTH_LOADING = 8000
_SEARCHED_AT_ONCE = 2**16  # temporaries stay in the cache


def count_scores(pairs: PairDistances, ranges: Sequence[Range], *, most: int) -> tuple[ScoreHistogram, Kept | None]:
    """Counts of all pairs, of all ranks, and the pairs in any of the ranges; None where these are more than `most`.

    All scores are counted as impostors', and the few genuine ones moved: a look at every pair's classes would take a
    quarter of the product's time.
    """
    histogram = ScoreHistogram(device=pairs.unit.device)
    count = _counter(pairs, histogram)
    kept: list[Kept] | None = []
    room = most
    with full_precision(pairs.unit.device):
        for block in pairs.blocks():
            if block.mixed:
                genuine = block.cosines.view(-1)[pairs._positive_places(block)[0]]
                histogram.update(genuine, torch.ones_like(genuine, dtype=torch.bool))
            found = count(block, [] if kept is None else ranges)
            room -= len(found[0])
            if room < 0:
                kept = None
            elif kept is not None:
                kept.append(found)
    histogram.counts[0] -= histogram.counts[1]
    sum_over_ranks(histogram.counts, pairs.group)
    return histogram, _of_all_ranks(kept, pairs, most)


def _counter(pairs: PairDistances, histogram: ScoreHistogram) -> Callable[[Block, Sequence[Range]], Kept]:
    """What counts a block's pairs as impostors', and gives those in some ranges."""
    if pairs.unit.device.type == "cpu" and len(pairs.unit) >= _WORTH_LOADING:
        loops = compiled_count_and_find(pairs.unit[:0].numpy().dtype)
        if loops is not None:
            room = pairs.unit.new_empty(pairs._block_rows**2)
            return partial(count_by_loops, loops, (room, torch.empty_like(room, dtype=torch.bool)), pairs, histogram)
    return partial(count_by_search, pairs, histogram)


def count_by_loops(
    loops: Loops, room: Kept, pairs: PairDistances, histogram: ScoreHistogram, block: Block, ranges: Sequence[Range]
) -> Kept:
    """By compiled loops on the CPU. room: for the pairs of the largest block, overwritten."""
    cosines, classes = block.cosines.numpy(), pairs.index.numpy()
    first = np.zeros(len(cosines), np.int64)
    if block.rows.start == block.columns.start:
        first += np.arange(1, len(cosines) + 1)
    ends = np.array(ranges or [(np.inf, np.inf)], cosines.dtype).T.copy()
    sides = map(cosines.dtype.type, (histogram.low, histogram.high, histogram.BINS_PER_UNIT))
    of_sides = classes[block.rows], classes[block.columns]
    scores, same = room
    found = loops(cosines, first, *ends, *sides, histogram.counts[0].numpy(), *of_sides, scores.numpy(), same.numpy())
    return scores[:found].clone(), same[:found].clone()


def count_by_search(pairs: PairDistances, histogram: ScoreHistogram, block: Block, ranges: Sequence[Range]) -> Kept:
    """On any device."""
    flat, width = block.cosines.view(-1), block.cosines.shape[1]
    if block.rows.start == block.columns.start:
        square = block.cosines[:, : len(block.cosines)]
        square.masked_fill_(torch.ones_like(square, dtype=torch.bool).tril_(), -torch.inf)
        histogram.counts[0, 0] -= len(square) * (len(square) + 1) // 2  # they are no pairs
    histogram.count_as_impostors(flat)
    lowest = max(min((low for low, _ in ranges), default=torch.inf), torch.finfo(flat.dtype).min)  # −inf is no pair
    place = _places_from(lowest, flat)
    scores, inside = flat[place], torch.zeros_like(place, dtype=torch.bool)
    for low, high in ranges:
        inside |= (scores >= low) & (scores < high)
    row, column = place[inside] // width, place[inside] % width
    return scores[inside], pairs.index[block.rows][row] == pairs.index[block.columns][column]


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
