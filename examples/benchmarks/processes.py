"""Processes of one thread that measure together: the work of one process, and the same divided among all."""

import ctypes
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from measure import Step, peak_bytes
from torch import Tensor, distributed


def on_ranks(ranks: int, work: Callable[..., None], *args: Any) -> None:
    """Call work(rank, *args) in so many processes, which are the default group; it is picklable."""
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(_rank, (ranks, folder, work, args), nprocs=ranks)


def _rank(rank: int, ranks: int, folder: str, work: Callable[..., None], args: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", f"file://{folder}/group", rank=rank, world_size=ranks)
    work(rank, *args)
    distributed.barrier()
    distributed.destroy_process_group()


def peak_after_others(step: Step) -> int:
    """`peak_bytes` on the CPU, in a process that has done other steps: what its allocator keeps of them goes first."""
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    return peak_bytes(lambda: None, step, torch.device("cpu"))


def compare(alone: Step, together: Step, rounds: int) -> Tensor:
    """(2, 3) peak bytes, seconds on the clock and CPU seconds: of rank 0 alone, and the worst of all ranks together.

    Times are medians over rounds in which both take turns. Every rank calls it.
    """
    first = distributed.get_rank() == 0
    forms = ((alone, first), (together, True))
    found = []
    for form, takes_part in forms:
        if takes_part:
            form()  # loads libraries and compiled loops
        found.append([peak_after_others(form) if takes_part else 0])
        distributed.barrier()
    times: list[list[tuple[float, float]]] = [[], []]
    for _ in range(rounds):
        for (form, takes_part), kept in zip(forms, times, strict=True):
            distributed.barrier()
            begin, cpu = time.perf_counter(), time.process_time()
            if takes_part:
                form()
            kept.append((time.perf_counter() - begin, time.process_time() - cpu))
            distributed.barrier()
    for numbers, kept in zip(found, times, strict=True):
        numbers += [statistics.median(part) for part in zip(*kept, strict=True)]
    worst = torch.tensor(found, dtype=torch.float64)
    distributed.all_reduce(worst, distributed.ReduceOp.MAX)
    return worst
