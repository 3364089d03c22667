"""Default sizes of the blocks in which large tensors are processed."""

from collections.abc import Iterator

import torch

from pml_ext._checks import check_whole

ENTRIES = 2**18
"""Of one block on the CPU: a few tensors of this size fit in the cache."""

ENTRIES_ON_A_DEVICE = 2**22
"""Of one block on a GPU, where it only bounds the memory, as launches cost more than memory access."""

SIDE = 1024
"""Rows and columns of one block of a matrix product over all pairs of a data set."""


def block_entries(device: torch.device, entries: int | None = None) -> int:
    """`entries`, or the device's block size if None."""
    if entries is not None:
        check_whole(entries, "entries", 0)
        return entries
    return ENTRIES if device.type == "cpu" else ENTRIES_ON_A_DEVICE


def rows_of_a_block(width: int, device: torch.device, *, entries: int | None = None) -> int:
    """The number of rows of `width` entries in one block, at least 1."""
    return max(1, block_entries(device, entries) // max(1, width))


def row_blocks(rows: int, width: int, device: torch.device, *, entries: int | None = None) -> Iterator[slice]:
    """Yield the rows of a (rows, width) tensor in blocks of `entries` entries; None: the device's block size."""
    step = rows_of_a_block(width, device, entries=entries)
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))
