"""The rows of a file of embeddings that are closest to a query: by comparing all of them, or with an index.

- Up to EXACT_UP_TO rows a search is exact: it compares the query with every row.
- Above that, it uses an inverted file of faiss, built once, kept beside the embeddings and mapped into memory. A query
  looks at as many of its lists as find RECALL of the true neighbours of a sample of the rows; where that takes all
  lists, the search is exact, too. `Nearest.is_exact` and `Nearest.recall` say which it is.
"""

import json
import logging
import math
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pml_ext._errors import UserError, import_library
from pml_ext._files import write_atomically
from pml_ext.search.embedding_file import EmbeddingFile, Version

log = logging.getLogger("pml_ext")

EXACT_UP_TO = 100_000
RECALL = 0.95
_FORMAT = "pml_ext index 1"
# What is kept of an index: the version of the embeddings; the index file's name and size in bytes; its lists, how many
# of them a query looks at, and the recall measured with that; and the number of rows when it was built.
_KEPT = {"version": str, "name": str, "size": int, "lists": int, "probes": int, "recall": float, "built_for": int}
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
        """Cosines and numbers of the rows that are closest to queries (Q, D) of unit length, the closest first.

        Both are (Q, k), k at most the number of rows. The row is −1 where an index finds fewer.
        """
        cosines, rows = self.index.search(np.ascontiguousarray(queries), min(k, self.index.ntotal))
        return cosines, rows


def open_nearest(file: EmbeddingFile, *, exact_up_to: int = EXACT_UP_TO) -> Nearest:
    """The rows of a file; above `exact_up_to` by the index beside it, which is built or completed where needed."""
    faiss = import_library("faiss", needed_for="searching", install="faiss-cpu")
    if file.rows <= exact_up_to:
        index = faiss.IndexFlatIP(file.dim)
        for block in file.blocks():
            index.add(block.embeddings)
        return Nearest(index)
    version, kept = _version(file), _read_kept(file)
    if kept is not None and kept["version"] == version.name:
        return _map(file, kept, faiss)
    rows_before = {past.name: past.rows for past in file.versions}.get(kept["version"]) if kept else None
    if kept is not None and rows_before is not None and file.rows <= 2 * kept["built_for"]:
        log.info("%s: adding %d rows to its index", file.path, file.rows - rows_before)
        index = faiss.read_index(str(_beside(file, f"{kept['name']}.faiss")))
        for block in file.blocks(rows_before):
            index.add(block.embeddings)
        facts = dict(kept)
    else:
        log.info("%s: building an index of %d rows, once", file.path, file.rows)
        index, facts = _build(file, faiss)
    return _keep(file, index, facts | {"version": version.name}, kept, faiss)


def _build(file: EmbeddingFile, faiss: Any) -> tuple[Any, dict[str, Any]]:
    """An inverted file with √rows lists, and what was measured on it."""
    lists = round(math.sqrt(file.rows))
    index = faiss.IndexIVFFlat(faiss.IndexFlatIP(file.dim), file.dim, lists, faiss.METRIC_INNER_PRODUCT)
    places = np.unique(np.linspace(0, file.rows - 1, lists * _TRAINED_ON).astype(np.int64))
    taken, begin = list[np.ndarray](), 0
    for block in file.blocks():
        end = begin + len(block.embeddings)
        taken.append(block.embeddings[places[(places >= begin) & (places < end)] - begin])
        begin = end
    sample = np.concatenate(taken)
    index.train(sample)
    probing = np.linspace(0, len(places) - 1, _PROBED_WITH).astype(np.int64)
    places, queries = places[probing], sample[probing]
    nearest = faiss.ResultHeap(len(queries), _NEIGHBOURS + 1, keep_max=True)  # the nearest row of each is itself
    for block in file.blocks():
        cosines, rows = faiss.knn(queries, block.embeddings, _NEIGHBOURS + 1, metric=faiss.METRIC_INNER_PRODUCT)
        nearest.add_result(cosines, np.where(rows < 0, rows, rows + index.ntotal))
        index.add(block.embeddings)
    nearest.finalize()
    truth = [set(true) - {place} for true, place in zip(nearest.I.tolist(), places.tolist(), strict=True)]
    probes, recall = 0, 0.0
    while recall < RECALL and probes < lists:
        index.nprobe = probes = min(max(2 * probes, 1), lists)
        found = index.search(queries, _NEIGHBOURS + 1)[1].tolist()
        shares = [len(true.intersection(mine)) / max(len(true), 1) for true, mine in zip(truth, found, strict=True)]
        recall = float(np.mean(shares))
    return index, {"format": _FORMAT, "lists": lists, "probes": probes, "recall": recall, "built_for": file.rows}


def _version(file: EmbeddingFile) -> Version:
    if file.versions:
        return file.versions[-1]
    state = file.path.stat()  # another program's file has no versions: a new size or time is a new version
    return Version(f"{state.st_size} {state.st_mtime_ns}", file.rows)


def _beside(file: EmbeddingFile, suffix: str) -> Path:
    return file.path.with_name(f"{file.path.name}.{suffix}")


def _read_kept(file: EmbeddingFile) -> dict[str, Any] | None:
    """What is kept of the index beside the file; None where there is none that can be used."""
    try:
        kept: dict[str, Any] = json.loads(_beside(file, "faiss.json").read_text(encoding="utf-8"))
        whole = kept["format"] == _FORMAT and all(type(kept[key]) is kind for key, kind in _KEPT.items())
        if whole and kept["name"].isalnum() and _beside(file, f"{kept['name']}.faiss").stat().st_size == kept["size"]:
            return kept
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return None


def _keep(file: EmbeddingFile, index: Any, facts: dict[str, Any], old: dict[str, Any] | None, faiss: Any) -> Nearest:
    """The index written beside the file and mapped; in memory where the folder cannot be written."""
    facts["name"] = secrets.token_hex(6)
    path = _beside(file, f"{facts['name']}.faiss")
    draft = path.with_suffix(".part")
    try:
        faiss.write_index(index, str(draft))
        facts["size"] = draft.stat().st_size
        draft.replace(path)
        write_atomically(_beside(file, "faiss.json"), json.dumps(facts))
    except (OSError, RuntimeError) as error:  # faiss raises RuntimeError
        log.warning("the index of %s cannot be kept and is built each time: %s", file.path, error)
        draft.unlink(missing_ok=True)
        index.nprobe = facts["probes"]
        return Nearest(index, facts["lists"], facts["probes"], facts["recall"])
    if old is not None:
        _beside(file, f"{old['name']}.faiss").unlink(missing_ok=True)
    return _map(file, facts, faiss)


def _map(file: EmbeddingFile, kept: dict[str, Any], faiss: Any) -> Nearest:
    path = _beside(file, f"{kept['name']}.faiss")
    try:
        index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP | faiss.IO_FLAG_READ_ONLY)
    except RuntimeError as error:
        raise UserError(f"{path} cannot be read ({error}): remove it, and it is built again") from error
    if (index.ntotal, index.d) != (file.rows, file.dim):
        raise UserError(f"{path} is the index of another file: remove it, and it is built again")
    index.nprobe = kept["probes"]
    return Nearest(index, kept["lists"], kept["probes"], kept["recall"])
