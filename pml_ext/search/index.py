"""Nearest-neighbour search in a gallery: exact up to EXACT_UP_TO rows, with a faiss index above that.

The index is an inverted file of 4-bit product codes; candidates are ranked again from 16-bit rows, and hits by their
exact scores. The first search that needs it builds it and keeps it in the gallery, where it is read memory-mapped. Rows
that it does not cover are all compared; above EXACT_UP_TO of them it is built again.
"""

import logging
import math
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import IO, Any

import numpy as np

from pml_ext._errors import import_library
from pml_ext.search.gallery import Gallery, IndexRecord
from pml_ext.search.readers import EmbeddingSet

log = logging.getLogger("pml_ext")

EXACT_UP_TO = 200_000  # rows; comparing as many of 128 dimensions takes 0.3 s, and building their index 6 s
RECALL = 0.95
_MOST_LISTS = 1024
_TRAINED_ON = 64  # rows for each list
_CODES, _WIDEST = 128, 4  # codes of 4 bits up to 512 dimensions, and dimensions of a code at most
_CANDIDATES = 50  # for each neighbour; on 200,000 rows whose variance falls as 1/j, 10 of them lose 5 %, and 50 0.2 %
_QUERIES, _NEIGHBOURS = 200, 10  # rows that recall is measured on, and how many neighbours of each


@dataclass(frozen=True)
class Neighbours:
    """Scores and row numbers (Q, k), the closest first; the row is −1 where the index finds fewer. how: in words."""

    scores: np.ndarray
    rows: np.ndarray
    how: str


def load_faiss() -> Any:
    return import_library("faiss", needed_for="searching", install="faiss-cpu")


def search(
    target: Gallery | EmbeddingSet, queries: np.ndarray, k: int, *, exact_up_to: int = EXACT_UP_TO
) -> Neighbours:
    """Find the k rows that are closest to each of `target.as_queries` (Q, D), all if there are fewer."""
    k = min(k, target.rows)
    if isinstance(target, Gallery) and target.rows > exact_up_to:
        index = _open_index(target, exact_up_to)
        if index is not None:
            return _search_index(target, *index, queries, k)
    scores, rows = search_all(target.vectors(), queries, k)
    return Neighbours(scores, rows, f"all {target.rows:,} rows compared")


def search_all(blocks: Iterable[tuple[int, np.ndarray]], queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Compare all rows; blocks: first row numbers and vectors. Returns scores and rows (Q, k)."""
    faiss = load_faiss()
    best = faiss.ResultHeap(len(queries), k, keep_max=True)
    for first, vectors in blocks:
        scores, found = faiss.knn(queries, vectors, min(k, len(vectors)), metric=faiss.METRIC_INNER_PRODUCT)
        best.add_result(scores, found + first)
    best.finalize()
    return best.D, best.I


def _search_index(gallery: Gallery, record: IndexRecord, index: Any, queries: np.ndarray, k: int) -> Neighbours:
    first_rows = gallery.first_rows()
    counts = np.array([*record.parts.values()])
    is_live = np.array([name in first_rows for name in record.parts])
    selector = None
    if not is_live.all():
        bits = np.packbits(np.repeat(is_live, counts), bitorder="little")
        selector = load_faiss().IDSelectorBitmap(bits)
    places = _candidates(index, queries, k, record.probes, selector)
    starts = np.cumsum(counts) - counts
    shifts = np.array([first_rows.get(name, 0) for name in record.parts]) - starts
    part_of = np.searchsorted(starts, places, side="right") - 1
    rows = np.where(places < 0, -1, places + shifts[part_of])
    scores = _exact_scores(gallery, queries, rows)
    how = (
        f"index, {record.probes:,} of {record.lists:,} lists, which hold {record.recall:.1%} of the true ten neighbours"
    )
    others = [name for name in first_rows if name not in record.parts]
    if others:
        other_rows = sum(gallery.manifest.parts[name] for name in others)
        more_scores, more_rows = search_all(gallery.vectors(others), queries, min(k, other_rows))
        scores, rows = np.hstack([scores, more_scores]), np.hstack([rows, more_rows])
        how += f"; {other_rows:,} newer rows compared"
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return Neighbours(np.take_along_axis(scores, order, 1), np.take_along_axis(rows, order, 1), how)


def _exact_scores(gallery: Gallery, queries: np.ndarray, rows: np.ndarray) -> np.ndarray:
    found = np.unique(rows[rows >= 0])
    vectors = gallery.take_vectors(found.tolist())
    scores = np.full(rows.shape, -np.inf, np.float32)
    for score, query, hits in zip(scores, queries, rows, strict=True):
        is_hit = hits >= 0
        score[is_hit] = vectors[np.searchsorted(found, hits[is_hit])] @ query
    return scores


def _candidates(index: Any, queries: np.ndarray, k: int, probes: int | None, selector: Any = None) -> np.ndarray:
    """The places (Q, k) of the closest rows in the index."""
    faiss = load_faiss()
    of_lists = faiss.SearchParametersIVF(nprobe=probes, sel=selector)
    rotated = faiss.SearchParametersPreTransform(index_params=of_lists)
    params = faiss.IndexRefineSearchParameters(k_factor=_CANDIDATES, base_index_params=rotated)
    # PML imports faiss.contrib.torch_utils, whose search takes no params.
    search_index = getattr(index, "search_numpy", index.search)
    places: np.ndarray = search_index(np.ascontiguousarray(queries), k, params=params)[1]
    return places


def _open_index(gallery: Gallery, exact_up_to: int) -> tuple[IndexRecord, Any] | None:
    """The gallery's index, built if needed; None if all lists hold too few neighbours, or if it cannot be written."""
    record = gallery.manifest.index
    index = None if record is None else _read_index(gallery, record)
    covered = 0 if record is None else sum(gallery.manifest.parts.get(name, 0) for name in record.parts)
    is_usable = record is not None and (index is not None or record.probes is None)
    if not is_usable or gallery.rows - covered > exact_up_to:
        log.info("%s: building an index of %d rows", gallery.folder, gallery.rows)
        try:
            record = build_index(gallery)
        except OSError as error:
            log.warning("the index cannot be written: %s", error)
            return None
        index = _read_index(gallery, record)
    return None if record is None or index is None else (record, index)


def _read_index(gallery: Gallery, record: IndexRecord) -> Any:
    """The index, memory-mapped; None if there is none, or a damaged one."""
    if record.probes is None:
        return None
    faiss = load_faiss()
    try:
        return faiss.read_index(str(gallery.folder / record.file), faiss.IO_FLAG_MMAP_IFC)
    except RuntimeError as error:
        log.warning("the index of %s cannot be read: %s", gallery.folder, error)
        return None


def build_index(gallery: Gallery) -> IndexRecord:
    """Build the index, measure how many lists a query must visit for RECALL, and keep both in the gallery."""
    faiss = load_faiss()
    parts = dict(gallery.manifest.parts)
    lists = min(round(math.sqrt(gallery.rows)), _MOST_LISTS)
    step = max(1, gallery.rows // (lists * _TRAINED_ON))
    sample = np.concatenate([vectors[-first % step :: step] for first, vectors in gallery.vectors()])
    dim = sample.shape[1]
    width = min(math.ceil(dim / _CODES), _WIDEST)
    codes = math.ceil(dim / width)
    # The random rotation spreads the variance over the codes.
    recipe = f"RR{codes * width},IVF{lists},PQ{codes}x4fs,Refine(SQfp16)"
    index = faiss.index_factory(dim, recipe, faiss.METRIC_INNER_PRODUCT)
    index.train(sample)
    refined = faiss.downcast_index(index.refine_index)
    refined.codes.resize(gallery.rows * refined.code_size)  # reserved, as growing it would take twice the memory
    refined.codes.resize(0)
    chosen = np.linspace(0, len(sample) - 1, _QUERIES).astype(np.int64)
    queries = sample[chosen]
    if gallery.cohort is not None:
        queries[:, -2:] = queries[:, :-3:-1]  # the same rows as queries
    best = faiss.ResultHeap(len(queries), _NEIGHBOURS + 1, keep_max=True)  # the row itself may be among them
    for first, vectors in gallery.vectors():
        index.add(vectors)
        count = min(_NEIGHBOURS + 1, len(vectors))
        scores, found = faiss.knn(queries, vectors, count, metric=faiss.METRIC_INNER_PRODUCT)
        best.add_result(scores, found + first)
    best.finalize()
    probes, recall = _choose_probes(index, lists, queries, best.I, own=chosen * step)
    record = IndexRecord(f"index.{secrets.token_hex(6)}.faiss", parts, lists, probes, recall)

    def write(file: IO[bytes]) -> None:
        faiss.write_index(index, faiss.PyCallbackIOWriter(file.write))

    gallery.keep_index(record, None if probes is None else write)
    return record


def _choose_probes(
    index: Any, lists: int, queries: np.ndarray, truth: np.ndarray, own: np.ndarray
) -> tuple[int | None, float]:
    """The least power of two of lists that reaches RECALL, and the recall; None if all lists do not."""
    probes = 1
    while True:
        found = _candidates(index, queries, _NEIGHBOURS + 1, probes)
        shares = []
        for hits, neighbours, row in zip(found.tolist(), truth.tolist(), own.tolist(), strict=True):
            others = set(neighbours) - {row}
            shares.append(len(others.intersection(hits)) / len(others))
        recall = float(np.mean(shares))
        if recall >= RECALL:
            return probes, recall
        if probes == lists:
            return None, recall
        probes = min(2 * probes, lists)
