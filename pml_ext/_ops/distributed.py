"""Work and results shared by the ranks of a process group; with no group, all of it is this process's."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

import torch
from torch import Tensor
from torch import distributed as dist

Item = TypeVar("Item")


def own_share(items: Iterable[Item], group: dist.ProcessGroup | None) -> Iterator[Item]:
    """Every world_size-th item, beginning at this rank's number."""
    if group is None:
        return iter(items)
    return islice(items, dist.get_rank(group), None, dist.get_world_size(group))


def sum_over_ranks(values: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """The sum, in place."""
    if group is not None:
        dist.all_reduce(values, group=group)
    return values


def gather_rows(rows: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """The rows of all ranks, in the order of the ranks; each may have another number of them.

    Args:
        rows: (n, …), alike but for n on every rank.
    """
    if group is None:
        return rows
    world = dist.get_world_size(group)
    counts = [torch.zeros(1, dtype=torch.int64, device=rows.device) for _ in range(world)]
    dist.all_gather(counts, torch.tensor([len(rows)], device=rows.device), group=group)
    sizes = [int(count) for count in counts]
    # Not every backend gathers tensors of several sizes: the shorter ones are filled up.
    padded = rows.new_zeros((max(sizes), *rows.shape[1:]))
    padded[: len(rows)] = rows
    gathered = [torch.empty_like(padded) for _ in range(world)]
    dist.all_gather(gathered, padded, group=group)
    return torch.cat([part[:size] for part, size in zip(gathered, sizes, strict=True)])
