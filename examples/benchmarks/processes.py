"""Processes of one thread that measure together, and their memory."""

import ctypes
import tempfile
from collections.abc import Callable
from typing import Any

import torch
from measure import Step, peak_bytes
from torch import distributed


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
