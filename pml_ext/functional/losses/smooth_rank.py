"""Smoothed ranks: the number of closer items, counted by sigmoids instead of steps."""

from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from pml_ext._ops.blocks import row_blocks
from pml_ext._ops.transforms import under_transform


def smooth_ranks(
    similarities: Tensor,
    queries: Tensor,
    items: Tensor,
    temperature: float,
    among: Tensor | None = None,
    *,
    entries: int | None = None,
) -> tuple[Tensor, Tensor]:
    """r = 1 + Σ_z σ((s_z − s)/temperature) over all other items z, for (P,) queries (rows) and items (columns).

    Returns (P,) ranks among all items of the row, and among the items marked by `among`: (B, R), true at the P pairs.
    Items at −inf do not count and are not among the pairs. Memory: the similarities' gradient and one (pairs, R) block.
    """
    if under_transform():
        return _plain(similarities, queries, items, temperature, among, entries)
    ranks: tuple[Tensor, Tensor] = _SmoothRanks.apply(similarities, queries, items, temperature, among, entries)
    return ranks


class _SmoothRanks(torch.autograd.Function):
    """Works in blocks that backward recomputes; second derivatives use `_plain`."""

    @staticmethod
    def forward(
        ctx: Any,
        similarities: Tensor,
        queries: Tensor,
        items: Tensor,
        temperature: float,
        among: Tensor | None,
        entries: int | None,
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(similarities, queries, items, among)
        ctx.temperature, ctx.entries = temperature, entries
        ranks, ranks_among = (similarities.new_empty(len(queries)) for _ in range(2))
        for block in row_blocks(len(queries), similarities.shape[1], similarities.device, entries=entries):
            closer = _compare(similarities, queries[block], items[block], temperature)
            torch.sum(closer, 1, out=ranks[block])
            if among is not None:
                closer.mul_(among.index_select(0, queries[block]))
            torch.sum(closer, 1, out=ranks_among[block])
        # The sums count the item itself as σ(0) = ½; ranks start at 1.
        return ranks.add_(0.5), ranks_among.add_(0.5)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, grad_among: Tensor) -> tuple[Tensor | None, ...]:
        similarities, queries, items, among = ctx.saved_tensors
        if torch.is_grad_enabled():  # the gradient may be differentiated
            ranks = _plain(similarities, queries, items, ctx.temperature, among, ctx.entries)
            return *torch.autograd.grad(ranks, similarities, (grad, grad_among), create_graph=True), *[None] * 5
        result = torch.zeros_like(similarities, memory_format=torch.contiguous_format)
        grad, grad_among = grad / ctx.temperature, grad_among / ctx.temperature
        for block in row_blocks(len(queries), similarities.shape[1], similarities.device, entries=ctx.entries):
            query, item = queries[block], items[block]
            closer = _compare(similarities, query, item, ctx.temperature)
            slope = closer.addcmul_(closer, closer, value=-1)  # σ' = σ − σ²
            if among is None:
                slope.mul_((grad[block] + grad_among[block]).unsqueeze(1))
            else:
                by_entry = among.index_select(0, query).to(slope.dtype).mul_(grad_among[block].unsqueeze(1))
                slope.mul_(by_entry.add_(grad[block].unsqueeze(1)))
            slope.scatter_add_(1, item.unsqueeze(1), -slope.sum(1, keepdim=True))
            result.index_add_(0, query, slope)
        return result, *[None] * 5


def _plain(
    similarities: Tensor, queries: Tensor, items: Tensor, temperature: float, among: Tensor | None, entries: int | None
) -> tuple[Tensor, Tensor]:
    """`smooth_ranks` by ordinary operations, in blocks that every backward recomputes."""
    ranks, ranks_among = [similarities.new_zeros(0)], [similarities.new_zeros(0)]
    for block in row_blocks(len(queries), similarities.shape[1], similarities.device, entries=entries):
        arguments = (similarities, queries[block], items[block], temperature, among)
        if under_transform():  # torch.func does not support checkpointing
            pair = _plain_block(*arguments)
        else:
            pair = checkpoint(_plain_block, *arguments, use_reentrant=False)
        ranks.append(pair[0])
        ranks_among.append(pair[1])
    nothing = 0 * similarities[:, :0].sum()  # a gradient path even without pairs
    return torch.cat(ranks) + nothing, torch.cat(ranks_among) + nothing


def _plain_block(
    similarities: Tensor, queries: Tensor, items: Tensor, temperature: float, among: Tensor | None
) -> tuple[Tensor, Tensor]:
    rows = similarities[queries]
    closer = ((rows - rows.gather(1, items.unsqueeze(1))) / temperature).sigmoid()
    marked = closer if among is None else closer * among[queries]
    return closer.sum(1) + 0.5, marked.sum(1) + 0.5


def _compare(similarities: Tensor, queries: Tensor, items: Tensor, temperature: float) -> Tensor:
    """(P, R): σ((s_z − s)/temperature) for every item z of the row."""
    rows = similarities.index_select(0, queries)
    return rows.sub_(rows.gather(1, items.unsqueeze(1))).div_(temperature).sigmoid_()
