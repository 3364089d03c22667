"""Smoothed average precision: sigmoids replace the steps in the ranks."""

from torch import Tensor

from pml_ext.functional.losses.smooth_rank import smooth_ranks


def smooth_average_precision(
    similarities: Tensor, positive: Tensor, temperature: float, *, entries: int | None = None
) -> Tensor:
    """(B,) average precision in (0, 1] of each (R,) row's ranking, ranks smoothed by sigmoids; nan without a positive.

    Source: Brown et al., "Smooth-AP", ECCV 2020, eq. 7. The limit at temperature 0 is exact.
    entries: per block (positive pairs, R), without a (B, R, R) tensor; None: the device's block size.
    """
    queries, items = positive.nonzero(as_tuple=True)
    ranks, ranks_among = smooth_ranks(similarities, queries, items, temperature, positive, entries=entries)
    totals = similarities.new_zeros(len(similarities)).index_add(0, queries, ranks_among / ranks)
    return totals / positive.sum(dim=1)
