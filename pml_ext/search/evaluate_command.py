"""`pml-ext eval --embeddings`: the metrics of queries and what they search, from one file of embeddings or from two."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pml_ext._errors import UserError, import_library
from pml_ext._identities import JUNK
from pml_ext._ops.normalize import to_sphere
from pml_ext.metrics import AccuracyCalculator, keys
from pml_ext.metrics.normalization import Normalization
from pml_ext.metrics.opis import OPISSettings
from pml_ext.metrics.threshold.normalized import describe_cohort
from pml_ext.runner.evaluation.collapse import describe_collapse
from pml_ext.runner.evaluation.results import (
    STANDARD_METRICS,
    STANDARD_RANKS,
    named_metrics,
    results_table,
    write_metrics,
)
from pml_ext.search.cohorts import cohort_for_measuring
from pml_ext.search.readers import EmbeddingSet, open_embeddings, read_embeddings

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


def evaluate_files(
    file: str,
    gallery_file: str | None,
    out: str,
    *,
    distractors: str | None = None,
    normalize: str | None = None,
    checkpoint: str | None = None,
) -> str:
    """Measure a file of queries against a gallery, or against each other; write out/metrics.json, return its table.

    distractors: more of the gallery, see `_distractor_blocks`; then TAR at FAR over all pairs of a query and a gallery
    row, and searches, are measured. normalize: see `cohort_for_measuring`; checkpoint: the model file, which its cohort
    must be of.
    """
    if checkpoint is not None and normalize is None:
        raise UserError("--checkpoint is for --normalize: the model file that its cohort must be of")
    cohort = None if normalize is None else cohort_for_measuring(normalize, checkpoint)
    parts = read_parts(file, gallery_file)
    if distractors is None:
        results = {Path(file).name: measure_parts(parts, cohort)}
    else:
        if gallery_file is None or normalize is not None:
            raise UserError("--distractors goes with --gallery, which has the queries' identities, without --normalize")
        results = {Path(file).name: measure_among_distractors(parts[0], parts[1], distractors)}
    embeddings, labels = (torch.cat(each) for each in zip(*((p.data.embeddings, p.labels) for p in parts), strict=True))
    collapse = describe_collapse(Path(file).name, embeddings, labels)
    notes = [collapse] if collapse else []
    path = Path(out) / "metrics.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    about: dict[str, Any] = {"embeddings": file, "gallery": gallery_file, "distractors": distractors}
    about |= {"opis": asdict(OPIS_SETTINGS), "notes": notes}
    if (described := describe_cohort(cohort, len(parts[-1].labels))) is not None:
        about["normalize"] = asdict(described)
    write_metrics(path, results, **about)
    return results_table(results, {"metrics": path}, notes=notes)


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


def measure_among_distractors(query: Part, gallery: Part, distractors: str) -> dict[str, float]:
    """TAR at FAR over all pairs of a query and a gallery row, TPIR at FPIR, and ranks of identities.

    Gallery rows of the query's identity and camera are ignored, as is junk.

    UserError: files that do not fit; and as `_distractor_blocks`.
    """
    from pml_ext.metrics import IdentificationEvaluator, StreamingVerification  # import torchmetrics and torchvision

    kept = [part.labels != JUNK for part in (query, gallery)]
    probes, enrolled = (
        (part.data.embeddings.float()[rows], part.labels[rows], part.cameras[rows])
        for part, rows in zip((query, gallery), kept, strict=True)
    )
    pairs = StreamingVerification()
    try:
        blocks = chain([enrolled], _distractor_blocks(distractors, query, probes[0].shape[1]))
        found = IdentificationEvaluator().of_blocks(*probes[:2], blocks, cameras=probes[2], verification=pairs)
    except UserError:
        raise
    except ValueError as error:
        raise UserError(f"{query.file}: {error}") from error
    return pairs.compute() | found


def _distractor_blocks(path: str, query: Part, dim: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Embeddings and identities of a file's rows, which are no query's; without labels each row is one of its own.

    UserError: other dimensions, and an identity that the queries or their gallery have.
    """
    target = open_embeddings(path)
    if target.dim != dim:
        raise UserError(f"{path} must have {dim} dimensions, as {query.file}; got {target.dim}")
    known, numbers = set(query.identity_names.values()), dict[str, int]()
    first = max(query.identity_names) + 1
    for row, vectors in target.vectors():
        embeddings = vectors[:, :dim]  # without the columns of normalised scores
        labels = target.describe(range(row, row + len(vectors)))[1]
        if labels is None:
            ids = torch.arange(first, first + len(embeddings))
            first += len(ids)
        else:
            if both := known.intersection(labels):
                raise UserError(f"{path} must have other identities than {query.file} and its gallery; got {min(both)}")
            ids = torch.tensor([numbers.setdefault(name, first + len(numbers)) for name in labels])
        yield torch.from_numpy(embeddings), ids


def _number(what: str, arrays: Sequence[np.ndarray]) -> tuple[list[Tensor], np.ndarray]:
    """Replace the integers or strings of all arrays by 0, 1, …, equal values by equal numbers; and these values."""
    if len({values.dtype.kind for values in arrays}) > 1:
        given = " and ".join(str(values.dtype) for values in arrays)
        raise UserError(f"{what} must be of the same kind in both files; got {given}")
    names, ids = np.unique(np.concatenate(arrays), return_inverse=True)
    return list(torch.split(torch.from_numpy(ids.astype(np.int64)), [len(values) for values in arrays])), names
