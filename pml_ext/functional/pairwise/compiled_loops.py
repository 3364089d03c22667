"""Compiles the loops that count pairs, if numba is usable."""

import logging
from collections.abc import Callable
from importlib import import_module

Loops = Callable[..., int | None]


def compile_loops(module: str, name: str, try_out: Callable[[Loops], None]) -> Loops | None:
    """Returns a module's function compiled by numba, after `try_out` has called it; None if either fails.

    Importing numba takes 0.3 s, compiling about a second unless numba has cached the result.
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
            plain: Loops = getattr(import_module(module), name)
            loops: Loops = numba.njit(cache=cache, nogil=True)(plain)
            if loops is plain:  # NUMBA_DISABLE_JIT is set; uncompiled loops take minutes
                return None
            try_out(loops)
            return loops
        except Exception as error:
            failure = error
    _warn(failure)
    return None


def _warn(error: Exception) -> None:
    reason = str(error).strip().splitlines()[:1] or [type(error).__name__]
    logging.getLogger("pml_ext").warning("pairs are counted without numba, which does not work here: %s", reason[0])
