"""Queries and what they search, from one file of embeddings or from two, and their metrics."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pml_ext._errors import UserError, import_library
from pml_ext._identities import JUNK
from pml_ext._ops.normalize import to_sphere
from pml_ext.metrics import AccuracyCalculator, keys
from pml_ext.metrics.gallery_cohort import Normalization
from pml_ext.metrics.opis_settings import OPISSettings
from pml_ext.runner.evaluation.results import STANDARD_METRICS, STANDARD_RANKS, named_metrics
from pml_ext.search.embedding_set import EmbeddingSet, read_embeddings

OPIS_SETTINGS = OPISSettings()


@dataclass(frozen=True)
class Part:
    """A file, and its labels and cameras as numbers that mean the same in both files; JUNK is ignored.

    identity_names: the user's names of the labels.
    """

    file: str
    data: EmbeddingSet
    labels: Tensor
    cameras: Tensor
    identity_names: dict[int, str]


def read_parts(file: str, gallery_file: str | None) -> list[Part]:
    """The queries, and the gallery if there is one; without cameras each sample has its own.

    UserError: files that do not fit each other.
    """
    files = [name for name in (file, gallery_file) if name is not None]
    sets = [read_embeddings(name) for name in files]
    dim, *others = (given.embeddings.shape[1] for given in sets)
    if others and others[0] != dim:
        raise UserError(f"{gallery_file} must have {dim} dimensions, as {file}; got {others[0]}")
    labels, names = _number("labels", [given.labels for given in sets])
    for ids, given in zip(labels, sets, strict=True):
        ids[torch.from_numpy(given.is_junk)] = JUNK
    given_cameras = [given.cameras for given in sets if given.cameras is not None]
    if given_cameras and len(given_cameras) < len(sets):
        owner = "gallery has" if sets[0].cameras is None else "queries have"
        raise UserError(f"cameras must be in both files or in none; only the {owner} them")
    # So that the camera rule removes nothing where cameras are not known.
    counts = np.cumsum([len(ids) for ids in labels])
    cameras, _ = _number("cameras", given_cameras or np.split(np.arange(counts[-1]), counts[:-1]))
    identity_names = {number: str(name) for number, name in enumerate(names.tolist())}
    return [Part(*part, identity_names) for part in zip(files, sets, labels, cameras, strict=True)]


def measure_parts(parts: Sequence[Part], normalize: Normalization | None = None) -> dict[str, float]:
    """The standard metrics of queries against a gallery, or against each other; with `normalize` those of normalised
    scores too.

    Gallery items of the query's label and camera are ignored, as is junk.
    """
    import_library("faiss", needed_for="the clustering behind NMI", install="faiss-cpu")
    names = named_metrics(STANDARD_METRICS, STANDARD_RANKS)
    found = _measure(parts, names)
    if normalize is not None:
        values = _measure(parts, [name for name in names if keys.follows_scores(name)], normalize=normalize)
        found |= {keys.normalized(name): value for name, value in values.items()}
    return found


def _measure(parts: Sequence[Part], names: list[str], **options: Any) -> dict[str, float]:
    calculator = AccuracyCalculator(
        include=names, ranks=STANDARD_RANKS, device=torch.device("cpu"), **asdict(OPIS_SETTINGS), **options
    )
    query, *rest = parts
    unit = [to_sphere(part.data.embeddings.double()) for part in parts]
    gallery: dict[str, Any] = {}
    for found, part in zip(unit[1:], rest, strict=True):
        gallery = {"reference": found, "reference_labels": part.labels, "reference_cameras": part.cameras}
    try:
        values = calculator.get_accuracy(unit[0], query.labels, query_cameras=query.cameras, **gallery)
    except ValueError as error:
        raise UserError(f"{query.file}: {error}") from error
    return {name: float(values[name]) for name in names}


def _number(what: str, arrays: Sequence[np.ndarray]) -> tuple[list[Tensor], np.ndarray]:
    """Replace the integers or strings of all arrays by 0, 1, …, equal values by equal numbers; and these values."""
    if len({values.dtype.kind for values in arrays}) > 1:
        given = " and ".join(str(values.dtype) for values in arrays)
        raise UserError(f"{what} must be of the same kind in both files; got {given}")
    names, ids = np.unique(np.concatenate(arrays), return_inverse=True)
    return list(torch.split(torch.from_numpy(ids.astype(np.int64)), [len(values) for values in arrays])), names
