"""Smoothed ranks: how many items are closer than one, counted by sigmoids instead of steps."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

# Entries of a (pairs, R) block: it stays in a processor's cache, and on a device bounds the memory.
_BLOCK, _BLOCK_DEVICE = 2**18, 2**22


def smooth_ranks(
    similarities: Tensor, queries: Tensor, items: Tensor, temperature: float, among: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """r = 1 + Σ_z σ((s_z − s)/temperature) over all z but the item itself, at P pairs of a query and an item.

    Args:
        similarities: (B, R); an item at −inf is not counted.
        queries, items: (P,) rows and columns, none of them at −inf.
        temperature: above 0.
        among: (B, R) bool, true at the P pairs; None for a second result that is the first.
    Returns:
        (P,) ranks among all items of the row, and among those marked. Beside the similarities it takes memory for their
        gradient and for one block. No double backward.
    """
    ranks: tuple[Tensor, Tensor] = _SmoothRanks.apply(similarities, queries, items, temperature, among)
    return ranks


class _SmoothRanks(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, similarities: Tensor, queries: Tensor, items: Tensor, temperature: float, among: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(similarities, queries, items, among)
        ctx.temperature = temperature
        ranks, ranks_among = (similarities.new_empty(len(queries)) for _ in range(2))
        for query, item, rank, rank_among in _blocks(similarities, queries, items, ranks, ranks_among):
            closer = _closer(similarities, query, item, temperature)
            torch.sum(closer, 1, out=rank)
            torch.sum(closer if among is None else closer.mul_(among.index_select(0, query)), 1, out=rank_among)
        # The item itself stands at σ(0) = ½ in the sums, and its rank starts at 1.
        return ranks.add_(0.5), ranks_among.add_(0.5)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, grad_among: Tensor) -> tuple[Tensor | None, ...]:
        similarities, queries, items, among = ctx.saved_tensors
        result = torch.zeros_like(similarities, memory_format=torch.contiguous_format)
        blocks = _blocks(similarities, queries, items, grad / ctx.temperature, grad_among / ctx.temperature)
        for query, item, by_rank, by_rank_among in blocks:
            closer = _closer(similarities, query, item, ctx.temperature)
            slope = closer.addcmul_(closer, closer, value=-1)  # σ' = σ − σ²
            if among is None:
                slope.mul_((by_rank + by_rank_among).unsqueeze(1))
            else:
                by_entry = among.index_select(0, query).to(slope.dtype).mul_(by_rank_among.unsqueeze(1))
                slope.mul_(by_entry.add_(by_rank.unsqueeze(1)))
            slope.scatter_add_(1, item.unsqueeze(1), -slope.sum(1, keepdim=True))
            result.index_add_(0, query, slope)
        return result, None, None, None, None


def _closer(similarities: Tensor, queries: Tensor, items: Tensor, temperature: float) -> Tensor:
    """(P, R): σ((s_z − s)/temperature) for every item z of the row."""
    rows = similarities.index_select(0, queries)
    return rows.sub_(rows.gather(1, items.unsqueeze(1))).div_(temperature).sigmoid_()


def _blocks(similarities: Tensor, *pairs: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The same of the P pairs of each tensor, some at a time."""
    entries = _BLOCK if similarities.device.type == "cpu" else _BLOCK_DEVICE
    step = max(1, entries // similarities.shape[1])
    return zip(*(tensor.split(step) for tensor in pairs), strict=True)
