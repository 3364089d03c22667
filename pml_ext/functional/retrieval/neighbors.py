"""Nearest neighbours of each row among all rows, in blocks of rows."""

import torch
from torch import Tensor

from pml_ext.functional.retrieval.feature_distances import distance_blocks


def nearest_rows(
    features: Tensor, count: int, metric: str, *, entries: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """The nearest rows of each row, itself first at distance 0.

    Returns (N, count) int64 indices and their distances, and (N,) the largest distance of each row. The features are
    from `prepare_features`. Ties for the last place are broken arbitrarily.
    """
    # Preallocated: small results between two large blocks would keep the heap from shrinking.
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
