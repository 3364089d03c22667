"""The index of a file of embeddings: an inverted file of compressed rows, beside a file of the rows themselves."""

import ctypes
import math
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from pml_ext.search.embedding_blocks import ContentChecksum
from pml_ext.search.embedding_file import EmbeddingFile
from pml_ext.search.kept_index import KeptIndex
from pml_ext.search.nearest import Reranked, load_faiss
from pml_ext.search.normalized_scores import as_queries, indexed_vectors

RECALL = 0.95
# To find a row's list takes lists × dimensions: 15 µs of 512 dimensions for 1,024 lists, three times that for the √rows
# lists of 10 million. Longer lists cost little, since scanning all of 300,000 rows takes 0.6 ms.
_MOST_LISTS = 1024
_TRAINED_ON = 64  # rows for each list
_PROBED_WITH, _NEIGHBOURS = 100, 10  # rows that recall is measured on, and how many neighbours of each
_CODES, _WIDEST = 128, 4  # codes of 4 bits up to 512 dimensions, 64 bytes a row; dimensions of a code at most
_BLOCK = 4_096  # rows; one of 512 dimensions is 8 MB


def indexed_dim(file: EmbeddingFile) -> int:
    return file.dim + 2 * (file.record is not None and file.record.normalization is not None)


def build(file: EmbeddingFile, index_path: Path, rows_path: Path) -> KeptIndex:
    """Write both files, in memory for the compressed rows and a block; and what was measured on the index."""
    faiss, use = load_faiss(), file.record.normalization if file.record else None
    lists, dim = min(round(math.sqrt(file.rows)), _MOST_LISTS), indexed_dim(file)
    places = np.unique(np.linspace(0, file.rows - 1, lists * _TRAINED_ON).astype(np.int64))
    checksum, parts, begin = ContentChecksum(), [], 0
    with rows_path.open("wb") as rows:
        for block in file.blocks(checksum=checksum):
            vectors = indexed_vectors(block, use)
            vectors.tofile(rows)
            # Here, because a mapped file would take 64 KB of memory for each of these rows.
            parts.append(vectors[places[slice(*np.searchsorted(places, (begin, begin + len(vectors))))] - begin])
            begin += len(vectors)
    sample = np.concatenate(parts)
    index = faiss.index_factory(dim, _recipe(dim, lists), faiss.METRIC_INNER_PRODUCT)
    index.train(sample)
    probing = np.linspace(0, len(places) - 1, _PROBED_WITH).astype(np.int64)
    places, queries = places[probing], as_queries(sample[probing], use)
    del sample, parts
    truth = faiss.ResultHeap(len(queries), _NEIGHBOURS + 1, keep_max=True)  # the nearest row of each is itself
    for vectors in _read(rows_path, dim):
        scores, found = faiss.knn(queries, vectors, _NEIGHBOURS + 1, metric=faiss.METRIC_INNER_PRODUCT)
        truth.add_result(scores, np.where(found < 0, found, found + index.ntotal))
        index.add(vectors)
        _free_outgrown_lists()
    truth.finalize()
    probes, recall = _enough_probes(index, rows_path, lists, queries, truth.I, places)
    _write(index, index_path)
    strength = use.strength if use else None
    return KeptIndex(lists, probes, recall, built_for=file.rows, rows=checksum.name, strength=strength)


def add(file: EmbeddingFile, kept: KeptIndex, rows_before: int, index_path: Path, rows_path: Path) -> KeptIndex:
    """Write both files with the file's rows from `rows_before` on added to those that are kept, which are returned."""
    use = file.record.normalization if file.record else None
    old_index, old_rows = kept.paths_beside(file)
    index = load_faiss().read_index(str(old_index))
    shutil.copyfile(old_rows, rows_path)
    with rows_path.open("ab") as rows:
        for block in file.blocks(rows_before):
            vectors = indexed_vectors(block, use)
            vectors.tofile(rows)
            index.add(vectors)
            _free_outgrown_lists()
    _write(index, index_path)
    return kept


def _recipe(dim: int, lists: int) -> str:
    """Codes of 4 bits, which faiss scans 32 rows at once, after a random rotation, which spreads the variance evenly.

    200,000 rows in clusters whose variance falls as 1/j, recall of 10 with all lists and ten candidates for each: 67 %
    as they are, 94.5 % rotated, for 6 µs a row; codes of the residuals 85 %.
    """
    width = min(math.ceil(dim / _CODES), _WIDEST)
    codes = math.ceil(dim / width)
    return f"RR{codes * width},IVF{lists},PQ{codes}x4fs"


def _read(path: Path, dim: int) -> Iterator[np.ndarray]:
    with path.open("rb") as file:
        while len(vectors := np.fromfile(file, np.float32, _BLOCK * dim)):
            yield vectors.reshape(-1, dim)


def _free_outgrown_lists() -> None:
    """Give the system the memory of lists that have moved, as they do each time they double; only glibc keeps it."""
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)


def _enough_probes(
    index: Any, rows_path: Path, lists: int, queries: np.ndarray, truth: np.ndarray, places: np.ndarray
) -> tuple[int | None, float]:
    """How many lists find RECALL of the true neighbours of rows, and what they find; None, 1 where all find less."""
    probes = 1
    while True:
        found = Reranked(index, rows_path, lists, probes, 0.0).search(queries, _NEIGHBOURS + 1)[1]
        recall = float(
            np.mean(
                [
                    len((true := {*mine} - {place}).intersection(some)) / max(len(true), 1)
                    for mine, some, place in zip(truth.tolist(), found.tolist(), places.tolist(), strict=True)
                ]
            )
        )
        if recall >= RECALL:
            return probes, recall
        if probes == lists:
            return None, 1.0
        probes = min(2 * probes, lists)


def _write(index: Any, path: Path) -> None:
    try:
        load_faiss().write_index(index, str(path))
    except RuntimeError as error:  # faiss has no other
        raise OSError(str(error)) from error
