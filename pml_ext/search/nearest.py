"""The rows of a file of features that are closest to a query, by comparing all of them or by an index of faiss.

Above EXACT_UP_TO rows an inverted file is built once, kept beside the features and mapped into memory for a search.
A search looks at as many of its lists as find RECALL of the true neighbours, measured on a sample of the rows.
"""

import json
import logging
import math
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pml_ext._errors import UserError
from pml_ext._files import write_atomically
from pml_ext.search.embedding_file import EmbeddingFile, Version

log = logging.getLogger("pml_ext")

EXACT_UP_TO = 100_000
RECALL = 0.95
_FORMAT = "pml_ext index 1"
_KINDS = {"version": str, "name": str, "lists": int, "probes": int, "recall": float, "built_for": int, "size": int}
_TRAINED_ON = 64  # rows for each list
_PROBED_WITH, _NEIGHBOURS = 100, 10  # rows that recall is measured on, and how many neighbours of each


@dataclass(frozen=True)
class Nearest:
    """Rows that can be searched.

    Attributes:
        index: faiss's.
        lists, probes: how many lists there are and how many a query looks at; 0 where all rows are compared.
        recall: the share of the ten true neighbours that is found, measured on rows of the file; 1 where all are
            compared.
    """

    index: Any
    lists: int
    probes: int
    recall: float

    @property
    def is_exact(self) -> bool:
        return self.probes == self.lists

    def search(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """The closest rows of each query, the closest first.

        Args:
            queries: (Q, D) float32 of unit length.
        Returns:
            cosines and rows, (Q, k); k is at most the number of rows. Row −1 where an index finds fewer.
        """
        cosines, rows = self.index.search(np.ascontiguousarray(queries), min(k, self.index.ntotal))
        return cosines, rows


def open_nearest(file: EmbeddingFile, *, exact_up_to: int = EXACT_UP_TO) -> Nearest:
    """The rows of a file, by the index beside it, which is built or completed where that is needed.

    Args:
        exact_up_to: up to so many rows a search compares with all of them, and no index is built.
    Raises:
        UserError: faiss is not installed; the file cannot be read.
    """
    faiss = _faiss()
    if file.rows <= exact_up_to:
        index = faiss.IndexFlatIP(file.dim)
        for block in file.blocks():
            index.add(block.embeddings)
        return Nearest(index, 0, 0, 1.0)
    version = _version(file)
    kept = _kept(file)
    if kept is not None and kept["version"] == version.name:
        return _mapped(file, kept, faiss)
    done = {past.name: past.rows for past in file.versions}.get(kept["version"]) if kept else None
    if kept is not None and done is not None and file.rows <= 2 * kept["built_for"]:
        log.info("%s: adding %d rows to its index", file.path, file.rows - done)
        index = faiss.read_index(str(_beside(file, kept)))
        for block in file.blocks(done):
            index.add(block.embeddings)
        facts = {**kept, "version": version.name}
    else:
        log.info("%s: building an index of %d rows, once", file.path, file.rows)
        index, facts = _built(file, faiss)
        facts["version"] = version.name
    return _written(file, index, facts, kept, faiss)


def _built(file: EmbeddingFile, faiss: Any) -> tuple[Any, dict[str, Any]]:
    """An inverted file with as many lists as the root of its rows, and what was measured on it."""
    lists = round(math.sqrt(file.rows))
    index = faiss.IndexIVFFlat(faiss.IndexFlatIP(file.dim), file.dim, lists, faiss.METRIC_INNER_PRODUCT)
    places, sample = _sample(file, lists * _TRAINED_ON)
    index.train(sample)
    probing = np.linspace(0, len(places) - 1, _PROBED_WITH).astype(np.int64)
    places, queries = places[probing], sample[probing]
    nearest = _Closest(len(queries), _NEIGHBOURS + 1)  # the nearest row of each is itself
    for block in file.blocks():
        cosines, rows = faiss.knn(queries, block.embeddings, _NEIGHBOURS + 1, metric=faiss.METRIC_INNER_PRODUCT)
        nearest.add(cosines, rows + index.ntotal)
        index.add(block.embeddings)
    probes, recall = 1, _recall(index, 1, queries, places, nearest.rows)
    while recall < RECALL and probes < lists:
        probes = min(2 * probes, lists)
        recall = _recall(index, probes, queries, places, nearest.rows)
    return index, {"format": _FORMAT, "lists": lists, "probes": probes, "recall": recall, "built_for": file.rows}


def _sample(file: EmbeddingFile, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows at equal distances, and their embeddings."""
    places = np.unique(np.linspace(0, file.rows - 1, count).astype(np.int64))
    taken, begin = [], 0
    for block in file.blocks():
        inside = places[(places >= begin) & (places < begin + len(block.embeddings))]
        taken.append(block.embeddings[inside - begin])
        begin += len(block.embeddings)
    return places, np.concatenate(taken)


def _recall(index: Any, probes: int, queries: np.ndarray, places: np.ndarray, truth: np.ndarray) -> float:
    """The share of each row's true neighbours, without itself, that the index finds."""
    index.nprobe = probes
    found = index.search(queries, _NEIGHBOURS + 1)[1]
    shares = [
        len((set(mine) - {place}) & (set(true) - {place})) / max(len(set(true) - {place}), 1)
        for mine, true, place in zip(found.tolist(), truth.tolist(), places.tolist(), strict=True)
    ]
    return float(np.mean(shares))


class _Closest:
    """The k closest of all blocks so far."""

    def __init__(self, queries: int, k: int) -> None:
        self.cosines = np.full((queries, k), -np.inf, dtype=np.float32)
        self.rows = np.full((queries, k), -1, dtype=np.int64)

    def add(self, cosines: np.ndarray, rows: np.ndarray) -> None:
        cosines = np.concatenate([self.cosines, cosines], axis=1)
        rows = np.concatenate([self.rows, rows], axis=1)
        order = np.argsort(-cosines, axis=1, kind="stable")[:, : self.rows.shape[1]]
        self.cosines, self.rows = (np.take_along_axis(x, order, axis=1) for x in (cosines, rows))


def _version(file: EmbeddingFile) -> Version:
    if file.versions:
        return file.versions[-1]
    state = file.path.stat()  # another program's file has no versions: a new size or time is a new version
    return Version(f"{state.st_size} {state.st_mtime_ns}", file.rows)


def _facts_of(file: EmbeddingFile) -> Path:
    return file.path.with_name(f"{file.path.name}.faiss.json")


def _beside(file: EmbeddingFile, facts: dict[str, Any]) -> Path:
    return file.path.with_name(f"{file.path.name}.{facts['name']}.faiss")


def _kept(file: EmbeddingFile) -> dict[str, Any] | None:
    """What is known of the index beside the file; None where there is none that can be used."""
    path = _facts_of(file)
    try:
        facts: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        whole = facts["format"] == _FORMAT and all(type(facts[key]) is kind for key, kind in _KINDS.items())
        if whole and facts["name"].isalnum() and _beside(file, facts).stat().st_size == facts["size"]:
            return facts
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return None


def _written(file: EmbeddingFile, index: Any, facts: dict[str, Any], old: dict[str, Any] | None, faiss: Any) -> Nearest:
    """The index on disk and mapped; in memory where the folder cannot be written."""
    facts["name"] = secrets.token_hex(6)
    path = _beside(file, facts)
    draft = path.with_suffix(".part")
    try:
        faiss.write_index(index, str(draft))
        facts["size"] = draft.stat().st_size
        draft.replace(path)
        write_atomically(_facts_of(file), json.dumps(facts))
    except (OSError, RuntimeError) as error:  # faiss raises RuntimeError
        log.warning("the index of %s cannot be kept and is built each time: %s", file.path, error)
        draft.unlink(missing_ok=True)
        index.nprobe = facts["probes"]
        return Nearest(index, facts["lists"], facts["probes"], facts["recall"])
    if old is not None:
        _beside(file, old).unlink(missing_ok=True)
    return _mapped(file, facts, faiss)


def _mapped(file: EmbeddingFile, facts: dict[str, Any], faiss: Any) -> Nearest:
    path = _beside(file, facts)
    try:
        index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP | faiss.IO_FLAG_READ_ONLY)
    except RuntimeError as error:
        raise UserError(f"{path} cannot be read ({error}): remove it, and it is built again") from error
    if (index.ntotal, index.d) != (file.rows, file.dim):
        raise UserError(f"{path} is the index of another file: remove it, and it is built again")
    index.nprobe = facts["probes"]
    return Nearest(index, facts["lists"], facts["probes"], facts["recall"])


def _faiss() -> Any:
    try:
        import faiss
    except ModuleNotFoundError as error:
        raise UserError("searching needs faiss: pip install faiss-cpu") from error
    return faiss
