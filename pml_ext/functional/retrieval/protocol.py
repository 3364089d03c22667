"""The gallery protocol of person re-identification: which gallery items count for which query."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from pml_ext._checks import check_embeddings, check_labels, check_switch, check_tensor
from pml_ext._identities import JUNK
from pml_ext.functional.retrieval.feature_distances import rows_at_once


class OwnIdentity(NamedTuple):
    """The gallery items of each query's identity, (q, K), padded."""

    columns: Tensor  # their columns in the distances
    exists: Tensor  # False for padding
    matches: Tensor  # those that count


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
        query_labels, gallery_labels = (
            ids.to(device, torch.int64).contiguous() for ids in (query_labels, gallery_labels)
        )
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

    def own_identity(self, block: slice) -> OwnIdentity:
        """For the queries in the block; columns index the gallery without junk."""
        starts, sizes = self._starts[block, None], self._sizes[block, None]
        steps = torch.arange(int(sizes.max()), device=sizes.device)
        exists = steps < sizes
        columns = self._by_label[(starts + steps).clamp_max(max(0, len(self.labels) - 1))]
        place = columns if self.kept is None else self.kept[columns]
        matches = exists.clone()
        if self._query_cameras is not None and self._gallery_cameras is not None:
            matches &= self._gallery_cameras[place] != self._query_cameras[block, None]
        if self._includes_query:
            matches &= place != torch.arange(block.start, block.stop, device=place.device)[:, None]
        return OwnIdentity(columns, exists, matches)

    def drop_junk(self, distances: Tensor | Iterable[Tensor]) -> Iterator[Tensor]:
        """Yield blocks of rows of a (Q, G) matrix, or the given blocks, without junk and in float32 or better."""
        blocks = distances.split(rows_at_once(self._gallery)) if isinstance(distances, Tensor) else distances
        if not isinstance(blocks, Iterable):
            raise TypeError(f"distances must be a torch.Tensor or blocks of them; got {type(blocks).__name__}")
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
        """Yield each block with its queries, those in `part` (None: all Q); raise unless there are so many rows."""
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
    """The protocol for a (Q, G) matrix, or for blocks of its rows on the labels' device."""
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
