"""Retrieval ranks under the person re-identification gallery protocol, in blocks of queries."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch import distributed as dist

from pml_ext._ops.distributed import gather_rows, rows_of_rank
from pml_ext._shared.checks import (
    check_embeddings,
    check_finite,
    check_items,
    check_labels,
    check_switch,
    check_tensor,
    check_whole,
)
from pml_ext._shared.identities import JUNK, is_ranked
from pml_ext.functional.retrieval.feature_distances import (
    check_features,
    distance_blocks,
    prepare_features,
    rows_at_once,
    tie_widths,
)


class SameIdentity(NamedTuple):
    """The gallery items of each query's identity, (q, K), padded."""

    columns: Tensor  # columns in the distances
    exists: Tensor  # False for padding
    matches: Tensor  # True for items that count


class GalleryProtocol:
    """Identities and cameras of Q queries and G gallery items, checked and grouped; identity −1 is junk, removed.

    A match from the query's camera does not count, nor does the query itself if the gallery starts with the queries.
    """

    def __init__(
        self,
        shape: tuple[int, int],
        query_labels: Tensor,
        gallery_labels: Tensor,
        query_cameras: Tensor | None,
        gallery_cameras: Tensor | None,
        gallery_includes_query: bool,
        device: torch.device,
    ) -> None:
        query_labels = check_labels(query_labels, shape[0], "query_labels")
        gallery_labels = check_labels(gallery_labels, shape[1], "gallery_labels")
        if (query_cameras is None) != (gallery_cameras is None):
            raise ValueError("query_cameras and gallery_cameras must be given together; got only one of them")
        if query_cameras is not None and gallery_cameras is not None:
            query_cameras = check_labels(query_cameras, shape[0], "query_cameras")
            gallery_cameras = check_labels(gallery_cameras, shape[1], "gallery_cameras")
            query_cameras, gallery_cameras = (ids.to(device) for ids in (query_cameras, gallery_cameras))
        check_switch(gallery_includes_query, "gallery_includes_query")
        if gallery_includes_query and shape[1] < shape[0]:
            raise ValueError(f"gallery must start with the {shape[0]} queries; got {shape[1]} items")
        query_labels, gallery_labels = (ids.to(device).contiguous() for ids in (query_labels, gallery_labels))
        (self._queries, self._gallery), self.query_labels = shape, query_labels
        self._query_cameras, self._gallery_cameras = query_cameras, gallery_cameras
        self._includes_query = gallery_includes_query
        # `kept` are the gallery indices without junk (None: all).
        is_junk = gallery_labels == JUNK
        self.kept = (~is_junk).nonzero().squeeze(1) if bool(is_junk.any()) else None
        self.labels = gallery_labels if self.kept is None else gallery_labels[self.kept]
        self._by_label = torch.argsort(self.labels, stable=True)
        ordered = self.labels[self._by_label]
        self._starts = torch.searchsorted(ordered, query_labels)
        self._sizes = torch.searchsorted(ordered, query_labels, right=True) - self._starts

    def same_identity(self, block: slice) -> SameIdentity:
        """Returns the SameIdentity of a block's queries; columns index the gallery without junk."""
        starts, sizes = self._starts[block, None], self._sizes[block, None]
        steps = torch.arange(int(sizes.max()), device=sizes.device)
        exists = steps < sizes
        columns = self._by_label[(starts + steps).clamp_max(max(0, len(self.labels) - 1))]
        place = columns if self.kept is None else self.kept[columns]
        matches = exists.clone()
        if self._query_cameras is not None and self._gallery_cameras is not None:
            query = self.query_labels[block, None], self._query_cameras[block, None]
            matches &= is_ranked(query, (self.labels[columns], self._gallery_cameras[place]))
        if self._includes_query:
            matches &= place != torch.arange(block.start, block.stop, device=place.device)[:, None]
        return SameIdentity(columns, exists, matches)

    def drop_junk(self, distances: Tensor | Iterable[Tensor]) -> Iterator[Tensor]:
        """Yield blocks of rows of a (Q, G) matrix, or the blocks passed, without junk and in float32 or better."""
        blocks = distances.split(rows_at_once(self._gallery)) if isinstance(distances, Tensor) else distances
        for block in blocks:
            if not isinstance(block, Tensor):
                raise TypeError(f"distances must be a torch.Tensor or blocks of them; got {type(block).__name__}")
            if block.ndim != 2 or block.shape[1] != self._gallery:
                raise ValueError(
                    f"blocks of distances must have {self._gallery} columns, one per gallery item; "
                    f"got shape {tuple(block.shape)}"
                )
            if block.is_complex():
                raise ValueError(f"distances must be real numbers; got {block.dtype}")
            # 16 bits are enough for distances but not for the counts that follow.
            wide = block.detach().to(torch.promote_types(block.dtype, torch.float32))
            yield wide if self.kept is None else wide[:, self.kept]

    def number(self, blocks: Iterable[Tensor], part: slice | None = None) -> Iterator[tuple[slice, Tensor]]:
        """Yield each block with its queries in `part` (None: all Q); raise unless the number of rows matches."""
        done, end = (0, self._queries) if part is None else (part.start, part.stop)
        for rows in blocks:
            done += len(rows)
            if done > end:
                break
            if len(rows):
                yield slice(done - len(rows), done), rows
        if done != end:
            raise ValueError(
                f"blocks of distances must have {self._queries} rows in all, one per query; "
                f"got {done}{' or more' if done > self._queries else ''}"
            )


def protocol_of_distances(
    distances: Tensor | Iterable[Tensor],
    query_labels: Tensor,
    gallery_labels: Tensor,
    query_cameras: Tensor | None,
    gallery_cameras: Tensor | None,
    gallery_includes_query: bool,
) -> GalleryProtocol:
    """Returns the protocol for a (Q, G) matrix, or for blocks of its rows on the labels' device."""
    if isinstance(distances, Tensor):
        check_embeddings(distances, "distances")
        shape, device = (distances.shape[0], distances.shape[1]), distances.device
    elif isinstance(distances, (str, bytes)) or not isinstance(distances, Iterable):
        raise TypeError(f"distances must be a torch.Tensor or blocks of them; got {type(distances).__name__}")
    else:
        check_tensor(query_labels, "query_labels", "(Q,)")
        check_tensor(gallery_labels, "gallery_labels", "(G,)")
        shape, device = (len(query_labels), len(gallery_labels)), gallery_labels.device
    return GalleryProtocol(
        shape, query_labels, gallery_labels, query_cameras, gallery_cameras, gallery_includes_query, device
    )


class MatchRanks(NamedTuple):
    """The ranks of the matches of a block of queries, closest first."""

    matches: Tensor  # (q,) int64, number of matches of each query
    ranks: Tensor  # (q, K) float64, from 1; rows with fewer matches are padded
    real: Tensor  # (q, K) bool, False for padding
    columns: int  # number of gallery items ranked

    @property
    def nth(self) -> Tensor:
        """Returns the (K,) match numbers, from 1."""
        return torch.arange(1, self.ranks.shape[1] + 1, device=self.ranks.device)


def match_ranks_of(rows: Tensor, identity: SameIdentity, widths: Tensor | None = None) -> MatchRanks:
    """Rank the matches among (q, G) distances: the j-th has rank j + the non-matches at its distance or closer.

    widths: (q,) differences up to which distances count as equal; None: 0.
    """
    distances, exists, matches = rows.gather(1, identity.columns), identity.exists, identity.matches
    count = matches.sum(dim=1)
    beyond = torch.finfo(rows.dtype).max
    matched = torch.where(matches, distances, beyond).sort(dim=1).values[:, : int(count.max())].contiguous()
    same = torch.where(exists, distances, beyond).sort(dim=1).values
    nth = torch.arange(1, matched.shape[1] + 1, device=rows.device)
    limits = matched if widths is None else matched + widths[:, None]
    closer = count_up_to(rows, limits, count) - torch.searchsorted(same, limits, right=True)
    return MatchRanks(count, (nth + closer).double(), nth <= count[:, None], rows.shape[1])


def count_up_to(rows: Tensor, limits: Tensor, used: Tensor) -> Tensor:
    """Returns (q, K) numbers of entries of each (q, G) row at or below its ascending (q, K) limits; checks the entries.

    used: (q,) number of valid limits per row; counts at other limits are arbitrary.
    """
    check_finite(rows, "distances")
    if rows.device.type != "cpu":
        return torch.searchsorted(rows.sort(dim=1).values, limits, right=True)
    # numpy sorts a row many times faster than torch on the CPU.
    counts = np.zeros(limits.shape, dtype=np.int64)
    for of_row, row, asked, count in zip(counts, rows.numpy(), limits.numpy(), used.tolist(), strict=True):
        if count:
            near = row[row <= asked[count - 1]]
            near.sort()
            of_row[:count] = near.searchsorted(asked[:count], side="right")
    return torch.from_numpy(counts)


class Ranking(NamedTuple):
    """Per-query results, (Q,) float64, fractions; nan if a query has no match (`matches` 0).

    Attributes:
        matches: (Q,) int64, R: number of gallery items of the query's identity that count.
        first_match_rank: rank of the closest match, from 1.
        average_precision: mean over the matches of (matches so far) / rank.
        inverse_negative_penalty: R / rank of the farthest match.
        average_precision_at_r: the average precision's sum over ranks up to R, divided by R.
        r_precision: share of matches among the first R ranks (or the first `within`, if fewer).

    >>> distances = torch.tensor([[0.1, 0.2, 0.3]])
    >>> ranking = rank_matches_from_distances(distances, torch.tensor([7]), torch.tensor([7, 5, 7]))
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
    """Rank the gallery for each query by feature distance.

    Gallery items of the query's identity *and* camera are removed before ranking. Identity −1 is junk: ignored in the
    gallery, not evaluated as a query. All other identities are ordinary, including Market-1501's distractor 0. Ties
    are pessimistic: a non-match at the distance of a match ranks before it. Cosines within 1e-6 tie, because rounding
    separates those of equal rows; for squared Euclidean distances the width is 1e-6 times the squared distance of the
    query from the gallery's mean, plus that of the gallery on average.

    Args:
        query, gallery: (Q, D) and (G, D), finite. A zero row has cosine 0 with everything.
        query_labels, gallery_labels: (Q,) and (G,) integer identities.
        query_cameras, gallery_cameras: (Q,) and (G,) integers, or None to ignore cameras.
        gallery_includes_query: the gallery starts with the queries in the same order; a query never finds itself.
        within: matches beyond this rank do not count in the three precisions; None: no limit.
        metric: "cosine" (normalised here) or "euclidean" (not normalised).
        group: the ranks that share the queries, each with the same arguments; all get the result, which is that of one
            process, bit for bit on the same kind of machine with as many threads. None: this process alone.
    Raises:
        ValueError: wrong shapes or types, values not finite, cameras on one side only, an unknown metric.
    Source: Zheng et al., ICCV 2015 (protocol); Ye et al., arXiv 2001.04193 (inverse negative penalty).

    >>> gallery = torch.tensor([[1.0, 0.1], [1.0, 1.0], [0.0, 1.0]])
    >>> query, labels = torch.tensor([[1.0, 0.0]]), torch.tensor([7])
    >>> ranking = rank_matches(query, labels, gallery, torch.tensor([5, 7, 7]))
    >>> float(ranking.first_match_rank), round(float(ranking.average_precision), 3)
    (2.0, 0.583)
    """
    check_features(query, gallery, metric)
    protocol = GalleryProtocol(
        (len(query), len(gallery)),
        query_labels,
        gallery_labels,
        query_cameras,
        gallery_cameras,
        gallery_includes_query,
        query.device,
    )
    rows, columns = prepare_features(query, gallery if protocol.kept is None else gallery[protocol.kept], metric)
    block, lengths = rows_of_rank(len(rows), rows_at_once(len(columns)), group)
    widths = tie_widths(rows, columns, metric)
    ranking = _rank(protocol, distance_blocks(rows[block], columns, metric), within, block, widths)
    return _of_all_ranks(ranking, lengths, group)


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
    """Compute `rank_matches` from finite distances, smaller is closer; only equal distances tie.

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
    return _rank(protocol, protocol.drop_junk(distances), within)


def cumulative_matches(ranking: Ranking, ranks: Sequence[int] = (1, 5, 10)) -> Tensor:
    """Returns the CMC: the share of queries whose closest match has rank k or better, among queries with a match.

    Args:
        ranking: from `rank_matches`.
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
    if not len(ranks):
        raise ValueError("ranks must have at least one rank; got none")
    for k in ranks:
        check_whole(k, "ranks", 1)


def _rank(
    protocol: GalleryProtocol,
    blocks: Iterable[Tensor],
    within: int | None,
    part: slice | None = None,
    widths: Tensor | None = None,
) -> Ranking:
    """Returns the ranking of the queries in `part`, possibly none; widths: (Q,), see `match_ranks_of`."""
    if within is not None:
        check_whole(within, "within", 1)
    nothing = torch.empty(0, dtype=torch.float64, device=protocol.query_labels.device)
    parts = [Ranking(nothing.long(), *[nothing] * 5)]
    for block, rows in protocol.number(blocks, part):
        ranks = match_ranks_of(rows, protocol.same_identity(block), None if widths is None else widths[block])
        parts.append(ranking_of(ranks, within))
    return Ranking(*(torch.cat(field) for field in zip(*parts, strict=True)))


def _of_all_ranks(ranking: Ranking, lengths: list[int], group: dist.ProcessGroup | None) -> Ranking:
    """Gather the ranking of all queries from each rank's queries (possibly none), in one exchange."""
    if group is None:
        return ranking
    table = torch.stack([field.double() for field in ranking], dim=1)
    matches, *others = gather_rows(table, group, lengths=lengths).T.contiguous()
    return Ranking(matches.long(), *others)


def ranking_of(matches: MatchRanks, within: int | None) -> Ranking:
    """Returns the Ranking of a block of queries."""
    count, ranks, real, columns = matches
    if not ranks.shape[1]:  # no query of the block has a match
        nothing = torch.full_like(count, torch.nan, dtype=torch.float64)
        return Ranking(count, nothing, nothing, nothing, nothing, nothing)
    limit = within or max(1, columns)
    precision = torch.where(real & (ranks <= limit), matches.nth / ranks, 0.0)
    total = count.double()  # 0 / 0 gives nan to queries without a match
    at_r = real & (ranks <= total[:, None])
    first = torch.where(count > 0, ranks[:, 0], torch.nan)
    hardest = torch.where(real, ranks, 0.0).amax(dim=1)
    average_precision = precision.sum(dim=1) / total
    average_precision_at_r = (precision * at_r).sum(dim=1) / total
    r_precision = (at_r & (precision > 0)).sum(dim=1) / total.clamp_max(limit)
    return Ranking(count, first, average_precision, total / hardest, average_precision_at_r, r_precision)
