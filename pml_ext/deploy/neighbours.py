"""Nearest-neighbour search: compares queries with all rows of a gallery or a file of embeddings, block by block."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pml_ext._ops.numerics import TIED
from pml_ext.deploy.gallery import Gallery
from pml_ext.deploy.readers import EmbeddingSet

_QUERIES_AT_ONCE = 256


@dataclass(frozen=True)
class Neighbours:
    """Scores and row numbers (Q, k), closest first."""

    scores: np.ndarray
    rows: np.ndarray


def search(target: Gallery | EmbeddingSet, queries: np.ndarray, k: int) -> Neighbours:
    """Find the k rows closest to each query, (Q, D) from `target.as_queries`; all rows if there are fewer.

    Scores that differ by less than 1e-6 are tied: they are returned as equal, in the order of their rows.
    """
    best = [
        _search_all(target, some, min(k, target.rows)) for some in torch.from_numpy(queries).split(_QUERIES_AT_ONCE)
    ]
    scores, rows = (torch.cat(parts) for parts in zip(*best, strict=True))
    return Neighbours(scores.numpy(), rows.numpy())


def _search_all(target: Gallery | EmbeddingSet, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
    scores = queries.new_empty(len(queries), 0)
    rows = torch.empty(len(queries), 0, dtype=torch.int64, device="cpu")
    for first, vectors in target.vectors():
        # One query with a million rows takes NumPy a third of torch's time. faiss.knn takes half of NumPy's, but four
        # times as long for 256 queries, and returns any of the tied rows.
        products = torch.from_numpy(queries.numpy() @ vectors.T)
        places = _best(products, k)
        scores = torch.cat([scores, products.gather(1, places)], dim=1)
        rows = torch.cat([rows, first + places], dim=1)
        places = _best(scores, k)
        scores, rows = scores.gather(1, places), rows.gather(1, places)
    return _in_order(scores, rows)


def _best(scores: Tensor, k: int) -> Tensor:
    """Returns the columns of the k highest of (Q, N) scores, all if k > N; of those tied with the last, the first."""
    k = min(k, scores.shape[1])
    last = scores.topk(k).values[:, -1:]
    query, column = (scores >= last - TIED).nonzero(as_tuple=True)
    is_tied = scores[query, column] <= last[query, 0] + TIED
    order = (2 * query + is_tied).argsort(stable=True)
    nth = torch.arange(len(query), device="cpu") - torch.searchsorted(query, query)
    return column[order][nth < k].view(len(scores), k)


def _in_order(scores: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Sort (Q, k) scores, by falling score, then by row; tied scores get the highest of them."""
    scores, order = scores.sort(dim=1, descending=True)
    rows = rows.gather(1, order)
    for place in range(1, scores.shape[1]):
        above, here = scores[:, place - 1], scores[:, place]
        scores[:, place] = torch.where(above - here < TIED, above, here)
    rows, order = rows.sort(dim=1)
    scores, order = scores.gather(1, order).sort(dim=1, descending=True, stable=True)
    return scores, rows.gather(1, order)
