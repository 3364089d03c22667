"""Compiles the loops that count pairs, if numba works here."""

import logging
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

CountRows = Callable[..., None]


@lru_cache
def compiled_count_rows(cosine: np.dtype[Any], by_class: np.dtype[Any], pooled: np.dtype[Any]) -> CountRows | None:
    """`counting_kernel.count_rows` compiled by numba for these dtypes; None if that fails.

    Importing numba takes 0.3 s, compiling 1.2 s unless numba has cached the result.
    """
    try:
        import numba
    except ModuleNotFoundError:
        return None
    except Exception as error:  # numba rejects some versions of Python and numpy
        _warn(error)
        return None
    for cache in (True, False):  # False: no writable cache folder
        try:
            from pml_ext.functional.operating_points import counting_kernel

            count_rows: CountRows = numba.njit(cache=cache, nogil=True)(counting_kernel.count_rows)
            if count_rows is counting_kernel.count_rows:  # NUMBA_DISABLE_JIT is set; uncompiled loops take minutes
                return None
            _compile(count_rows, cosine, by_class, pooled)
            return count_rows
        except Exception as error:
            failure = error
    _warn(failure)
    return None


def _compile(count_rows: CountRows, cosine: np.dtype[Any], by_class: np.dtype[Any], pooled: np.dtype[Any]) -> None:
    """Trigger the compilation with one pair and check the result."""
    cells, counters = np.zeros(1, np.int32), (np.zeros(1, by_class), np.zeros(1, pooled))
    numbers = map(cosine.type, (0, 1, 0, 0))
    count_rows(np.ones((1, 1), cosine), np.zeros(1, np.int64), *numbers, np.uint32(0), cells, cells, *counters)
    if [counter.item() for counter in counters] != [2, 1]:
        raise RuntimeError(f"one pair was counted as {counters[0].item() / 2:g} and {counters[1].item()}")


def _warn(error: Exception) -> None:
    reason = str(error).strip().splitlines()[:1] or [type(error).__name__]
    logging.getLogger("pml_ext").warning("OPIS counts pairs without numba, which does not work here: %s", reason[0])
