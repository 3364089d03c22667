"""Nearest-neighbour search in a gallery: exact up to EXACT_UP_TO rows, with a faiss index above that.

A search for more than 100 hits is exact, too. The index is an inverted file of 4-bit product codes. It proposes
candidates, which are rescored exactly with their rows in the gallery. The first search that needs an index builds it
and stores it in the gallery. The first search after a change of the gallery rebuilds it.
"""

import logging
import math
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import IO, Any

import numpy as np

from pml_ext._errors import import_library
from pml_ext.search.gallery import Gallery, IndexDepth, IndexRecord
from pml_ext.search.readers import EmbeddingSet

log = logging.getLogger("pml_ext")

EXACT_UP_TO = 200_000  # rows; comparing this many of 128 dimensions takes 0.05 s, building their index 6 s
RECALL = 0.97  # on sampled rows; gives more than 0.95 on other rows
_MOST_LISTS = 1024
_TRAINED_ON = 64  # rows per list
_CANDIDATES = 50  # per neighbour; on 1,000,000 rows with variance falling as 1/j, 10 candidates lose 3 %, 50 lose 0.2 %
_QUERIES, _NEIGHBOURS = 200, (10, 100)  # rows on which recall is measured, and neighbours per row
_RANKED_AT_ONCE = 2**26  # floats


@dataclass(frozen=True)
class Neighbours:
    """Scores and row numbers (Q, k), closest first; −1 if the index finds fewer. how: description of the search."""

    scores: np.ndarray
    rows: np.ndarray
    how: str


def _load_faiss() -> Any:
    return import_library("faiss", needed_for="searching", install="faiss-cpu")


def search(
    target: Gallery | EmbeddingSet, queries: np.ndarray, k: int, *, exact_up_to: int = EXACT_UP_TO
) -> Neighbours:
    """Find the k rows closest to each query, (Q, D) from `target.as_queries`; all rows if there are fewer."""
    k = min(k, target.rows)
    if isinstance(target, Gallery) and target.rows > exact_up_to and k <= _NEIGHBOURS[-1]:
        opened = _open_index(target)
        depths = [] if opened is None else [depth for depth in opened[0].depths if k <= depth.neighbours]
        if opened is not None and depths:
            return _search_index(target, opened, depths[0], queries, k)
    scores, rows = search_all(target.vectors(), queries, k)
    return Neighbours(scores, rows, f"all {target.rows:,} rows compared")


def search_all(blocks: Iterable[tuple[int, np.ndarray]], queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Compare all rows; blocks: first row numbers and vectors. Returns scores and rows (Q, k)."""
    faiss = _load_faiss()
    best = faiss.ResultHeap(len(queries), k, keep_max=True)
    for first, vectors in blocks:
        scores, rows = faiss.knn(queries, vectors, min(k, len(vectors)), metric=faiss.METRIC_INNER_PRODUCT)
        best.add_result(scores, rows + first)
    best.finalize()
    return best.D, best.I


def _search_index(
    gallery: Gallery, opened: tuple[IndexRecord, Any], depth: IndexDepth, queries: np.ndarray, k: int
) -> Neighbours:
    record, index = opened
    rows = _candidates(index, queries, k, depth.probes)
    scores, rows = _rank(gallery, queries, rows, k)
    how = (
        f"index, {depth.probes:,} of {record.lists:,} lists, which hold {depth.recall:.1%} of the true "
        f"{depth.neighbours} neighbours"
    )
    return Neighbours(scores, rows, how)


def _candidates(index: Any, queries: np.ndarray, k: int, probes: int) -> np.ndarray:
    """Returns candidate rows (Q, C) for the k closest; −1 if the index finds fewer."""
    faiss = _load_faiss()
    of_lists = faiss.SearchParametersIVF(nprobe=probes)
    params = faiss.SearchParametersPreTransform(index_params=of_lists)
    # PML imports faiss.contrib.torch_utils, whose search takes no params.
    search_index = getattr(index, "search_numpy", index.search)
    count = _CANDIDATES * max(k, _NEIGHBOURS[0])
    rows: np.ndarray = search_index(np.ascontiguousarray(queries), count, params=params)[1]
    return rows


def _rank(gallery: Gallery, queries: np.ndarray, rows: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns exact scores and rows (Q, k) of the best candidates among (Q, C)."""
    scores = np.empty(rows.shape, np.float32)
    step = max(1, _RANKED_AT_ONCE // (rows.shape[1] * queries.shape[1]))
    for start in range(0, len(rows), step):
        candidates = np.maximum(rows[start : start + step], 0)
        needed = np.unique(candidates)
        vectors = gallery.take_vectors(needed)
        for query, hits in enumerate(np.searchsorted(needed, candidates), start=start):
            scores[query] = vectors[hits] @ queries[query]
    scores[rows < 0] = -np.inf
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(scores, order, 1), np.take_along_axis(rows, order, 1)


def _open_index(gallery: Gallery) -> tuple[IndexRecord, Any] | None:
    """Returns the gallery's index, built if needed; None if its recall is too low or it cannot be written or read."""
    record = gallery.manifest.index
    is_current = record is not None and record.parts == [*gallery.manifest.parts]
    if record is None or not is_current or (record.depths and _read_index(gallery, record) is None):
        log.info("%s: building an index of %d rows", gallery.folder, gallery.rows)
        try:
            record = build_index(gallery)
        except OSError as error:
            log.warning("the index cannot be written: %s", error)
            return None
    index = _read_index(gallery, record) if record.depths else None
    return None if index is None else (record, index)


def _read_index(gallery: Gallery, record: IndexRecord) -> Any:
    """Returns the index; None if it is missing or damaged."""
    if record.file not in gallery.indices:
        try:
            gallery.indices = {record.file: _load_faiss().read_index(str(gallery.folder / record.file))}
        except RuntimeError as error:
            log.warning("the index of %s cannot be read: %s", gallery.folder, error)
            return None
    return gallery.indices[record.file]


def build_index(gallery: Gallery) -> IndexRecord:
    """Build the index, choose the number of lists that reaches RECALL, and store both in the gallery."""
    faiss = _load_faiss()
    parts = [*gallery.manifest.parts]
    lists = min(round(math.sqrt(gallery.rows)), _MOST_LISTS)
    sampled = np.arange(0, gallery.rows, max(1, gallery.rows // (lists * _TRAINED_ON)))
    sample = gallery.take_vectors(sampled)
    dim = sample.shape[1]
    width = 2 if dim <= 256 else 4  # dimensions per code
    codes = math.ceil(dim / width)
    # The random rotation spreads the variance over the codes.
    index = faiss.index_factory(dim, f"RR{codes * width},IVF{lists},PQ{codes}x4fs", faiss.METRIC_INNER_PRODUCT)
    index.train(sample)
    for _, vectors in gallery.vectors():
        index.add(vectors)
    chosen = np.linspace(0, len(sample) - 1, _QUERIES).astype(np.int64)
    queries = sample[chosen]
    if gallery.cohort is not None:
        queries[:, -2:] = queries[:, :-3:-1]  # the same rows as queries
    most = min(_NEIGHBOURS[-1] + 1, gallery.rows)  # results may include the row itself
    nearest = search_all(gallery.vectors(), queries, most)[1]
    depths = _choose_depths(index, lists, queries, nearest, sampled[chosen])
    record = IndexRecord(f"index.{secrets.token_hex(6)}.faiss", parts, lists, depths)

    def write(file: IO[bytes]) -> None:
        faiss.write_index(index, faiss.PyCallbackIOWriter(file.write))

    gallery.keep_index(record, write if depths else None)
    return record


def _choose_depths(
    index: Any, lists: int, queries: np.ndarray, nearest: np.ndarray, rows: np.ndarray
) -> list[IndexDepth]:
    """Returns the fewest lists (to about 1/8) that reach RECALL, by number of neighbours; none if all are not enough.

    queries: (Q, D); nearest, rows: (Q, N) nearest rows of each query, and (Q,) its row.
    """
    steps = np.unique(np.geomspace(1, lists, 60).round().astype(int)).tolist()
    depths = list[IndexDepth]()
    for neighbours in _NEIGHBOURS:
        for probes in steps:
            candidates = _candidates(index, queries, neighbours, probes)
            recall = _recall(candidates, nearest[:, : neighbours + 1], rows)
            if recall >= RECALL:
                depths.append(IndexDepth(neighbours, probes, recall))
                break
    return depths


def _recall(candidates: np.ndarray, nearest: np.ndarray, rows: np.ndarray) -> float:
    """Returns the share of the nearest rows, without the query's row, among the candidates."""
    shares = []
    for hits, neighbours, row in zip(candidates, nearest, rows, strict=True):
        others = neighbours[neighbours != row]
        shares.append(np.isin(others, hits).mean())
    return float(np.mean(shares))
