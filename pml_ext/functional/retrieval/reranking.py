"""Query expansion and k-reciprocal re-ranking, from sparse lists of nearest neighbours."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pml_ext._ops.numerics import row_blocks, unit_rows
from pml_ext._shared.checks import check_choice, check_in_range, check_number, check_whole
from pml_ext._shared.errors import ArgumentError
from pml_ext.functional.retrieval.feature_distances import check_features, distance_blocks, prepare_features


def nearest_rows(features: Tensor, count: int, metric: str) -> tuple[Tensor, Tensor, Tensor]:
    """Find the nearest rows of each row; the row itself comes first, at distance 0.

    Returns (N, count) int64 indices, their distances, and the (N,) largest distance of each row. The features
    are from `prepare_features`. Ties for the last place are broken arbitrarily.
    """
    # Preallocated: small results between two large blocks would keep the heap from shrinking.
    places = torch.empty((len(features), count), dtype=torch.int64, device=features.device)
    nearest, largest = features.new_empty(len(features), count), features.new_empty(len(features))
    begin = 0
    for rows in distance_blocks(features, features, metric):
        block = slice(begin, begin + len(rows))
        members = torch.arange(len(rows), device=rows.device)
        rows[members, begin + members] = -torch.inf
        torch.topk(rows, count, dim=1, largest=False, out=(nearest[block], places[block]))
        torch.amax(rows, dim=1, out=largest[block])
        begin = block.stop
    nearest[:, 0] = 0
    return places, nearest, largest.clamp_min_(0)


_MOST_TIMES = 100


def expand_features(
    query: Tensor, gallery: Tensor, *, k: int = 5, alpha: float = 3.0, times: int = 1
) -> tuple[Tensor, Tensor]:
    r"""Replace each feature by the weighted sum of its k nearest features, itself included.

    $$\frac{1}{k} \sum_j c_j^α x_j$$

    c_j is the cosine with neighbour x_j.

    Neighbours come from the union of queries and gallery, without a (Q + G)² matrix. Like FastReID, divides the sum by
    k, not by the sum of weights; this changes a feature's length, not its direction.

    Args:
        query, gallery: (Q, D) and (G, D), finite; compared by cosine, averaged without normalisation.
        k: neighbours averaged, itself included; at most Q + G.
        alpha: α, 0 (plain average) or more.
        times: number of expansions.
    Returns:
        (Q, D) and (G, D) in float32 or better, not normalised.
    Raises:
        ValueError: features of different widths or not finite; an option outside its range.
    Source: Chum et al., ICCV 2007; Radenović et al., TPAMI 2018 (alpha). FastReID raises negative cosines to alpha,
        which gives nan or a negative weight; here: they count as cosine 0.

    >>> query, gallery = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.8, 0.6], [-1.0, 0.0]])
    >>> expanded, _ = expand_features(query, gallery, k=2, alpha=0)
    >>> [round(value, 3) for value in expanded[0].tolist()]
    [0.9, 0.3]
    """
    check_features(query, gallery, "cosine")
    total = len(query) + len(gallery)
    check_whole(k, "k")
    check_expansion_size(k, total)
    check_number(alpha, "alpha")
    if not 0 <= alpha < float("inf"):
        raise ValueError(f"alpha must be finite and at least 0; got {alpha!r}")
    check_whole(times, "times", 1, _MOST_TIMES)
    dtype = torch.promote_types(torch.promote_types(query.dtype, gallery.dtype), torch.float32)
    features = torch.cat([query.detach().to(dtype), gallery.detach().to(dtype)])
    for _ in range(times):
        features = average_with_neighbors(features, k, alpha)
    return features[: len(query)], features[len(query) :]


def check_expansion_size(k: int, total: int, name: str = "k") -> None:
    """From 1 to the total number of queries and gallery items."""
    if not 1 <= k <= total:
        raise ArgumentError(name, f"must be from 1 to the {total} queries and gallery items; got {k!r}")


def average_with_neighbors(features: Tensor, k: int, alpha: float) -> Tensor:
    """Expand all features once."""
    places, distances, _ = nearest_rows(unit_rows(features), k, "cosine")
    weights = (1 - distances).clamp_min(0).pow(alpha)
    mean = torch.empty_like(features)
    for block in row_blocks(len(features), features.shape[1], features.device):
        some = features.new_zeros(block.stop - block.start, features.shape[1])
        for j in range(k):  # one neighbour at a time avoids an (N, k, D) tensor
            some.addcmul_(features[places[block, j]], weights[block, j : j + 1])
        mean[block] = some.div_(k)
    return mean


DEFINITIONS = ("zhong", "fastreid")


def rerank(
    query: Tensor,
    gallery: Tensor,
    *,
    k1: int = 20,
    k2: int = 6,
    lambda_: float = 0.3,
    metric: str = "cosine",
    definition: str = "zhong",
) -> Tensor:
    """Returns (1 − λ) Jaccard distance of the k-reciprocal neighbourhoods + λ distance of the features.

    Args:
        query, gallery: (Q, D) and (G, D), finite.
        k1: neighbours of a sample, fewer than Q + G.
        k2: samples over which a neighbourhood is averaged, itself included, from 1 (no averaging) to k1.
        lambda_: weight of the feature distance, in [0, 1].
        metric: "cosine" (features normalised here) or "euclidean" (not normalised).
        definition: "zhong", the paper's: lists of k1 without the sample, squared distances divided by the sample's
            largest; "fastreid", FastReID's evaluator: lists of k1 including the sample, squared distances not divided,
            and 1 − cosine (or the squared distance) in the sum.
    Returns:
        (Q, G) distances in float32 or better.
    Raises:
        ValueError: features of different widths or not finite; an option outside its range.
    Source: Zhong et al., CVPR 2017, eqs. 3 to 12. A sample's nearest neighbour is itself, even if it has duplicates.

    >>> query, gallery = torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
    >>> [round(value, 2) for value in rerank(query, gallery, k1=1, k2=1)[0].tolist()]
    [0.01, 1.0, 0.97]
    """
    blocks = rerank_blocks(query, gallery, k1=k1, k2=k2, lambda_=lambda_, metric=metric, definition=definition)
    return torch.cat(list(blocks))


def rerank_blocks(
    query: Tensor,
    gallery: Tensor,
    *,
    k1: int = 20,
    k2: int = 6,
    lambda_: float = 0.3,
    metric: str = "cosine",
    definition: str = "zhong",
) -> Iterator[Tensor]:
    """Compute `rerank` in blocks of rows, for `rank_matches_from_distances`, without a (Q, G) or (Q + G)² matrix.

    >>> from pml_ext.functional import rank_matches_from_distances
    >>> query, gallery = torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
    >>> blocks = rerank_blocks(query, gallery, k1=1, k2=1)
    >>> ranking = rank_matches_from_distances(blocks, torch.tensor([7]), torch.tensor([7, 5, 5]))
    >>> float(ranking.first_match_rank)
    1.0
    """
    check_features(query, gallery, metric)
    check_choice(definition, DEFINITIONS, "definition")
    check_in_range(lambda_, 0, 1, "lambda_")
    total = len(query) + len(gallery)
    check_whole(k1, "k1")
    check_whole(k2, "k2")
    check_neighbourhood_size(k1, total)
    if not 1 <= k2 <= k1:
        raise ValueError(f"k2 must be from 1 to k1 = {k1}; got {k2!r}")
    return blocks_of_distances(query, gallery, k1, k2, lambda_, metric, definition == "zhong")


def check_neighbourhood_size(k1: int, total: int, name: str = "k1") -> None:
    """From 1 to one less than the total number of queries and gallery items."""
    if not 1 <= k1 < total:
        raise ArgumentError(name, f"must be from 1 to {total - 1}, fewer than queries and gallery items; got {k1!r}")


def blocks_of_distances(
    query: Tensor,
    gallery: Tensor,
    k1: int,
    k2: int,
    lambda_: float,
    metric: str,
    by_largest: bool,
) -> Iterator[Tensor]:
    """Compute `rerank_blocks` without checks; by_largest: divide distances by the sample's largest."""
    features = torch.cat(prepare_features(query, gallery, metric, scaled=by_largest))
    if not bool(torch.isfinite(4 * features.square().sum(dim=1).max())):
        raise ValueError(
            f"squared distances of these features exceed the range of {features.dtype}: scale the features down, or "
            'use metric="cosine" or definition="zhong", which do not depend on their scale'
        )
    places, _, largest = nearest_rows(features, k1 + 1 if by_largest else k1, metric)
    # For unit rows the squared distance is 2 (1 − cosine); dividing by the largest distance cancels the factor.
    factor = 2.0 if metric == "cosine" and not by_largest else 1.0
    scale = largest.clamp_min(torch.finfo(largest.dtype).tiny) if by_largest else torch.ones_like(largest)
    neighborhoods = _neighborhoods(features, places.cpu().numpy(), k1, k2, metric, factor / scale)
    mine, theirs = neighborhoods[: len(query)], neighborhoods[len(query) :].tocsc()
    begin = 0
    for rows in distance_blocks(features[: len(query)], features[len(query) :], metric):
        block = slice(begin, begin + len(rows))
        begin = block.stop
        jaccard = torch.from_numpy(_jaccard(mine[block], theirs)).to(rows)
        yield jaccard.mul_(1 - lambda_).add_(rows.div_(scale[block, None]), alpha=lambda_)


def _neighborhoods(x: Tensor, places: np.ndarray, k1: int, k2: int, metric: str, per_distance: Tensor) -> Any:
    """Returns the (N, N) sparse weights of the k-reciprocal neighbours of each sample; rows sum to 1."""
    from scipy import sparse

    near, half = _reciprocal(places), _reciprocal(places[:, : round(k1 / 2) + 1])
    # A neighbour's neighbours join if more than two thirds of them are neighbours already.
    overlap = near.multiply(near @ half.T).tocoo()
    joins = 3 * overlap.data > 2 * half.sum(axis=1)[overlap.col]
    ones = np.ones(int(joins.sum()), dtype=np.int32)
    joining = sparse.csr_array((ones, (overlap.row[joins], overlap.col[joins])), shape=near.shape)
    members = (near + joining @ half).tocoo()
    weights = np.exp(-_distances_of(x, members.row, members.col, metric, per_distance).cpu().numpy())
    sums = np.bincount(members.row, weights, minlength=len(x)).astype(weights.dtype)
    encoded = sparse.csr_array((weights / sums[members.row], (members.row, members.col)), shape=near.shape)
    shares = np.full(len(x) * k2, 1 / k2, dtype=weights.dtype)
    row_ends = np.arange(len(x) + 1) * k2
    averaged = sparse.csr_array((shares, places[:, :k2].ravel(), row_ends), shape=near.shape)
    return (averaged @ encoded).tocsr()


def _reciprocal(places: np.ndarray) -> Any:
    """Returns the (N, N) sparse mask of the pairs of samples that are in each other's list."""
    from scipy import sparse

    count, length = places.shape
    ones = np.ones(count * length, dtype=np.int32)
    row_ends = np.arange(count + 1) * length
    listed = sparse.csr_array((ones, places.ravel(), row_ends), shape=(count, count))
    return listed.multiply(listed.T).tocsr()


def _distances_of(x: Tensor, one: np.ndarray, other: np.ndarray, metric: str, per_distance: Tensor) -> Tensor:
    """Returns the distances of pairs, each times the factor of its first sample."""
    left, right = (torch.from_numpy(places.astype(np.int64)).to(x.device) for places in (one, other))
    distances = []
    for block in row_blocks(len(left), x.shape[1], x.device):
        i, j = left[block], right[block]
        if metric == "cosine":
            distances.append(1 - torch.linalg.vecdot(x[i], x[j]))
        else:
            distances.append((x[i] - x[j]).square_().sum(dim=1))
    return torch.cat(distances) * per_distance[left]


def _jaccard(rows: Any, columns: Any) -> np.ndarray:
    """Returns the (q, G) 1 − Σ min / Σ max of q sparse rows with G rows, passed as sparse columns."""
    distances = np.empty((rows.shape[0], columns.shape[0]), dtype=columns.dtype)
    for q in range(rows.shape[0]):
        of_query = slice(rows.indptr[q], rows.indptr[q + 1])
        members, weights = rows.indices[of_query], rows.data[of_query]
        starts = columns.indptr[members]
        lengths = columns.indptr[members + 1] - starts
        ends = lengths.cumsum()
        # The entries of all these columns, concatenated.
        entries = np.repeat(starts - ends + lengths, lengths) + np.arange(lengths.sum())
        shared = np.minimum(columns.data[entries], np.repeat(weights, lengths))
        overlap = np.bincount(columns.indices[entries], shared, minlength=len(distances[q]))
        distances[q] = np.maximum(1 - overlap / (2 - overlap), 0)
    return distances
