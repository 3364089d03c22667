"""The default sizes of the blocks in which large tensors are worked on.

A kernel with another measured size keeps it beside it, and says why.
"""

from collections.abc import Iterator

import torch

from pml_ext._checks import check_whole

ENTRIES = 2**18
"""Of one block on a processor: the few tensors of that size in use stay in its cache."""

ENTRIES_ON_A_DEVICE = 2**22
"""Of one block on a GPU, where a launch costs more than the memory it reads: this only bounds the memory."""

SIDE = 1024
"""Rows and columns of one block of a matrix product over all pairs of a data set."""


def block_entries(device: torch.device, entries: int | None = None) -> int:
    """`entries`, or where that is None the block size of the device."""
    if entries is not None:
        check_whole(entries, "entries", 0)
        return entries
    return ENTRIES if device.type == "cpu" else ENTRIES_ON_A_DEVICE


def rows_of_a_block(width: int, device: torch.device, *, entries: int | None = None) -> int:
    """How many rows of `width` entries one block has, at least 1."""
    return max(1, block_entries(device, entries) // max(1, width))


def row_blocks(rows: int, width: int, device: torch.device, *, entries: int | None = None) -> Iterator[slice]:
    """The rows of a (rows, width) tensor, one block after the other.

    Args:
        entries: of one block; None: the block size of the device.
    """
    step = rows_of_a_block(width, device, entries=entries)
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))
