"""Retrieval ranks under the gallery protocol of person re-identification, in blocks of queries."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch import distributed as dist

from pml_ext._checks import check_items, check_whole
from pml_ext._ops.distributed import gather_rows, own_rows
from pml_ext.functional.retrieval.feature_distances import (
    both_distance_blocks,
    check_features,
    distance_blocks,
    prepare_features,
    rows_at_once,
)
from pml_ext.functional.retrieval.match_ranks import MatchRanks, match_ranks_of
from pml_ext.functional.retrieval.protocol import GalleryProtocol, protocol_of_distances


class Ranking(NamedTuple):
    """Per-query results, (Q,) float64, fractions; nan if a query has no match (`matches` 0).

    matches: (Q,) int64, R: the gallery items of the query's identity that count.
    first_match_rank: rank of the closest match, from 1.
    average_precision: mean over the matches of (matches so far) / rank.
    inverse_negative_penalty: R / rank of the farthest match.
    average_precision_at_r: the average precision's sum over ranks up to R, divided by R.
    r_precision: share of matches among the first R ranks (or the first `within`, if fewer).

    >>> distances, labels, gallery_labels = torch.tensor([[0.1, 0.2, 0.3]]), torch.tensor([7]), torch.tensor([7, 5, 7])
    >>> ranking = rank_matches_from_distances(distances, labels, gallery_labels)
    >>> int(ranking.matches), float(ranking.first_match_rank), round(float(ranking.average_precision), 3)
    (2, 1.0, 0.833)
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
    metric: str = "cosine",
    group: dist.ProcessGroup | None = None,
) -> Ranking:
    """Rank the gallery for each query by the distance of features.

    Gallery items of the query's identity *and* camera are removed before ranking. Identity −1 is junk: ignored in the
    gallery, not evaluated as a query. All other identities are ordinary, including Market-1501's distractor 0. Ties
    are pessimistic: a non-match at the distance of a match ranks before it. Computed distances decide ties, and
    rounding can separate equal rows of the gallery.

    Args:
        query, gallery: (Q, D) and (G, D), finite. A zero row has cosine 0 with everything.
        query_labels, gallery_labels: (Q,) and (G,) integer identities.
        query_cameras, gallery_cameras: (Q,) and (G,) integers, or None to ignore cameras.
        gallery_includes_query: the gallery starts with the queries in the same order; a query never finds itself.
        within: matches beyond this rank count as not found in the three precisions; None for no limit.
        metric: "cosine" (normalised here) or "euclidean" (not normalised).
        group: the ranks that share the queries, each with the same arguments; all get the result, which is that of one
            process, bit for bit on the same kind of machine with as many threads. None: this process alone.
    Raises:
        ValueError: wrong shapes or types, values not finite, cameras on one side only, an unknown metric.
    Source: Zheng et al., ICCV 2015 (protocol); Ye et al., arXiv 2001.04193 (inverse negative penalty).

    >>> gallery = torch.tensor([[1.0, 0.1], [1.0, 1.0], [0.0, 1.0]])
    >>> ranking = rank_matches(torch.tensor([[1.0, 0.0]]), torch.tensor([7]), gallery, torch.tensor([5, 7, 7]))
    >>> float(ranking.first_match_rank), round(float(ranking.average_precision), 3)
    (2.0, 0.583)
    """
    cameras = (query_cameras, gallery_cameras)
    return rankings_within(
        [within], query, query_labels, gallery, gallery_labels, cameras, gallery_includes_query, metric, group
    )[0]


def rankings_within(
    limits: Sequence[int | None],
    query: Tensor,
    query_labels: Tensor,
    gallery: Tensor,
    gallery_labels: Tensor,
    cameras: tuple[Tensor | None, Tensor | None],
    gallery_includes_query: bool,
    metric: str,
    group: dist.ProcessGroup | None = None,
) -> list[Ranking]:
    """`rank_matches` for several values of `within`, from one pass over the distances."""
    check_features(query, gallery, metric)
    shape = (len(query), len(gallery))
    protocol = GalleryProtocol(shape, query_labels, gallery_labels, *cameras, gallery_includes_query, query.device)
    rows, columns = prepare_features(query, gallery if protocol.kept is None else gallery[protocol.kept], metric)
    own, lengths = own_rows(len(rows), rows_at_once(len(columns)), group)
    found = _rank(protocol, distance_blocks(rows[own], columns, metric), limits, own)
    return _of_all_ranks(found, len(limits), lengths, query.device, group)


def rank_by_both_metrics(
    query: Tensor,
    query_labels: Tensor,
    gallery: Tensor,
    gallery_labels: Tensor,
    *,
    gallery_includes_query: bool,
    within: int | None,
    group: dist.ProcessGroup | None = None,
) -> tuple[Ranking, Ranking]:
    """`rank_matches` by cosine without a limit and by Euclidean distance with one, from one product.

    Precise only if `is_spread_around_origin(gallery)`.
    """
    check_features(query, gallery, "cosine")
    shape = (len(query), len(gallery))
    protocol = GalleryProtocol(shape, query_labels, gallery_labels, None, None, gallery_includes_query, query.device)
    kept = gallery if protocol.kept is None else gallery[protocol.kept]
    by_cosine, by_euclidean = [], []
    own_queries, lengths = own_rows(len(query), rows_at_once(len(kept)), group)
    begin = own_queries.start
    for cosine, euclidean in both_distance_blocks(query if group is None else query[own_queries], kept):
        own = protocol.own_identity(slice(begin, begin + len(cosine)))
        by_cosine.append(ranking_of(match_ranks_of(cosine, own), None))
        by_euclidean.append(ranking_of(match_ranks_of(euclidean, own), within))
        begin += len(cosine)
    found = [joined(parts) for parts in (by_cosine, by_euclidean) if parts]
    first, second = _of_all_ranks(found, 2, lengths, query.device, group)
    return first, second


def rank_matches_from_distances(
    distances: Tensor | Iterable[Tensor],
    query_labels: Tensor,
    gallery_labels: Tensor,
    *,
    query_cameras: Tensor | None = None,
    gallery_cameras: Tensor | None = None,
    gallery_includes_query: bool = False,
    within: int | None = None,
) -> Ranking:
    """`rank_matches` for given finite distances, smaller is closer.

    Args:
        distances: a (Q, G) matrix, or an iterable of blocks of its rows in order, on the labels' device; each is read
            once and not kept.
        others: see `rank_matches`.

    >>> distances = torch.tensor([[0.3, 0.1, 0.2], [0.1, 0.2, 0.3]])
    >>> ranking = rank_matches_from_distances(distances, torch.tensor([7, 5]), torch.tensor([7, 5, 5]))
    >>> ranking.first_match_rank.tolist()
    [3.0, 2.0]
    """
    protocol = protocol_of_distances(
        distances, query_labels, gallery_labels, query_cameras, gallery_cameras, gallery_includes_query
    )
    return _rank(protocol, protocol.drop_junk(distances), [within])[0]


def cumulative_matches(ranking: Ranking, ranks: Sequence[int] = (1, 5, 10)) -> Tensor:
    """CMC: the share of queries whose closest match has rank k or better; queries without a match do not count.

    Args:
        ranking: from `rank_matches`, or from `rank_single_shot` for the mean over its repeats.
        ranks: the ranks k, from 1.
    Returns:
        (len(ranks),) float64; nan if no query has a match.

    >>> distances = torch.tensor([[0.3, 0.1, 0.2], [0.1, 0.2, 0.3]])
    >>> ranking = rank_matches_from_distances(distances, torch.tensor([7, 5]), torch.tensor([7, 5, 5]))
    >>> cumulative_matches(ranking, (1, 2, 3)).tolist()
    [0.0, 0.5, 1.0]
    """
    if not isinstance(ranking, Ranking):
        raise TypeError(f"ranking must be a Ranking, from rank_matches; got {type(ranking).__name__}")
    check_ranks(ranks)
    first = ranking.first_match_rank[ranking.matches > 0]
    return torch.stack([(first <= k).double().mean() for k in ranks])


def check_ranks(ranks: Sequence[int]) -> None:
    """Raise unless ranks is one or more whole numbers from 1."""
    check_items(ranks, "ranks", "whole numbers from 1")
    for k in ranks:
        check_whole(k, "ranks")
    if not len(ranks) or any(k < 1 for k in ranks):
        raise ValueError(f"ranks must be one or more ranks from 1; got {list(ranks)}")


def _rank(
    protocol: GalleryProtocol, blocks: Iterable[Tensor], limits: Sequence[int | None], part: slice | None = None
) -> list[Ranking]:
    """The ranking within each limit; none where there are no blocks."""
    for within in limits:
        if within is not None:
            check_whole(within, "within")
            if within < 1:
                raise ValueError(f"within must be a rank of 1 or more; got {within!r}")
    results: list[list[Ranking]] = [[] for _ in limits]
    for block, rows in protocol.number(blocks, part):
        found = match_ranks_of(rows, protocol.own_identity(block))
        for parts, within in zip(results, limits, strict=True):
            parts.append(ranking_of(found, within))
    return [joined(parts) for parts in results if parts]


def joined(parts: Sequence[Ranking]) -> Ranking:
    return Ranking(*(torch.cat(field) for field in zip(*parts, strict=True)))


def _of_all_ranks(
    own: Sequence[Ranking], count: int, lengths: list[int], device: torch.device, group: dist.ProcessGroup | None
) -> list[Ranking]:
    """`count` rankings of all queries from those of each rank's own queries, which may be none; in one exchange."""
    if group is None:
        return list(own)
    width = len(Ranking._fields)
    fields = [field.double() for ranking in own for field in ranking]
    table = torch.stack(fields, dim=1) if fields else torch.empty(0, count * width, dtype=torch.float64, device=device)
    columns = gather_rows(table, group, lengths=lengths).T.contiguous().split(width)
    return [Ranking(matches.long(), *others) for matches, *others in columns]


def ranking_of(found: MatchRanks, within: int | None) -> Ranking:
    """The Ranking of a block of queries."""
    count, ranks, real, columns = found
    if not ranks.shape[1]:  # no query of the block has a match
        nothing = torch.full_like(count, torch.nan, dtype=torch.float64)
        return Ranking(count, nothing, nothing, nothing, nothing, nothing)
    limit = within or max(1, columns)
    precision = torch.where(real & (ranks <= limit), found.nth / ranks, 0.0)
    total = count.double()  # 0 / 0 gives nan to queries without a match
    at_r = real & (ranks <= total[:, None])
    hardest = torch.where(real, ranks, 0.0).amax(dim=1)
    return Ranking(
        matches=count,
        first_match_rank=torch.where(count > 0, ranks[:, 0], torch.nan),
        average_precision=precision.sum(dim=1) / total,
        inverse_negative_penalty=total / hardest,
        average_precision_at_r=(precision * at_r).sum(dim=1) / total,
        r_precision=(at_r & (precision > 0)).sum(dim=1) / total.clamp_max(limit),
    )
