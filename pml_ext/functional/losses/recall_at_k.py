"""Smoothed recall at k: sigmoids replace the steps in the rank of an item and in its comparison with k."""

from collections.abc import Sequence

import torch
from torch import Tensor

from pml_ext._checks import check_above_zero, check_floating, check_mask, is_whole
from pml_ext.functional.losses.smooth_rank import smooth_ranks


def smooth_recall_at_k(
    similarities: Tensor,
    positive: Tensor,
    ks: Sequence[int],
    temperature: float = 0.01,
    rank_temperature: float = 1.0,
    *,
    entries: int | None = None,
) -> Tensor:
    """Σ over a row's positives of σ((k − r)/rank_temperature), divided by min(k, number of positives).

    r = 1 + Σ_z σ((s_z − s)/temperature) is the smoothed rank of a positive of similarity s among all other items z.
    Works in blocks over positive pairs, without a (B, R, R) tensor.

    Args:
        similarities: (B, R); row a ranks the R items for query a. Items at −inf are not ranked.
        positive: (B, R) bool, the items relevant to the query; none of them at −inf.
        ks: the K list lengths, 1 or more each; they may exceed R.
        temperature: of the comparisons of similarities, above 0.
        rank_temperature: of the comparison of rank and k, above 0.
        entries: entries of one block (positive pairs, R); None: the device's block size.
    Returns:
        (B, K) smoothed recalls; nan for a row without a positive. As both temperatures approach 0, an item of rank
        below k counts 1, of rank k ½, others 0. Many tied positives can raise a value slightly above 1.
    Source: Patel et al., "Recall@k Surrogate Loss with Large Batches and Similarity Mixup", CVPR 2022, section 3. The
        divisor is that of the authors' code; their code also clips the sum at k; here: no clipping, which would zero
        the gradient.

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
    ranks, _ = smooth_ranks(similarities, queries, items, temperature, entries=entries)
    lengths = torch.tensor(ks, dtype=ranks.dtype).to(ranks.device, non_blocking=True)
    found = torch.sigmoid((lengths - ranks[:, None]) / rank_temperature)
    totals = similarities.new_zeros(len(similarities), len(lengths)).index_add(0, queries, found)
    return totals / torch.minimum(positive.sum(dim=1, keepdim=True).to(ranks.dtype), lengths)


def check_short_lists(ks: Sequence[int]) -> None:
    """Raise unless ks is a sequence of integers of 1 or more."""
    fits = isinstance(ks, Sequence) and not isinstance(ks, str) and len(ks) > 0
    if not fits or any(not is_whole(k) or k < 1 for k in ks):
        raise ValueError(f"ks must be one or more integers of 1 or more; got {ks!r}")
