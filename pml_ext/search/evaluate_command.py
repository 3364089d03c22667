"""`pml-ext eval --embeddings`: the metrics of embeddings made elsewhere."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pml_ext._errors import UserError, import_library
from pml_ext._identities import JUNK
from pml_ext._ops.normalize import to_sphere
from pml_ext.metrics import AccuracyCalculator
from pml_ext.runner.evaluation.results import (
    STANDARD_METRICS,
    STANDARD_RANKS,
    named_metrics,
    results_table,
    write_metrics,
)
from pml_ext.search.embedding_set import EmbeddingSet, read_embeddings


def evaluate_files(file: str, gallery_file: str | None, out: str) -> str:
    """Measure a file of queries against a gallery, or against each other, and write metrics.json.

    With cameras, gallery items of the query's label and camera are ignored, as are samples of label −1.

    Args:
        file, gallery_file: as `read_embeddings` reads them; labels and cameras of both of the same kind.
        out: the folder to write into.
    Returns:
        the table to print.
    Raises:
        UserError: files that cannot be read or do not fit together; faiss is not installed.
        OSError: a folder that cannot be written.
    """
    import_library("faiss", needed_for="the clustering behind NMI", install="faiss-cpu")
    query = read_embeddings(file)
    gallery = None if gallery_file is None else read_embeddings(gallery_file)
    if gallery is not None and gallery.embeddings.shape[1] != query.embeddings.shape[1]:
        raise UserError(
            f"{gallery_file} must have {query.embeddings.shape[1]} dimensions, as {file}; "
            f"got {gallery.embeddings.shape[1]}"
        )
    labels, gallery_labels = _number("labels", query.labels, None if gallery is None else gallery.labels)
    cameras, gallery_cameras = _cameras(query, gallery)
    labels[torch.from_numpy(query.is_junk)] = JUNK
    reference: dict[str, Any] = {}
    if gallery is not None and gallery_labels is not None:
        gallery_labels[torch.from_numpy(gallery.is_junk)] = JUNK
        reference = {
            "reference": to_sphere(gallery.embeddings.double()),
            "reference_labels": gallery_labels,
            "reference_cameras": gallery_cameras,
        }
    names = named_metrics(STANDARD_METRICS, STANDARD_RANKS)
    calculator = AccuracyCalculator(include=names, ranks=STANDARD_RANKS, device=torch.device("cpu"))
    embeddings = to_sphere(query.embeddings.double())
    try:
        found = calculator.get_accuracy(embeddings, labels, query_cameras=cameras, **reference)
    except ValueError as error:
        raise UserError(f"{file}: {error}") from error
    path = Path(out) / "metrics.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    results = {Path(file).name: {name: float(found[name]) for name in names}}
    opis = asdict(calculator.opis_settings)
    write_metrics(path, results, embeddings=file, gallery=gallery_file, opis=opis)
    return results_table(results, {"metrics": path})


def _cameras(query: EmbeddingSet, gallery: EmbeddingSet | None) -> tuple[Tensor, Tensor | None]:
    """Cameras as numbers; without cameras, numbers that make the camera rule remove nothing."""
    if gallery is not None and (query.cameras is None) != (gallery.cameras is None):
        with_cameras = "queries have" if gallery.cameras is None else "gallery has"
        raise UserError(f"cameras must be in both files or in none; only the {with_cameras} them")
    if query.cameras is None:
        if gallery is None:
            return torch.arange(len(query.labels)), None
        return torch.zeros(len(query.labels)).long(), torch.ones(len(gallery.labels)).long()
    return _number("cameras", query.cameras, None if gallery is None else gallery.cameras)


def _number(what: str, one: np.ndarray, other: np.ndarray | None) -> tuple[Tensor, Tensor | None]:
    """Replace the integers or strings of two arrays by 0, 1, …, equal values by equal numbers."""
    if other is not None and one.dtype.kind != other.dtype.kind:
        raise UserError(f"{what} must be of the same kind in both files; got {one.dtype} and {other.dtype}")
    joined = one if other is None else np.concatenate([one, other])
    ids = torch.from_numpy(np.unique(joined, return_inverse=True)[1].astype(np.int64))
    return ids[: len(one)], None if other is None else ids[len(one) :]
