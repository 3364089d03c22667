"""`pml-ext eval --embeddings`: the metrics of embeddings made elsewhere."""

from collections.abc import Sequence
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
from pml_ext.search.embedding_set import read_embeddings


def evaluate_files(file: str, gallery_file: str | None, out: str) -> str:
    """Measure a file of queries against a gallery, or against each other; write out/metrics.json, return its table.

    With cameras, gallery items of the query's label and camera are ignored, as are samples of label −1.
    """
    import_library("faiss", needed_for="the clustering behind NMI", install="faiss-cpu")
    sets = [read_embeddings(name) for name in (file, gallery_file) if name is not None]
    dim, *others = (given.embeddings.shape[1] for given in sets)
    if others and others[0] != dim:
        raise UserError(f"{gallery_file} must have {dim} dimensions, as {file}; got {others[0]}")
    labels = _number("labels", [given.labels for given in sets])
    for ids, given in zip(labels, sets, strict=True):
        ids[torch.from_numpy(given.is_junk)] = JUNK
    given_cameras = [given.cameras for given in sets if given.cameras is not None]
    if given_cameras and len(given_cameras) < len(sets):
        owner = "gallery has" if sets[0].cameras is None else "queries have"
        raise UserError(f"cameras must be in both files or in none; only the {owner} them")
    # Without cameras each sample has its own, so that the camera rule removes nothing.
    counts = np.cumsum([len(ids) for ids in labels])
    cameras = _number("cameras", given_cameras or np.split(np.arange(counts[-1]), counts[:-1]))
    names = named_metrics(STANDARD_METRICS, STANDARD_RANKS)
    calculator = AccuracyCalculator(include=names, ranks=STANDARD_RANKS, device=torch.device("cpu"))
    embeddings = [to_sphere(given.embeddings.double()) for given in sets]
    gallery: dict[str, Any] = {}
    if gallery_file is not None:
        gallery = {"reference": embeddings[1], "reference_labels": labels[1], "reference_cameras": cameras[1]}
    try:
        found = calculator.get_accuracy(embeddings[0], labels[0], query_cameras=cameras[0], **gallery)
    except ValueError as error:
        raise UserError(f"{file}: {error}") from error
    path = Path(out) / "metrics.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    results = {Path(file).name: {name: float(found[name]) for name in names}}
    write_metrics(path, results, embeddings=file, gallery=gallery_file, opis=asdict(calculator.opis_settings))
    return results_table(results, {"metrics": path})


def _number(what: str, arrays: Sequence[np.ndarray]) -> list[Tensor]:
    """Replace the integers or strings of all arrays by 0, 1, …, equal values by equal numbers."""
    if len({values.dtype.kind for values in arrays}) > 1:
        given = " and ".join(str(values.dtype) for values in arrays)
        raise UserError(f"{what} must be of the same kind in both files; got {given}")
    ids = np.unique(np.concatenate(arrays), return_inverse=True)[1].astype(np.int64)
    return list(torch.split(torch.from_numpy(ids), [len(values) for values in arrays]))
