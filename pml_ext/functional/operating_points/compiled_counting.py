"""The compiled loops of OPIS."""

from functools import lru_cache
from typing import Any

import numpy as np

from pml_ext.functional.pairwise.compiled_loops import Loops, compile_loops


@lru_cache
def compiled_count_rows(cosine: np.dtype[Any], by_class: np.dtype[Any], pooled: np.dtype[Any]) -> Loops | None:
    """`counting_kernel.count_rows` for these dtypes; None where it cannot be compiled."""

    def count_one_pair(count_rows: Loops) -> None:
        cells, counters = np.zeros(1, np.int32), (np.zeros(1, by_class), np.zeros(1, pooled))
        numbers = map(cosine.type, (0, 1, 0, 0))
        count_rows(np.ones((1, 1), cosine), np.zeros(1, np.int64), *numbers, np.uint32(0), cells, cells, *counters)
        if [counter.item() for counter in counters] != [2, 1]:
            raise RuntimeError(f"one pair was counted as {counters[0].item() / 2:g} and {counters[1].item()}")

    return compile_loops("pml_ext.functional.operating_points.counting_kernel", "count_rows", count_one_pair)
