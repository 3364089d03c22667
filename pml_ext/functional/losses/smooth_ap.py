"""Smoothed average precision: sigmoids replace the steps in the ranks."""

from torch import Tensor

from pml_ext.functional.losses.smooth_rank import smooth_ranks


def smooth_average_precision(
    similarities: Tensor, positive: Tensor, temperature: float, *, entries: int | None = None
) -> Tensor:
    """Average precision of each row's ranking, with ranks smoothed by sigmoids.

    Works in blocks over positive pairs, without a (B, R, R) tensor.

    Args:
        similarities: (B, R); row a ranks the R items for query a.
        positive: (B, R) bool, the items relevant to the query.
        temperature: of the sigmoids, above 0; the limit at 0 is the exact average precision.
        entries: entries of one block (positive pairs, R); None: the device's block size.
    Returns:
        (B,) in (0, 1]; nan for a row without a positive.
    Source: Brown et al., "Smooth-AP", ECCV 2020, eq. 7.
    """
    queries, items = positive.nonzero(as_tuple=True)
    ranks, ranks_among = smooth_ranks(similarities, queries, items, temperature, positive, entries=entries)
    totals = similarities.new_zeros(len(similarities)).index_add(0, queries, ranks_among / ranks)
    return totals / positive.sum(dim=1)
