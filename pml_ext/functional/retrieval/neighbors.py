"""Nearest neighbours of every row among all rows, a block of rows at a time."""

import torch
from torch import Tensor

from pml_ext.functional.retrieval.distances import distance_blocks


def nearest_rows(features: Tensor, count: int, metric: str) -> tuple[Tensor, Tensor, Tensor]:
    """The nearest rows of each, itself first.

    Args:
        features: (N, D), of `comparable`.
        count: at most N; rows at equal distance beyond the last place are left out in no stated order.
        metric: see `distance_blocks`.
    Returns:
        (N, count) int64 places and their distances, and (N,) the largest distance of each row. A row's distance to
        itself is 0.
    """
    places, nearest, largest = [], [], []
    begin = 0
    for rows in distance_blocks(features, features, metric):
        own = torch.arange(len(rows), device=rows.device)
        rows[own, begin + own] = -torch.inf
        values, found = rows.topk(count, dim=1, largest=False)
        values[:, 0] = 0
        places.append(found)
        nearest.append(values)
        largest.append(rows.amax(dim=1).clamp_min(0))
        begin += len(rows)
    return torch.cat(places), torch.cat(nearest), torch.cat(largest)
