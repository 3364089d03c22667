"""The rows of a file of embeddings that are closest to a query: by comparing all of them, or with an index.

- Up to EXACT_UP_TO rows a search is exact: it compares the query with every row.
- Above that, it uses an inverted file of faiss, built once, kept beside the embeddings with checksums of itself and of
  their rows, and mapped into memory. One that is not of these rows, or damaged, is built again. A query looks at as
  many of its lists as find RECALL of the true neighbours of a sample of the rows; where that takes all lists, the
  search is exact, too. `Nearest.is_exact` and `Nearest.recall` say which it is.
"""

import logging
import math
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from pml_ext._errors import UserError, import_library
from pml_ext.metrics import CohortNormalization, GalleryCohort
from pml_ext.search.embedding_blocks import ContentChecksum
from pml_ext.search.embedding_file import EmbeddingFile
from pml_ext.search.kept_index import KeptIndex, keep, note_seen, read_kept
from pml_ext.search.model_record import CohortUse
from pml_ext.search.normalized_scores import as_queries, indexed_vectors, search_vectors

log = logging.getLogger("pml_ext")

EXACT_UP_TO = 100_000
RECALL = 0.95
_TRAINED_ON = 64  # rows for each list
_PROBED_WITH, _NEIGHBOURS = 100, 10  # rows that recall is measured on, and how many neighbours of each


@dataclass(frozen=True)
class Nearest:
    """Rows in an index of faiss. A query looks at `probes` of its `lists`, both 0 where it has none.

    `recall` is the share of the ten true neighbours that is found, measured on rows of the file.
    """

    index: Any
    lists: int = 0
    probes: int = 0
    recall: float = 1.0

    @property
    def is_exact(self) -> bool:
        return self.probes == self.lists

    def search(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Scores and numbers of the rows that are closest to queries (Q, D), the closest first.

        Queries are of unit length, or the queries' side of `search_vectors`; scores are inner products. Both are
        (Q, k), k at most the number of rows. The row is −1 where an index finds fewer.
        """
        cosines, rows = self.index.search(np.ascontiguousarray(queries), min(k, self.index.ntotal))
        return cosines, rows


def open_nearest(file: EmbeddingFile, *, exact_up_to: int = EXACT_UP_TO) -> Nearest:
    """The rows of a file; above `exact_up_to` by the index beside it, which is built or completed where needed."""
    faiss, use = _faiss(), file.record.normalization if file.record else None
    if file.rows <= exact_up_to:
        return exact_nearest(indexed_vectors(block, use) for block in file.blocks())
    kept = read_kept(file)
    if kept is not None and kept.is_as_seen(file):
        return _map(file, kept, faiss)
    if kept is not None and not kept.is_whole(file):
        log.warning("%s was changed or damaged after it was written", kept.path_beside(file))
        kept = None
    rows = file.read_checksum() if kept else ""
    if kept is not None and kept.strength != (use.strength if use else None):
        kept = None
    if kept is not None and kept.rows == rows:
        with suppress(OSError):  # a folder that is not writable
            note_seen(file, kept)
        return _map(file, kept, faiss)
    rows_before = {past.name: past.rows for past in file.versions}.get(kept.rows) if kept else None
    if kept is not None and rows_before is not None and file.rows <= 2 * kept.built_for:
        log.info("%s: adding %d rows to its index", file.path, file.rows - rows_before)
        index, new = faiss.read_index(str(kept.path_beside(file))), replace(kept, rows=rows)
        for block in file.blocks(rows_before):
            index.add(indexed_vectors(block, use))
    else:
        log.info("%s: building an index of %d rows, once", file.path, file.rows)
        index, new = _build(file, use, faiss)
    written = keep(file, new, lambda path: faiss.write_index(index, path))
    if written is not None:
        return _map(file, written, faiss)
    index.nprobe = new.probes
    return Nearest(index, new.lists, new.probes, new.recall)


def exact_nearest(blocks: Iterable[np.ndarray]) -> Nearest:
    """All rows of blocks (n, D), compared by inner product."""
    index: Any = None
    for vectors in blocks:
        if index is None:
            index = _faiss().IndexFlatIP(vectors.shape[1])
        index.add(vectors)
    return Nearest(index)


def search_gallery_as_cohort(file: EmbeddingFile, cohort: GalleryCohort) -> tuple[CohortNormalization, Nearest]:
    """All rows compared, by scores that the rows themselves normalise; each leaves itself out."""
    rows = np.concatenate([block.embeddings for block in file.blocks()])
    fitted = cohort.fit(torch.from_numpy(rows))
    offsets = fitted.offsets(fitted.cohort, rows=torch.arange(len(rows))).numpy()
    return fitted, exact_nearest([search_vectors(rows, offsets, fitted.strength)[1]])


def _faiss() -> Any:
    return import_library("faiss", needed_for="searching", install="faiss-cpu")


def _build(file: EmbeddingFile, use: CohortUse | None, faiss: Any) -> tuple[Any, KeptIndex]:
    """An inverted file with √rows lists, and what was measured on it."""
    lists = round(math.sqrt(file.rows))
    dim = _indexed_dim(file)
    index = faiss.IndexIVFFlat(faiss.IndexFlatIP(dim), dim, lists, faiss.METRIC_INNER_PRODUCT)
    places = np.unique(np.linspace(0, file.rows - 1, lists * _TRAINED_ON).astype(np.int64))
    taken, begin, checksum = list[np.ndarray](), 0, ContentChecksum()
    for block in file.blocks(checksum=checksum):
        end = begin + len(block.embeddings)
        taken.append(indexed_vectors(block, use)[places[(places >= begin) & (places < end)] - begin])
        begin = end
    sample = np.concatenate(taken)
    index.train(sample)
    probing = np.linspace(0, len(places) - 1, _PROBED_WITH).astype(np.int64)
    places, queries = places[probing], as_queries(sample[probing], use)
    nearest = faiss.ResultHeap(len(queries), _NEIGHBOURS + 1, keep_max=True)  # the nearest row of each is itself
    for block in file.blocks():
        vectors = indexed_vectors(block, use)
        cosines, rows = faiss.knn(queries, vectors, _NEIGHBOURS + 1, metric=faiss.METRIC_INNER_PRODUCT)
        nearest.add_result(cosines, np.where(rows < 0, rows, rows + index.ntotal))
        index.add(vectors)
    nearest.finalize()
    truth = [set(true) - {place} for true, place in zip(nearest.I.tolist(), places.tolist(), strict=True)]
    probes, recall = 0, 0.0
    while recall < RECALL and probes < lists:
        index.nprobe = probes = min(max(2 * probes, 1), lists)
        found = index.search(queries, _NEIGHBOURS + 1)[1].tolist()
        shares = [len(true.intersection(mine)) / max(len(true), 1) for true, mine in zip(truth, found, strict=True)]
        recall = float(np.mean(shares))
    return index, KeptIndex(
        lists, probes, recall, built_for=file.rows, rows=checksum.name, strength=use.strength if use else None
    )


def _indexed_dim(file: EmbeddingFile) -> int:
    return file.dim + 2 * (file.record is not None and file.record.normalization is not None)


def _map(file: EmbeddingFile, kept: KeptIndex, faiss: Any) -> Nearest:
    path = kept.path_beside(file)
    try:
        index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP | faiss.IO_FLAG_READ_ONLY)
    except RuntimeError as error:
        raise UserError(f"{path} cannot be read ({error}): remove it, and it is built again") from error
    if (index.ntotal, index.d, index.nlist) != (file.rows, _indexed_dim(file), kept.lists):
        raise UserError(f"{path} is the index of another file: remove it, and it is built again")
    index.nprobe = kept.probes
    return Nearest(index, kept.lists, kept.probes, kept.recall)
