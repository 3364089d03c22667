"""The rows of a file of embeddings that are closest to a query: by comparing all of them, or with an index.

- Up to EXACT_UP_TO rows a search is exact: it compares the query with every row.
- Above that, it uses an inverted file of faiss with compressed rows, built once, and kept beside the embeddings with a
  copy of the rows that is not compressed and checksums of both and of the embeddings. One that is not of these rows, or
  damaged, is built again. A query looks at as many of its lists as find RECALL of the true neighbours of a sample of
  the rows; what it finds is ranked by exact scores. Where all lists find less, or where nothing can be kept, the
  search is exact, too. `is_exact` of what `open_nearest` returns says which it is.
"""

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np
import torch

from pml_ext._errors import UserError
from pml_ext.metrics import CohortNormalization, GalleryCohort
from pml_ext.search.embedding_file import EmbeddingFile
from pml_ext.search.index_building import add, build, indexed_dim
from pml_ext.search.kept_index import KeptIndex, keep, note_seen, read_kept
from pml_ext.search.nearest import AllRows, Nearest, Reranked, load_faiss
from pml_ext.search.normalized_scores import indexed_vectors, search_vectors

log = logging.getLogger("pml_ext")

EXACT_UP_TO = 100_000


def open_nearest(file: EmbeddingFile, *, exact_up_to: int = EXACT_UP_TO) -> Nearest:
    """The rows of a file; above `exact_up_to` by the index beside it, which is built or completed where needed."""
    load_faiss()
    use = file.record.normalization if file.record else None
    if file.rows <= exact_up_to:
        return _in_memory([indexed_vectors(block, use) for block in file.blocks()])
    kept = _kept_or_made(file)
    if kept is None or kept.probes is None:
        return AllRows(lambda: (indexed_vectors(block, use) for block in file.blocks()), file.rows)
    index_path, rows_path = kept.paths_beside(file)
    try:
        index = load_faiss().read_index(str(index_path))
    except RuntimeError as error:
        raise UserError(f"{index_path} cannot be read ({error}): remove it, and it is built again") from error
    dim, size = indexed_dim(file), rows_path.stat().st_size
    if (index.ntotal, index.d, size) != (file.rows, dim, file.rows * dim * 4):
        raise UserError(f"{index_path} is the index of another file: remove it, and it is built again")
    return Reranked(index, rows_path, kept.lists, kept.probes, kept.recall)


def search_gallery_as_cohort(file: EmbeddingFile, cohort: GalleryCohort) -> tuple[CohortNormalization, Nearest]:
    """All rows compared, by scores that the rows themselves normalise; each leaves itself out."""
    rows = np.concatenate([block.embeddings for block in file.blocks()])
    fitted = cohort.fit(torch.from_numpy(rows))
    offsets = fitted.offsets(fitted.cohort, rows=torch.arange(len(rows))).numpy()
    return fitted, _in_memory([search_vectors(rows, offsets, fitted.strength)[1]])


def _in_memory(blocks: Sequence[np.ndarray]) -> AllRows:
    return AllRows(lambda: blocks, sum(map(len, blocks)))


def _kept_or_made(file: EmbeddingFile) -> KeptIndex | None:
    """The index beside the file if it is of these rows, else one that is made now; None if it cannot be kept."""
    use, kept = file.record.normalization if file.record else None, read_kept(file)
    if kept is not None and kept.is_as_seen(file):
        return kept
    if kept is not None and (damaged := kept.damaged_file(file)) is not None:
        log.warning("%s was changed or damaged after it was written", damaged)
        kept = None
    rows = file.read_checksum() if kept else ""
    if kept is not None and kept.strength != (use.strength if use else None):
        kept = None
    if kept is not None and kept.rows == rows:
        with suppress(OSError):  # a folder that is not writable
            note_seen(file, kept)
        return kept
    before = {past.name: past.rows for past in file.versions}.get(kept.rows) if kept else None
    if kept is not None and before is not None and file.rows <= 2 * kept.built_for:
        log.info("%s: adding %d rows to its index", file.path, file.rows - before)
        old, rows_before = kept, before
        return keep(file, lambda *paths: replace(add(file, old, rows_before, *paths), rows=rows))
    log.info("%s: building an index of %d rows, once", file.path, file.rows)
    return keep(file, lambda *paths: build(file, *paths))
