"""Time, memory and growth of a step on a CPU or a CUDA device."""

import math
import re
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

Step = Callable[[], object]


def median_times(steps: Mapping[str, Step], device: torch.device, budget: float) -> dict[str, float]:
    """Median seconds of each step, in rounds of one call each, until `budget` seconds are spent.

    At least 3 rounds, unless one round takes ten budgets; at most 200.

    On a processor it is the process's CPU time, which another process on the machine does not lengthen (but for the
    caches that the two share). Rounds, so that a slow minute of the machine falls on all steps alike.
    """
    for step in steps.values():
        step()
    times: dict[str, list[float]] = {name: [] for name in steps}
    spent, rounds = 0.0, 0
    while rounds == 0 or (rounds < 3 and spent < 10 * budget) or (rounds < 200 and spent < budget):
        for name, step in steps.items():
            seconds = _cuda_seconds(step) if device.type == "cuda" else _cpu_seconds(step)
            times[name].append(seconds)
            spent += seconds
        rounds += 1
    return {name: statistics.median(values) for name, values in times.items()}


def peak_bytes(warm_up: Step, step: Step, device: torch.device) -> int:
    """By how much a step raises the peak memory. On a CPU, call it in a fresh process.

    Args:
        warm_up: a small step of the same kind, to load libraries and their buffers.
        step: the step to measure.
        device: on a CUDA device its allocator's peak, else the peak of the resident set (Linux only).
    """
    warm_up()
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        return torch.cuda.max_memory_allocated() - before
    Path("/proc/self/clear_refs").write_text("5")  # the peak becomes what is resident now
    before = _status_bytes("VmRSS")
    step()
    return max(0, _status_bytes("VmHWM") - before)


def growth_exponent(sizes: list[int], values: list[float]) -> float:
    """k of the least-squares fit value ∝ size^k; nan for fewer than two sizes."""
    if len(sizes) < 2:
        return math.nan
    return statistics.linear_regression([math.log(s) for s in sizes], [math.log(max(v, 1)) for v in values]).slope


def _cpu_seconds(step: Step) -> float:
    start = time.process_time()
    step()
    return time.process_time() - start


def _cuda_seconds(step: Step) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    step()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1000


def _status_bytes(key: str) -> int:
    found = re.search(rf"{key}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024
