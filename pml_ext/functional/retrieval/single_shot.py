"""Ranks in galleries with one random image per identity."""

from collections.abc import Iterable

import torch
from torch import Tensor

from pml_ext._checks import check_finite, check_seed, check_whole
from pml_ext.functional.retrieval.feature_distances import check_features, distance_blocks, prepare_features
from pml_ext.functional.retrieval.ranking import GalleryProtocol, Ranking, protocol_of_distances

_MOST_REPEATS = 10**5


def rank_single_shot(
    query: Tensor,
    query_labels: Tensor,
    gallery: Tensor,
    gallery_labels: Tensor,
    *,
    query_cameras: Tensor | None = None,
    gallery_cameras: Tensor | None = None,
    metric: str = "cosine",
    repeats: int = 10,
    seed: int = 0,
) -> Ranking:
    """Rank galleries with one random image per identity, the single-gallery-shot protocol of CUHK03.

    Each repeat draws one image per identity for all queries. For its own identity, each query gets an image drawn from
    those of other cameras, so a query with any match in the gallery has exactly one match per repeat.
    Identity −1 is junk; 0 is an ordinary identity. Ties are pessimistic.

    Args:
        repeats: independent draws, 1 or more.
        seed: seed of the draws, which are made on the CPU.
        others: see `rank_matches`.
    Returns:
        Ranking with fields of shape (repeats, Q); with one match the average precision is 1 / rank.
    Raises:
        ValueError: see `rank_matches`; repeats below 1.
    Source: Li et al., CVPR 2014 (CUHK03), Liu et al., CVPR 2016 (VehicleID; 10 repeats). FastReID draws a gallery per
        query and computes mAP over the complete gallery; here: one gallery for all queries, and mAP over it.

    >>> query, gallery = torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 0.1], [1.0, 0.1], [0.0, 1.0]])
    >>> ranking = rank_single_shot(query, torch.tensor([7]), gallery, torch.tensor([7, 7, 5]), repeats=2)
    >>> ranking.first_match_rank.tolist()
    [[1.0], [1.0]]
    """
    check_features(query, gallery, metric)
    shape = (len(query), len(gallery))
    labels_and_cameras = (query_labels, gallery_labels, query_cameras, gallery_cameras)
    protocol = GalleryProtocol(shape, *labels_and_cameras, False, query.device)
    rows, columns = prepare_features(query, gallery if protocol.kept is None else gallery[protocol.kept], metric)
    blocks = distance_blocks(rows, columns, metric)
    return _rank(protocol, blocks, repeats, seed)


def rank_single_shot_from_distances(
    distances: Tensor | Iterable[Tensor],
    query_labels: Tensor,
    gallery_labels: Tensor,
    *,
    query_cameras: Tensor | None = None,
    gallery_cameras: Tensor | None = None,
    repeats: int = 10,
    seed: int = 0,
) -> Ranking:
    """Compute `rank_single_shot` for given finite distances: a (Q, G) matrix or blocks of its rows in order.

    >>> distances = torch.tensor([[0.3, 0.3, 0.2]])
    >>> labels, gallery_labels = torch.tensor([7]), torch.tensor([7, 7, 5])
    >>> ranking = rank_single_shot_from_distances(distances, labels, gallery_labels, repeats=2)
    >>> ranking.first_match_rank.tolist()
    [[2.0], [2.0]]
    """
    labels_and_cameras = (query_labels, gallery_labels, query_cameras, gallery_cameras)
    protocol = protocol_of_distances(distances, *labels_and_cameras, False)
    return _rank(protocol, protocol.drop_junk(distances), repeats, seed)


def check_repeats(repeats: int) -> None:
    """Raise unless repeats is a whole number from 1 to the limit."""
    check_whole(repeats, "repeats", 1, _MOST_REPEATS)


def _rank(protocol: GalleryProtocol, blocks: Iterable[Tensor], repeats: int, seed: int) -> Ranking:
    check_repeats(repeats)
    check_seed(seed)
    device = protocol.labels.device
    generator = torch.Generator().manual_seed(seed)
    galleries = [_draw_one_of_each(protocol.labels, generator) for _ in range(repeats)]
    draws = torch.rand(repeats, len(protocol.query_labels), generator=generator, dtype=torch.float64).to(device)
    ranks, matches = [], []
    for block, rows in protocol.number(blocks):
        check_finite(rows, "distances")
        own = protocol.own_identity(block)
        count = own.matches.sum(dim=1)
        found = torch.full((repeats, len(rows)), torch.nan, dtype=torch.float64, device=device)
        if own.columns.shape[1]:
            labels = protocol.query_labels[block, None]
            for repeat, drawn in enumerate(galleries):
                nth = (draws[repeat, block] * count).long().clamp_max(count - 1) + 1
                is_nth = own.matches & (own.matches.cumsum(dim=1) == nth[:, None])
                pick = is_nth.int().argmax(dim=1, keepdim=True)
                match = rows.gather(1, own.columns.gather(1, pick))
                closer = (rows[:, drawn] <= match) & (protocol.labels[drawn] != labels)
                found[repeat] = torch.where(count > 0, 1.0 + closer.sum(dim=1), torch.nan)
        ranks.append(found)
        matches.append((count > 0).long().expand(repeats, -1))
    first, one = torch.cat(ranks, dim=1), torch.cat(matches, dim=1)
    precision = 1 / first
    at_first = torch.where(one > 0, (first == 1).double(), torch.nan)
    return Ranking(one, first, precision, precision, at_first, at_first)


def _draw_one_of_each(labels: Tensor, generator: torch.Generator) -> Tensor:
    """Returns one random index of each label: the first in a random order."""
    order = torch.randperm(len(labels), generator=generator).to(labels.device)
    shuffled = labels[order]
    by_label = torch.argsort(shuffled, stable=True)
    ordered = shuffled[by_label]
    starts = torch.ones_like(ordered, dtype=torch.bool)
    starts[1:] = ordered[1:] != ordered[:-1]
    return order[by_label[starts]]
