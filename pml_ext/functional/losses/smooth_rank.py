"""Smooth ranks (sigmoids instead of steps count the closer items), with average precision and recall at k."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from pml_ext._ops.custom_gradient import CustomGradient, under_transform
from pml_ext._ops.numerics import row_blocks
from pml_ext._shared.checks import check_above_zero, check_floating, check_mask, is_whole
from pml_ext._shared.errors import ArgumentError


def _ranks(
    similarities: Tensor,
    queries: Tensor,
    items: Tensor,
    temperature: float,
    among: Tensor | None,
    *,
    needs_gradient: bool,
) -> tuple[Tensor]:
    ranks = similarities.new_empty(2, len(queries))
    for block in row_blocks(len(queries), similarities.shape[1], similarities.device):
        closer = _compare(similarities, queries[block], items[block], temperature)
        torch.sum(closer, 1, out=ranks[0, block])
        if among is not None:
            closer.mul_(among.index_select(0, queries[block]))
        torch.sum(closer, 1, out=ranks[1, block])
    return (ranks.add_(0.5),)  # the sums count the item itself as σ(0) = ½; ranks start at 1


def _gradient_by_similarities(
    by_ranks: Tensor,
    saved: tuple[Tensor, ...],
    similarities: Tensor,
    queries: Tensor,
    items: Tensor,
    temperature: float,
    among: Tensor | None,
) -> Tensor:
    """Computes the comparisons again, block by block; with a mask, which takes another tensor, in two or more."""
    result = torch.zeros_like(similarities, memory_format=torch.contiguous_format)
    by_unmarked, by_among = by_ranks / temperature
    by_marked = by_unmarked + by_among
    at_least = 1 if among is None else 2
    for block in row_blocks(len(queries), similarities.shape[1], similarities.device, at_least=at_least):
        factors = by_marked[block].unsqueeze(1)
        if among is not None:
            is_marked = among.index_select(0, queries[block])
            factors = torch.where(is_marked, factors, by_unmarked[block].unsqueeze(1))
            del is_marked
        result.index_add_(0, queries[block], _slopes(similarities, queries[block], items[block], temperature, factors))
        del factors
    return result


def _slopes(similarities: Tensor, queries: Tensor, items: Tensor, temperature: float, factors: Tensor) -> Tensor:
    """Returns the (P, R) gradient by the queries' similarities; factors: (P, R) or (P, 1), gradients by the ranks."""
    closer = _compare(similarities, queries, items, temperature)
    slope = closer.addcmul_(closer, closer, value=-1).mul_(factors)  # σ' = σ − σ²
    return slope.scatter_add_(1, items.unsqueeze(1), -slope.sum(1, keepdim=True))


def _plain(similarities: Tensor, queries: Tensor, items: Tensor, temperature: float, among: Tensor | None) -> Tensor:
    """Computes `smooth_ranks` by ordinary operations, in blocks that every backward recomputes."""
    ranks = [similarities.new_zeros(2, 0)]
    for block in row_blocks(len(queries), similarities.shape[1], similarities.device):
        arguments = (similarities, queries[block], items[block], temperature, among)
        if under_transform():  # torch.func does not support checkpointing
            of_block = _plain_block(*arguments)
        else:
            of_block = checkpoint(_plain_block, *arguments, use_reentrant=False)
        ranks.append(of_block)
    nothing = 0 * similarities[:, :0].sum()  # a gradient path even without pairs
    return torch.cat(ranks, dim=1) + nothing


def _plain_block(
    similarities: Tensor, queries: Tensor, items: Tensor, temperature: float, among: Tensor | None
) -> Tensor:
    rows = similarities[queries]
    absent = rows == -torch.inf  # would give a learned temperature a gradient of nan
    gaps = (rows - rows.gather(1, items.unsqueeze(1))).masked_fill(absent, 0)
    closer = (gaps / temperature).sigmoid().masked_fill(absent, 0)
    marked = closer if among is None else closer * among[queries]
    return torch.stack([closer.sum(1), marked.sum(1)]) + 0.5


def _compare(similarities: Tensor, queries: Tensor, items: Tensor, temperature: float) -> Tensor:
    """Returns (P, R) σ((s_z − s)/temperature) for every item z of the row."""
    rows = similarities.index_select(0, queries)
    return rows.sub_(rows.gather(1, items.unsqueeze(1))).div_(temperature).sigmoid_()


smooth_ranks = CustomGradient(_ranks, _plain, _gradient_by_similarities)
"""(2, P) ranks r = 1 + Σ_z σ((s_z − s)/temperature) over all other items z, for P queries (rows) and items (columns).

The inputs are similarities (B, R), queries and items (P,), the temperature, and `among`: None or a (B, R) mask that is
true at the P pairs. The first row has the ranks among all items of the row, the second those among the marked items.
Items at −inf do not count and are not among the pairs. Memory: the similarities' gradient and one (pairs, R) block.
"""


def smooth_average_precision(
    similarities: Tensor, positive: Tensor, temperature: float, pairs: tuple[Tensor, Tensor] | None = None
) -> Tensor:
    """Returns each row's (B,) average precision in (0, 1] with ranks smoothed by sigmoids; nan without a positive.

    pairs: rows and columns of the positives; None: nonzero finds them, which synchronises with a GPU.

    Source: Brown et al., "Smooth-AP", ECCV 2020, eq. 7. The limit at temperature 0 is exact.
    Works in blocks over positive pairs, without a (B, R, R) tensor.
    """
    queries, items = positive.nonzero(as_tuple=True) if pairs is None else pairs
    ranks, ranks_among = smooth_ranks(similarities, queries, items, temperature, positive)
    totals = similarities.new_zeros(len(similarities)).index_add(0, queries, ranks_among / ranks)
    return totals / positive.sum(dim=1)


def smooth_recall_at_k(
    similarities: Tensor,
    positive: Tensor,
    ks: Sequence[int],
    temperature: float = 0.01,
    rank_temperature: float = 1.0,
) -> Tensor:
    r"""Returns the smoothed recall at k of each row: the share of its positives that rank among the first k.

    $$\frac{1}{\min(k, |P|)} \sum_{p ∈ P} σ((k - r_p) / τ_{rank})$$

    $$r_p = 1 + \sum_{z ≠ p} σ((s_z - s_p) / τ)$$

    P are the row's positives; r_p is the smoothed rank of a positive of similarity s_p among all other items z.
    Works in blocks over positive pairs, without a (B, R, R) tensor.

    Args:
        similarities: (B, R); row a ranks the R items for query a. Items at −inf are not ranked.
        positive: (B, R) bool, the items relevant to the query; none of them at −inf.
        ks: the K list lengths, 1 or more each; they may exceed R.
        temperature: τ, temperature of similarity comparisons, above 0.
        rank_temperature: τ_rank, temperature of the comparison of rank and k, above 0.
    Returns:
        (B, K) smoothed recalls; nan for a row without a positive. As both temperatures approach 0, an item of rank
        below k counts 1, of rank k ½, others 0. Many tied positives can raise a value slightly above 1.
    Source: Patel et al., "Recall@k Surrogate Loss with Large Batches and Similarity Mixup", CVPR 2022, section 3. The
        divisor is that of the authors' code. Their code also clips the sum at k; here: no clipping, because it would
        zero the gradient.

    >>> similarities, positive = torch.tensor([[0.9, 0.8, 0.1]]), torch.tensor([[True, False, True]])
    >>> smooth_recall_at_k(similarities, positive, ks=(2, 4), rank_temperature=0.01)
    tensor([[0.5000, 1.0000]])
    """
    check_floating(similarities, "similarities", "(B, R)")
    check_mask(positive, similarities.shape, "positive")
    check_short_lists(ks)
    check_above_zero(temperature, "temperature")
    check_above_zero(rank_temperature, "rank_temperature")
    queries, items = positive.nonzero(as_tuple=True)
    ranks, _ = smooth_ranks(similarities, queries, items, temperature, None)
    lengths = torch.tensor(ks, dtype=ranks.dtype, device="cpu").to(ranks.device, non_blocking=True)
    recalls = torch.sigmoid((lengths - ranks[:, None]) / rank_temperature)
    totals = similarities.new_zeros(len(similarities), len(lengths)).index_add(0, queries, recalls)
    return totals / torch.minimum(positive.sum(dim=1, keepdim=True).to(ranks.dtype), lengths)


def check_short_lists(ks: Sequence[int]) -> None:
    """Raise unless ks is a sequence of integers of 1 or more."""
    fits = isinstance(ks, Sequence) and not isinstance(ks, str) and len(ks) > 0
    if not fits or any(not is_whole(k) or k < 1 for k in ks):
        raise ArgumentError("ks", f"must be one or more integers of 1 or more; got {ks!r}")
