"""Saved cohorts and threshold reports of a model: reading and comparing them."""

import warnings
from pathlib import Path
from typing import Any
from zipfile import ZipFile, is_zipfile

from pml_ext._errors import UserError
from pml_ext.metrics import CohortNormalization, ThresholdReport
from pml_ext.search.model_record import ModelRecord


def is_saved_cohort(path: str) -> bool:
    """Returns whether a file was written by `CohortNormalization.save`, as opposed to a file of embeddings."""
    if not Path(path).is_file() or not is_zipfile(path):
        return False
    with ZipFile(path) as file:
        return {"cohort.npy", "record.npy"} <= set(file.namelist())


def load_cohort(path: str | Path, checkpoint: str | None = None) -> CohortNormalization:
    """Read a saved cohort; the cohort must record the checkpoint, if there is one."""
    try:
        return CohortNormalization.load(path, checkpoint=checkpoint)
    except FileNotFoundError as error:
        raise UserError(f"no cohort at {path}") from error
    except ValueError as error:
        raise UserError(str(error)) from error


def load_cohort_of(path: str | Path, record: ModelRecord) -> CohortNormalization:
    """Read a saved cohort; UserError if another model computed it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the checkpoint, which `require` compares
        cohort = load_cohort(Path(path).expanduser())
    advice = "make it by pml-ext threshold choose --cohort with --checkpoint, the file of weights"
    record.require(path, cohort.cohort.shape[1], cohort.checkpoint, advice)
    return cohort


def load_report_of(path: str | Path, record: ModelRecord | None) -> ThresholdReport:
    """Read a threshold report; UserError if it belongs to another model."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            report = ThresholdReport.load(path)
    except ValueError as error:
        raise UserError(str(error)) from error
    if record is not None:
        advice = "make it by pml-ext threshold choose --checkpoint with the weights that the embeddings are from"
        record.require(path, report.embedding_dim, report.checkpoint, advice)
    return report


def is_same_cohort(one: Any, other: Any) -> bool:
    """Returns whether two normalisations (cohorts or records) are equal; None stands for cosines."""
    if one is None or other is None:
        return one is other
    return bool((one.k, one.strength, one.sha256) == (other.k, other.strength, other.sha256))


def describe_scores(cohort: Any) -> str:
    """Describe the scores of a normalisation (cohort or record); None stands for cosines."""
    if cohort is None:
        return "plain cosines"
    return f"normalised by a cohort (k = {cohort.k}, strength = {cohort.strength:g}, SHA-256 {cohort.sha256[:12]}…)"
