"""Smoothed average precision: ranks by sigmoids instead of steps."""

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

# entries of a (pairs, R) block: what is alive at once, in the backward pass too
_BLOCK = 1 << 22


def smooth_average_precision(similarities: Tensor, positive: Tensor, temperature: float) -> Tensor:
    """Average precision of every row's ranking, each rank smoothed by a sigmoid.

    Args:
        similarities: (B, R); row a ranks the R items for query a.
        positive: (B, R) bool, the items that are relevant for the query.
        temperature: of the sigmoids, above 0; towards 0 this is the exact average precision.
    Returns:
        (B,) in (0, 1]; nan for a row without a positive. Blocks over positive pairs: no (B, R, R) tensor.
    Source: Brown et al., "Smooth-AP", ECCV 2020, eq. 7.
    """
    queries, items = positive.nonzero(as_tuple=True)
    per_block = max(1, _BLOCK // similarities.shape[1])
    precisions = [
        checkpoint(_precision_at, similarities, positive, q, i, temperature, use_reentrant=False)
        for q, i in zip(queries.split(per_block), items.split(per_block), strict=True)
    ]
    totals = similarities.new_zeros(len(similarities)).index_add(0, queries, torch.cat(precisions))
    return totals / positive.sum(dim=1)


def _precision_at(similarities: Tensor, positive: Tensor, queries: Tensor, items: Tensor, temperature: float) -> Tensor:
    """(P,) rank among the positives over rank among all, at P (query, positive item) pairs."""
    rows = similarities[queries]
    closer = torch.sigmoid((rows - rows.gather(1, items[:, None])) / temperature)
    # The item itself stands at σ(0) = ½ in both sums, and its rank starts at 1.
    return ((closer * positive[queries]).sum(dim=1) + 0.5) / (closer.sum(dim=1) + 0.5)
