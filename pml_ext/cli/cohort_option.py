"""The option --cohort: scores normalised by a cohort of other identities than those that a command measures."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from pml_ext._shared.errors import UserError
from pml_ext._shared.text import first_of
from pml_ext.deploy.gallery import is_gallery
from pml_ext.deploy.model_record import ModelRecord, is_saved_cohort, load_cohort, require_one_model
from pml_ext.deploy.readers import EmbeddingSet, read_embeddings
from pml_ext.metrics import CohortNormalization, cohort_mask
from pml_ext.metrics.checkpoint import ModelFile
from pml_ext.thresholds import ThresholdReport

FILE = "cohort.npz"
"""Name of the cohort's file next to a threshold report."""
FEWEST_IDENTITIES = 50
"""A smaller cohort is refused: with a few dozen identities, normalised scores were worse than cosines."""


def require_cohort_file(folder: Path) -> None:
    """Raise a UserError if a cohort in the folder would replace embeddings, or the cohort of a gallery."""
    path = folder / FILE
    if is_gallery(folder):
        raise UserError(f"{folder} is a gallery, whose {FILE} must stay. Give another --output")
    if path.is_file() and not is_saved_cohort(str(path)):
        raise UserError(f"{path} is there, and is no saved cohort: give another --output, or move that file")


def take_cohort(
    options: Sequence[str], sets: Sequence[EmbeddingSet], checkpoint: ModelFile | None
) -> tuple[CohortNormalization, list[np.ndarray], list[str]]:
    """Returns the cohort that --cohort names, the rows of each set that are measured, and lines about the cohort.

    Several values together are one cohort. A saved cohort has k and strength, and stands alone; others get the defaults
    of `CohortNormalization`.

    Raises UserError for fewer than FEWEST_IDENTITIES identities.
    """
    option = " ".join(f"--cohort {value}" for value in options)
    rows = [np.arange(data.rows) for data in sets]
    saved = [value for value in options if is_saved_cohort(value)]
    if saved and len(options) > 1:
        raise UserError(f"{option}: {saved[0]} is a saved cohort, which cannot be joined with others")
    if sum(_as_share(value) is not None for value in options) > 1:
        raise UserError(f"{option}: give one share of the identities")
    if saved:
        normalization, lines = load_cohort(saved[0], checkpoint), [f"cohort: {saved[0]}"]
    else:
        parts, lines = [], []
        for value in options:
            share = _as_share(value)
            if share is None:
                part, line = _read(value, sets[0].record)
            else:
                part, rows, line = _set_aside(share, sets)
            parts.append(part)
            lines.append(line)
        normalization = _join(parts)
    identities, kind = normalization.identities, "identities"
    if identities is None:
        identities, kind = len(normalization.cohort), "samples"
        lines.append("the cohort has samples without labels: make sure that none of its identities is measured")
    if identities < FEWEST_IDENTITIES:
        raise UserError(
            f"{option}: a cohort needs at least {FEWEST_IDENTITIES} identities; got {identities} {kind}. With few, "
            "normalised scores were worse than plain cosines. Give more identities, or leave --cohort out"
        )
    return normalization, rows, lines


_CohortRows = tuple[torch.Tensor, np.ndarray | None]
"""Embeddings (M, D) of a part of the cohort, and labels, None if unknown."""


def _join(parts: Sequence[_CohortRows]) -> CohortNormalization:
    if len(dims := {vectors.shape[1] for vectors, _ in parts}) > 1:
        raise UserError(f"the parts of a cohort must have the same dimensions; got {sorted(dims)}")
    labels = [names for _, names in parts if names is not None]
    vectors = torch.cat([vectors.double() for vectors, _ in parts])
    joined = np.concatenate(labels) if len(labels) == len(parts) else None
    return CohortNormalization.fit(vectors.float(), max(1, min(10, len(vectors))), labels=joined)


def _read(path: str, measured: ModelRecord | None) -> tuple[_CohortRows, str]:
    file = read_embeddings(path, need_labels=False)
    require_one_model(path, file.record, "the measured embeddings", measured)
    file = file.take(np.flatnonzero(~file.is_junk))
    labels = file.labels.astype(str) if file.has_labels else None
    return (file.embeddings, labels), f"cohort: {path}, {file.rows:,} samples"


def _as_share(text: str) -> float | None:
    """Returns the value as a number; None for a file. UserError for a number outside (0, 1)."""
    try:
        share = float(text)
    except ValueError:
        return None
    if not 0 < share < 1:
        raise UserError(f"--cohort must be a file, or a share of the identities between 0 and 1; got {text}")
    return share


def _set_aside(share: float, sets: Sequence[EmbeddingSet]) -> tuple[_CohortRows, list[np.ndarray], str]:
    labels = [data.labels.astype(str) for data in sets]
    names = np.concatenate([values[~data.is_junk] for values, data in zip(labels, sets, strict=True)])
    chosen = np.unique(names[cohort_mask(names, share).numpy()])
    aside = [np.isin(values, chosen) for values in labels]
    vectors = [data.embeddings[torch.from_numpy(mask)] for data, mask in zip(sets, aside, strict=True)]
    cohort_labels = np.concatenate([values[mask] for values, mask in zip(labels, aside, strict=True)])
    line = (
        f"cohort: {len(chosen):,} of {len(np.unique(names)):,} identities ({len(cohort_labels):,} of {len(names):,} "
        "samples), set aside by name and not measured"
    )
    return (torch.cat(vectors), cohort_labels), [np.flatnonzero(~mask) for mask in aside], line


def cohort_of_report(
    report: ThresholdReport, path: str | Path, option: str | None, checkpoint: ModelFile | None
) -> CohortNormalization | None:
    """Returns the cohort of a report: the option's file, or the one next to the report; None for plain cosines."""
    if report.normalization is None:
        if option is not None:
            raise UserError(f"{path} is of plain cosines: leave --cohort out")
        return None
    if option is not None:
        return load_cohort(option, checkpoint)
    beside = Path(path).parent / FILE
    if not beside.is_file():
        raise UserError(f"{path} is of normalised scores: give --cohort its cohort.npz; there is none next to it")
    return load_cohort(beside, checkpoint)


def rows_outside(
    cohort: CohortNormalization, data: EmbeddingSet, name: str, *, has_labels: bool, rows: np.ndarray
) -> tuple[np.ndarray, list[str]]:
    """Returns the rows of identities and samples that are not in the cohort, and lines about the others.

    rows: of the samples in their file. UserError if none is left.
    """
    labels = data.labels.astype(str) if has_labels else None
    inside, is_copy = (mask.numpy() for mask in cohort.overlap(data.embeddings, labels))
    if (inside | is_copy).all():
        raise UserError(f"{name} has no identity outside the cohort. Those inside must not be measured")
    lines = []
    if labels is not None and inside.any():
        names = np.unique(labels[inside]).tolist()
        count = f"{inside.sum():,} samples of {len(names):,} identities"
        lines.append(f"left out: {count} that are in the cohort: {first_of(names)}")
    if others := rows[is_copy & ~inside].tolist():
        lines.append(f"left out: {len(others):,} copies of cohort samples: rows {first_of(others)}")
    return np.flatnonzero(~inside & ~is_copy), lines
