"""Whether the loops that count pairs can be compiled here, and what they are then."""

import logging
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

CountRows = Callable[..., None]


@lru_cache
def compiled_count_rows(cosine: np.dtype[Any], by_class: np.dtype[Any], pooled: np.dtype[Any]) -> CountRows | None:
    """`counting_kernel.count_rows`, compiled by numba for these types of numbers; None where that cannot be.

    Takes 0.3 s for numba itself, and 1.2 s where no earlier process has left what it compiled in numba's cache.
    """
    try:
        import numba
    except ModuleNotFoundError:
        return None
    except Exception as error:  # it looks at the versions of Python and numpy
        _say(error)
        return None
    for cache in (True, False):  # False: there is no folder that it may write to
        try:
            from pml_ext.functional.operating_points import counting_kernel

            count_rows: CountRows = numba.njit(cache=cache, nogil=True)(counting_kernel.count_rows)
            if count_rows is counting_kernel.count_rows:  # by NUMBA_DISABLE_JIT; uncompiled they would take minutes
                return None
            _try(count_rows, cosine, by_class, pooled)
            return count_rows
        except Exception as error:
            failure = error
    _say(failure)
    return None


def _try(count_rows: CountRows, cosine: np.dtype[Any], by_class: np.dtype[Any], pooled: np.dtype[Any]) -> None:
    """Compile it, on one pair."""
    cells, counters = np.zeros(1, np.int32), (np.zeros(1, by_class), np.zeros(1, pooled))
    numbers = map(cosine.type, (0, 1, 0, 0))
    count_rows(np.ones((1, 1), cosine), np.zeros(1, np.int64), *numbers, np.uint32(0), cells, cells, *counters)
    if [counter.item() for counter in counters] != [2, 1]:
        raise RuntimeError(f"one pair was counted as {counters[0].item() / 2:g} and {counters[1].item()}")


def _say(error: Exception) -> None:
    reason = str(error).strip().splitlines()[:1] or [type(error).__name__]
    logging.getLogger("pml_ext").warning("OPIS counts without numba, which cannot be used here: %s", reason[0])
