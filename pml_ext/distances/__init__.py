"""Distances that replace another one."""

from pml_ext.distances.injected import InjectedDistance, inject, run_with_distance
from pml_ext.distances.loop import check_loop_distance, loop_matrix

__all__ = ["InjectedDistance", "check_loop_distance", "inject", "loop_matrix", "run_with_distance"]


def __dir__() -> list[str]:
    return __all__
