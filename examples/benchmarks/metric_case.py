"""The parts of a metrics benchmark: methods that compute the same on sets of several sizes, and goals."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from measure import Step

Size = tuple[int, ...]  # (samples,) or (queries, gallery)


@dataclass(frozen=True)
class Method:
    """`make` prepares a step for a size and device; sizes above `up_to` (by the first number) are skipped."""

    make: Callable[[Size, torch.device], Step]
    up_to: int | None = None


@dataclass(frozen=True)
class Goal:
    """`method` takes at most `ratio` times as long as `against`, or at most `megabytes`, from size `at` on."""

    method: str
    against: str = ""
    ratio: float | None = None
    megabytes: float | None = None
    at: int = 0


@dataclass(frozen=True)
class MetricCase:
    """Methods timed together; ratios are to `floor`. `once`: from this first number on, one round only.

    `small` warms a process up before its memory is measured; `quick` is the size of a trial run.
    """

    methods: dict[str, Method]
    floor: str
    sizes: tuple[Size, ...]
    small: Size
    quick: Size
    goals: tuple[Goal, ...] = ()
    once: int | None = None
