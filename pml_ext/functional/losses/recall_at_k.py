"""Smoothed recall at k: the rank of an item and its place among the first k by sigmoids instead of steps."""

from collections.abc import Sequence

import torch
from torch import Tensor

from pml_ext._checks import check_above_zero, check_floating, check_mask
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
    """Σ over the positives of a row of σ((k − r)/rank_temperature), over the most that k places can hold.

    r = 1 + Σ_z σ((s_z − s)/temperature) is the smoothed rank of a positive of similarity s among all z but itself.

    Args:
        similarities: (B, R); row a ranks the R items for query a. An item at −inf is not ranked at all.
        positive: (B, R) bool, the items that are relevant for the query; none of them at −inf.
        ks: the K short-list lengths, 1 or more each; they may exceed R.
        temperature: of the comparisons of similarities, above 0.
        rank_temperature: of the comparison of rank and k, above 0.
        entries: of one block, (positive pairs, R); None: the block size of the device.
    Returns:
        (B, K) smoothed recalls; nan for a row without a positive. Towards temperatures of 0 an item of rank below k
        counts 1, one of rank k counts ½ (as σ(0) does), the others 0. Many tied positives can lift a value slightly
        above 1. Blocks over positive pairs: no (B, R, R) tensor.
    Source: Patel et al., "Recall@k Surrogate Loss with Large Batches and Similarity Mixup", CVPR 2022, section 3.
        Over min(k, number of positives), so that a full short list is 1, as in the authors' code; that code also
        clips the sum at k, which would end the gradient: here it is not clipped.

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
    """One or more lengths of 1 or more."""
    fits = isinstance(ks, Sequence) and not isinstance(ks, str) and len(ks) > 0
    if not fits or any(isinstance(k, bool) or not hasattr(k, "__index__") or k < 1 for k in ks):
        raise ValueError(f"ks must be one or more integers of 1 or more; got {ks!r}")
