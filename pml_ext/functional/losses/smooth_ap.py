"""Smoothed average precision: ranks by sigmoids instead of steps."""

from torch import Tensor

from pml_ext.functional.losses.smooth_rank import smooth_ranks


def smooth_average_precision(
    similarities: Tensor, positive: Tensor, temperature: float, *, entries: int | None = None
) -> Tensor:
    """Average precision of every row's ranking, each rank smoothed by a sigmoid.

    Args:
        similarities: (B, R); row a ranks the R items for query a.
        positive: (B, R) bool, the items that are relevant for the query.
        temperature: of the sigmoids, above 0; towards 0 this is the exact average precision.
        entries: of one block, (positive pairs, R); None: the block size of the device.
    Returns:
        (B,) in (0, 1]; nan for a row without a positive. Blocks over positive pairs: no (B, R, R) tensor.
    Source: Brown et al., "Smooth-AP", ECCV 2020, eq. 7.
    """
    queries, items = positive.nonzero(as_tuple=True)
    ranks, ranks_among = smooth_ranks(similarities, queries, items, temperature, positive, entries=entries)
    totals = similarities.new_zeros(len(similarities)).index_add(0, queries, ranks_among / ranks)
    return totals / positive.sum(dim=1)
