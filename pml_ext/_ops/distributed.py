"""Share work and results among the ranks of a process group. With group=None, this process does everything."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, pairwise
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch import distributed as dist

Item = TypeVar("Item")


def rank_and_ranks() -> tuple[int, int]:
    """Returns rank and world size of the default process group; (0, 1) without one."""
    if not (dist.is_available() and dist.is_initialized()):
        return 0, 1
    return dist.get_rank(), dist.get_world_size()


def share_of_rank(items: Iterable[Item], group: dist.ProcessGroup | None) -> Iterator[Item]:
    """Returns every world_size-th item, starting at this rank."""
    if group is None:
        return iter(items)
    return islice(items, dist.get_rank(group), None, dist.get_world_size(group))


def rows_of_rank(count: int, size: int, group: dist.ProcessGroup | None) -> tuple[slice, list[int]]:
    """Returns this rank's part of `count` rows and all part lengths; parts are equal numbers of `size`-row blocks."""
    if group is None:
        return slice(0, count), [count]
    blocks, ranks, rank = -(-count // size), dist.get_world_size(group), dist.get_rank(group)
    ends = [min(count, size * (blocks * each // ranks)) for each in range(ranks + 1)]
    return slice(ends[rank], ends[rank + 1]), [end - begin for begin, end in pairwise(ends)]


def sum_over_ranks(values: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Sum in place."""
    if group is not None:
        dist.all_reduce(values, group=group)
    return values


def norm_over_ranks(values: Tensor, order: float, group: dist.ProcessGroup | None) -> Tensor:
    """Returns the norm over all ranks' values, which may be sparse."""
    norm: Tensor = torch.linalg.vector_norm(values.coalesce().values() if values.is_sparse else values, order)
    if group is None:
        return norm
    if order == torch.inf:
        dist.all_reduce(norm, dist.ReduceOp.MAX, group=group)
        return norm
    total: Tensor = sum_over_ranks(norm**order, group) ** (1 / order)
    return total


def gather_rows(rows: Tensor, group: dist.ProcessGroup | None, *, lengths: Sequence[int] | None = None) -> Tensor:
    """Concatenate the (n, …) rows of all ranks, in rank order; only n may differ; lengths: n of each rank, if known."""
    if group is None:
        return rows
    sizes = lengths_of_ranks(rows, group) if lengths is None else lengths
    # Pad, because not every backend gathers tensors of different sizes.
    padded = rows.contiguous()
    if len(rows) < max(sizes):
        padded = rows.new_zeros((max(sizes), *rows.shape[1:]))
        padded[: len(rows)] = rows
    gathered = rows.new_empty((len(sizes), *padded.shape))
    dist.all_gather(list(gathered.unbind()), padded, group=group)
    if min(sizes) == max(sizes):
        return gathered.flatten(0, 1)
    return torch.cat([part[:size] for part, size in zip(gathered, sizes, strict=True)])


def gather_with_gradient(rows: Tensor, group: dist.ProcessGroup, *, lengths: Sequence[int] | None = None) -> Tensor:
    """`gather_rows`, whose backward pass returns the sum of all ranks' gradients by this rank's rows."""
    lengths = lengths_of_ranks(rows, group) if lengths is None else lengths
    gathered: Tensor = _Gather.apply(rows, group, lengths)
    return gathered


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, group: dist.ProcessGroup, lengths: Sequence[int]) -> Tensor:
        ctx.group, ctx.lengths = group, lengths
        return gather_rows(rows, group, lengths=lengths)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return sum_rows_of_rank(grad, ctx.lengths, ctx.group), None, None


def gather_in_order(
    rows: Tensor,
    numbers: Tensor,
    group: dist.ProcessGroup | None,
    device: torch.device | None = None,
    *,
    everywhere: bool,
    step: int = 2**16,
) -> Tensor:
    """Returns (N, …) rows of all ranks, ordered by number; unless `everywhere`, only rank 0 gets them (others 0 rows).

    rows: (n, …), only n may differ; numbers: (n,) int64, on all ranks together 0 … N − 1. device: communication
    device, None: that of the rows; step: rows sent per rank at a time, to limit the memory on the device.
    """
    if group is None:
        return rows[numbers.argsort()]
    device = device or rows.device
    sizes = lengths_of_ranks(numbers.to(device), group)
    places = gather_rows(numbers.to(device), group, lengths=sizes).to(rows.device).split(sizes)
    receives = everywhere or dist.get_rank(group) == 0
    ordered = rows.new_empty((sum(sizes) if receives else 0, *rows.shape[1:]))
    for start in range(0, max(sizes), step):
        # Padded, because not every backend gathers tensors of different sizes.
        sent = torch.zeros((min(step, max(sizes) - start), *rows.shape[1:]), dtype=rows.dtype, device=device)
        part = rows[start : start + step]
        sent[: len(part)] = part
        received = []
        if receives:
            received = [torch.empty_like(sent) for _ in sizes]
        if everywhere:
            dist.all_gather(received, sent, group=group)
        else:
            dist.gather(sent, received or None, dst=dist.get_global_rank(group, 0), group=group)
        for of_rank, came in zip(places, received, strict=False):
            some = of_rank[start : start + step]
            ordered[some] = came[: len(some)].to(rows.device)
    return ordered


def lengths_of_ranks(rows: Tensor, group: dist.ProcessGroup) -> list[int]:
    """Returns the number of rows of each rank."""
    counts = [torch.zeros(1, dtype=torch.int64, device=rows.device) for _ in range(dist.get_world_size(group))]
    dist.all_gather(counts, torch.tensor([len(rows)], device=rows.device), group=group)
    return [int(count) for count in torch.cat(counts).tolist()]


def sum_rows_of_rank(rows: Tensor, lengths: Sequence[int], group: dist.ProcessGroup) -> Tensor:
    """Returns this rank's rows (by `lengths`) of the sum of all ranks' (N, D) tensors.

    Sends half as much as an all-reduce.
    """
    part = lengths[dist.get_rank(group)]
    received = rows.new_empty(len(lengths) * part, *rows.shape[1:])
    dist.all_to_all_single(received, rows.contiguous(), [part] * len(lengths), list(lengths), group=group)
    return received.view(len(lengths), part, *rows.shape[1:]).sum(0)
