"""Loops that count a block's scores in bins and find those in some ranges, to be compiled by numba."""

from functools import lru_cache
from typing import Any

import numpy as np

from pml_ext.functional.pairwise.compiled_loops import Loops, compile_loops

_AT_ONCE = 1024


def count_and_find(  # type: ignore[no-untyped-def]
    cosines, first, lows, highs, low, high, bins_per_unit, counts, row_classes, column_classes, scores, same
):
    """Count the (r, c) cosines from column first[row] on; write those in some range, and whether they are of one class.

    The bins are those of `ScoreHistogram`. first: (r,) int64; lows, highs: ends of the ranges, low <= cosine < high,
    which like low, high and bins_per_unit have the type of the cosines, float32 or float64; counts, row_classes,
    column_classes: int64; scores, same: the type of the cosines and bool, with room for all. Returns how many it wrote.
    """
    places, near = np.empty(_AT_ONCE, np.int32), np.empty(_AT_ONCE + 1, np.int32)
    shift = np.int32(low * bins_per_unit)
    lowest = lows.min()
    found = 0
    for i in range(cosines.shape[0]):
        row, row_class = cosines[i], row_classes[i]
        for start in range(first[i], row.size, _AT_ONCE):
            piece, classes = row[start : start + _AT_ONCE], column_classes[start : start + _AT_ONCE]
            for j in range(piece.size):  # vectorised
                # Scaling by a power of two and floor are exact, so is the shift of the integers.
                places[j] = np.int32(np.floor(min(max(piece[j], low), high) * bins_per_unit)) - shift
            for j in range(piece.size):
                counts[np.uint32(places[j])] += 1
            count = np.uint32(0)
            for j in range(piece.size):  # without a branch, which a processor could not predict
                near[count] = j
                count += np.uint32(piece[j] >= lowest)
            for k in range(count):
                j = near[k]
                inside = False
                for r in range(lows.size):
                    inside |= (piece[j] >= lows[r]) & (piece[j] < highs[r])
                if inside:
                    scores[found], same[found] = piece[j], classes[j] == row_class
                    found += 1
    return found


@lru_cache
def compiled_count_and_find(score: np.dtype[Any]) -> Loops | None:
    """`count_and_find` for this dtype; None where it cannot be compiled."""

    def count_two_pairs(loops: Loops) -> None:
        counts, scores, same = np.zeros(3, np.int64), np.zeros(1, score), np.ones(1, np.bool_)
        cosines, classes, ends = np.array([[9, -0.5, 0.5]], score), np.arange(3), np.array([[0], [1]], score)
        sides = map(score.type, (-1, 1, 1))
        found = loops(cosines, np.ones(1, np.int64), *ends, *sides, counts, classes[:1], classes, scores, same)
        if (found, scores[0], same[0], *counts) != (1, 0.5, False, 1, 1, 0):
            raise RuntimeError(f"two pairs were counted as {counts.tolist()}, and {found} found")

    return compile_loops(__name__, "count_and_find", count_two_pairs)
