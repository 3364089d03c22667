"""Retrieval ranks under the gallery protocol of person re-identification, from blocks of queries."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pml_ext._checks import check_embeddings, check_finite, check_labels
from pml_ext.functional.precision import full_precision, unit_rows

JUNK = -1
_DISTANCES_AT_ONCE = 2**19
# Up to here one comparison with the whole row per match is cheaper than sorting the row (measured, float32).
_COMPARED_AT_MOST = 64


class Ranking(NamedTuple):
    """Per-query results, (Q,) float64, fractions; nan where a query has no match left (`matches` 0).

    matches: (Q,) int64, gallery items of the query's identity that count, R below.
    first_match_rank: rank of the closest match, from 1.
    average_precision: mean over the matches of (matches so far) / rank.
    inverse_negative_penalty: R / rank of the hardest match.
    average_precision_at_r: the same sum as the average precision over ranks up to R only, divided by R.
    r_precision: share of matches among the first R (among the first `within` where that is fewer).
    """

    matches: Tensor
    first_match_rank: Tensor
    average_precision: Tensor
    inverse_negative_penalty: Tensor
    average_precision_at_r: Tensor
    r_precision: Tensor


def rank_matches(
    query: Tensor,
    query_labels: Tensor,
    gallery: Tensor,
    gallery_labels: Tensor,
    *,
    query_cameras: Tensor | None = None,
    gallery_cameras: Tensor | None = None,
    gallery_includes_query: bool = False,
    within: int | None = None,
) -> Ranking:
    """Rank the gallery for every query by cosine similarity.

    Gallery items of the query's identity *and* camera are removed before ranking; identity −1 is junk: ignored in
    the gallery, not evaluated as a query. Other identities, Market-1501's distractor 0 among them, are plain
    non-matches of everybody else. Ties are pessimistic: a non-match as close as a match ranks before it.
    Ties are those of the computed distances: equal rows of the gallery can come out an ulp apart.

    Args:
        query, gallery: (Q, D) and (G, D), finite; normalised here. A zero row has cosine 0 with everything.
        query_labels, gallery_labels: (Q,) and (G,) integer identities.
        query_cameras, gallery_cameras: (Q,) and (G,) integers, or None for no removal by camera.
        gallery_includes_query: the gallery starts with the queries in the same order; a query never finds itself.
        within: matches ranked beyond count as not found in the three precisions; None for no limit.
    Returns:
        Ranking.
    Raises:
        ValueError: shapes or types that do not fit, values not finite, cameras of one side only.
    Source: Zheng et al., ICCV 2015 (protocol); Ye et al., arXiv 2001.04193 (inverse negative penalty).
    """
    check_embeddings(query, "query")
    check_embeddings(gallery, "gallery")
    if query.shape[1] != gallery.shape[1]:
        raise ValueError(f"gallery must have the query's {query.shape[1]} columns; got {gallery.shape[1]}")
    check_finite(query, "query")
    check_finite(gallery, "gallery")
    rows, columns = unit_rows(query), unit_rows(gallery)
    dtype = torch.promote_types(rows.dtype, columns.dtype)
    rows, columns = rows.to(dtype), columns.to(dtype)

    def distances(kept: Tensor | None) -> Callable[[slice], Tensor]:
        others = (columns if kept is None else columns[kept]).T
        return lambda block: -(rows[block] @ others)

    labels_and_cameras = (query_labels, gallery_labels, query_cameras, gallery_cameras)
    return _rank(
        (len(query), len(gallery)), query.device, distances, *labels_and_cameras, gallery_includes_query, within
    )


def rank_matches_from_distances(
    distances: Tensor,
    query_labels: Tensor,
    gallery_labels: Tensor,
    *,
    query_cameras: Tensor | None = None,
    gallery_cameras: Tensor | None = None,
    gallery_includes_query: bool = False,
    within: int | None = None,
) -> Ranking:
    """`rank_matches` for a given (Q, G) matrix of finite distances, smaller is closer."""
    check_embeddings(distances, "distances")
    check_finite(distances, "distances")

    given = distances.detach()

    def blocks(kept: Tensor | None) -> Callable[[slice], Tensor]:
        # 16 bits hold every distance but not the counts that follow.
        dtype = torch.promote_types(given.dtype, torch.float32)
        return lambda block: (given[block] if kept is None else given[block][:, kept]).to(dtype)

    shape = (distances.shape[0], distances.shape[1])
    labels_and_cameras = (query_labels, gallery_labels, query_cameras, gallery_cameras)
    return _rank(shape, distances.device, blocks, *labels_and_cameras, gallery_includes_query, within)


def cumulative_matches(ranking: Ranking, ranks: Sequence[int] = (1, 5, 10)) -> Tensor:
    """CMC: the share of queries whose closest match is at rank k or better; queries without a match do not count.

    Args:
        ranking: of `rank_matches`.
        ranks: the ranks k, from 1.
    Returns:
        (len(ranks),) float64; nan where no query has a match.
    """
    if any(k < 1 for k in ranks):
        raise ValueError(f"ranks must be 1 or more; got {list(ranks)}")
    first = ranking.first_match_rank[ranking.matches > 0]
    return torch.stack([(first <= k).double().mean() for k in ranks])


def _rank(
    shape: tuple[int, int],
    device: torch.device,
    distances: Callable[[Tensor | None], Callable[[slice], Tensor]],
    query_labels: Tensor,
    gallery_labels: Tensor,
    query_cameras: Tensor | None,
    gallery_cameras: Tensor | None,
    gallery_includes_query: bool,
    within: int | None,
) -> Ranking:
    check_labels(query_labels, shape[0], "query_labels")
    check_labels(gallery_labels, shape[1], "gallery_labels")
    if (query_cameras is None) != (gallery_cameras is None):
        raise ValueError("query_cameras and gallery_cameras must be given together; got only one of them")
    if query_cameras is not None and gallery_cameras is not None:
        check_labels(query_cameras, shape[0], "query_cameras")
        check_labels(gallery_cameras, shape[1], "gallery_cameras")
    if gallery_includes_query and shape[1] < shape[0]:
        raise ValueError(f"gallery must start with the {shape[0]} queries; got {shape[1]} items")
    if within is not None and within < 1:
        raise ValueError(f"within must be a rank of 1 or more; got {within!r}")

    query_labels, gallery_labels = (ids.to(device, torch.int64) for ids in (query_labels, gallery_labels))
    if query_cameras is not None and gallery_cameras is not None:
        query_cameras, gallery_cameras = query_cameras.to(device), gallery_cameras.to(device)

    # Junk leaves the gallery for good; `kept` are the places of what stays.
    kept = None if bool((gallery_labels != JUNK).all()) else (gallery_labels != JUNK).nonzero().squeeze(1)
    labels = gallery_labels if kept is None else gallery_labels[kept]
    by_label = torch.argsort(labels, stable=True)
    ordered = labels[by_label]
    starts = torch.searchsorted(ordered, query_labels)
    sizes = torch.searchsorted(ordered, query_labels, right=True) - starts

    distances_of = distances(kept)
    size = max(1, _DISTANCES_AT_ONCE // max(1, len(labels)))
    results = []
    for begin in range(0, shape[0], size):
        block = slice(begin, min(begin + size, shape[0]))
        steps = torch.arange(int(sizes[block].max()), device=device)
        exists = steps < sizes[block, None]
        own = by_label[(starts[block, None] + steps).clamp_max(max(0, len(labels) - 1))]  # (q, K) same identity
        place = own if kept is None else kept[own]
        removed = torch.zeros_like(exists)
        if query_cameras is not None and gallery_cameras is not None:
            removed |= gallery_cameras[place] == query_cameras[block, None]
        if gallery_includes_query:
            removed |= place == torch.arange(begin, block.stop, device=device)[:, None]
        with full_precision(device):
            row = distances_of(block)
            results.append(_block_ranks(row, row.gather(1, own), exists, exists & ~removed, within))
    return Ranking(*(torch.cat(parts) for parts in zip(*results, strict=True)))


def _block_ranks(row: Tensor, own: Tensor, exists: Tensor, matches: Tensor, within: int | None) -> tuple[Tensor, ...]:
    """rank of the j-th match = j + non-matches at most as far: all at most as far, less those of the identity."""
    count = matches.sum(dim=1)
    beyond = torch.finfo(row.dtype).max
    matched = torch.where(matches, own, beyond).sort(dim=1).values[:, : int(count.max())].contiguous()
    same = torch.where(exists, own, beyond).sort(dim=1).values
    nth = torch.arange(1, matched.shape[1] + 1, device=row.device)
    closer = _count_up_to(row, matched) - torch.searchsorted(same, matched, right=True)
    ranks = (nth + closer).double()
    real = nth <= count[:, None]
    limit = within or max(1, row.shape[1])
    precision = torch.where(real & (ranks <= limit), nth / ranks, 0.0)
    total = count.double()  # x / 0 is nan for 0 / 0: what a query without a match gets
    at_r = real & (ranks <= total[:, None])
    hardest = torch.where(real, ranks, 0.0).amax(dim=1) if real.shape[1] else torch.zeros_like(total)
    first = torch.where(real, ranks, torch.inf).amin(dim=1) if real.shape[1] else torch.zeros_like(total)
    return (
        count,
        torch.where(count > 0, first, torch.nan),
        precision.sum(dim=1) / total,
        total / hardest,
        (precision * at_r).sum(dim=1) / total,
        (at_r & (precision > 0)).sum(dim=1) / total.clamp_max(limit),
    )


def _count_up_to(row: Tensor, limits: Tensor) -> Tensor:
    """(q, K) how many entries of each row of (q, G) are at most each of its K limits."""
    if limits.shape[1] > _COMPARED_AT_MOST or row.shape[1] >= 2**24:  # the largest count that float32 sums exactly
        return torch.searchsorted(row.sort(dim=1).values, limits, right=True)
    below = torch.empty_like(row)  # as numbers, not bools: several times faster to add up
    counts = torch.empty_like(limits, dtype=torch.int64)
    for k in range(limits.shape[1]):
        counts[:, k] = torch.le(row, limits[:, k : k + 1], out=below).sum(dim=1)
    return counts
