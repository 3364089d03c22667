"""Nearest neighbours of every row among all rows, a block of rows at a time."""

import torch
from torch import Tensor

from pml_ext.functional.retrieval.feature_distances import distance_blocks


def nearest_rows(
    features: Tensor, count: int, metric: str, *, entries: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """The nearest rows of each, itself first.

    Args:
        features: (N, D), of `comparable`.
        count: at most N; rows at equal distance beyond the last place are left out in no stated order.
        metric, entries: see `distance_blocks`.
    Returns:
        (N, count) int64 places and their distances, and (N,) the largest distance of each row. A row's distance to
        itself is 0.
    """
    # Written into memory of their own: pieces kept between two large blocks would keep the heap from shrinking.
    places = torch.empty((len(features), count), dtype=torch.int64, device=features.device)
    nearest, largest = features.new_empty(len(features), count), features.new_empty(len(features))
    begin = 0
    for rows in distance_blocks(features, features, metric, entries=entries):
        block = slice(begin, begin + len(rows))
        own = torch.arange(len(rows), device=rows.device)
        rows[own, begin + own] = -torch.inf
        torch.topk(rows, count, dim=1, largest=False, out=(nearest[block], places[block]))
        torch.amax(rows, dim=1, out=largest[block])
        begin = block.stop
    nearest[:, 0] = 0
    return places, nearest, largest.clamp_min_(0)
