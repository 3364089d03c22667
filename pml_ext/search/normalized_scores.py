"""Scores normalised by a cohort in a search: vectors whose inner products they are, and what must belong together."""

from pathlib import Path

import numpy as np
import torch

from pml_ext._errors import UserError
from pml_ext.functional.pairwise.offset_scores import both_sides
from pml_ext.metrics import CohortNormalization, GalleryCohort, ThresholdReport
from pml_ext.metrics.cohort_file import read_cohort
from pml_ext.search.embedding_blocks import Block
from pml_ext.search.embedding_file import EmbeddingFile
from pml_ext.search.model_record import CohortUse, ModelRecord


def load_cohort_of(path: str | Path, record: ModelRecord) -> CohortNormalization:
    """A saved cohort of the weights that a record names; a UserError for a file of others."""
    try:
        cohort, found = read_cohort(Path(path).expanduser())
        normalization = CohortNormalization(cohort, found.k, found.strength, checkpoint=found.checkpoint)
    except FileNotFoundError as error:
        raise UserError(f"no cohort at {path}: say where its .npz is now (--normalize, or cohort=)") from error
    except (OSError, ValueError) as error:
        raise UserError(str(error)) from error
    normalization.cohort = cohort  # to the bit: its checksum is that of the file
    if found.embedding_dim != record.embedding_dim:
        dims = f"{found.embedding_dim} dimensions; the model's embeddings have {record.embedding_dim}"
        raise UserError(f"{path} has a cohort of {dims}: make it with this model")
    advice = "make it by pml-ext threshold --normalize with --checkpoint, the file of weights"
    if found.checkpoint is None:
        raise UserError(f"{path} names no model, so its cohort may be another model's: {advice}")
    if found.checkpoint.sha256 != record.sha256:
        raise UserError(
            f"{path} has a cohort of the model {found.checkpoint.file} (SHA-256 {found.checkpoint.sha256[:12]}…), the "
            f"embeddings are of {record.weights} ({record.sha256[:12]}…): {advice}"
        )
    return normalization


def use_of(path: str | Path, cohort: CohortNormalization) -> CohortUse:
    return CohortUse(str(Path(path).expanduser().resolve()), cohort.k, cohort.strength, cohort.sha256)


def offsets_of(cohort: CohortNormalization, embeddings: np.ndarray) -> np.ndarray:
    """(n,) float32, as a file of embeddings keeps them."""
    return cohort.offsets(torch.from_numpy(embeddings)).float().numpy()


def search_vectors(embeddings: np.ndarray, offsets: np.ndarray, strength: float) -> tuple[np.ndarray, np.ndarray]:
    """Both sides (n, D + 2) of unit rows: their vectors as queries, and as rows that are searched."""
    half = torch.from_numpy(0.5 * strength * offsets)
    query, gallery = both_sides(torch.from_numpy(embeddings), half)
    return query.numpy(), gallery.numpy()


def indexed_vectors(block: Block, use: CohortUse | None) -> np.ndarray:
    """What an index has of rows: the embeddings, with two more columns where scores are normalised."""
    if use is None:
        return block.embeddings
    assert block.offsets is not None  # `EmbeddingFile` has them where its record names a cohort
    return search_vectors(block.embeddings, block.offsets, use.strength)[1]


def as_queries(vectors: np.ndarray, use: CohortUse | None) -> np.ndarray:
    """Indexed vectors as queries."""
    return vectors if use is None else vectors[:, [*range(vectors.shape[1] - 2), -1, -2]]


def require_same_scores(report: ThresholdReport, path: str | Path, use: CohortUse | None, what: str | Path) -> None:
    """A UserError unless the threshold is of the scores that `what`, a file, has: plain cosines where use is None."""
    found = report.normalization
    if found is None:
        if use is not None:
            advice = f"make the report by pml-ext threshold --normalize {use.file}"
            raise UserError(f"{path} is of plain cosines, and the scores of {what} are normalised: {advice}")
    elif found.cohort == "gallery":
        advice = "make a report with pml-ext threshold --normalize and a file of embeddings"
        raise UserError(f"{path} has the gallery as cohort, and {what} {use or 'none'}: {advice}")
    elif use is None or (use.k, use.strength, use.sha256) != (found.k, found.strength, found.sha256):
        wanted = f"k = {found.k}, strength = {found.strength:g}, SHA-256 {str(found.sha256)[:12]}…"
        given = f"normalised by another, {use}" if use else "plain cosines"
        raise UserError(
            f"{path} is of scores normalised by a cohort ({wanted}), those of {what} are {given}: make it with "
            "--normalize and the cohort.npz beside the report"
        )


def gallery_cohort_of(report: ThresholdReport, path: str, file: EmbeddingFile, most: int) -> GalleryCohort | None:
    """The gallery as cohort, where the report has it and the file plain cosines of at most so many rows."""
    found = report.normalization
    if found is None or found.cohort != "gallery" or (file.record and file.record.normalization):
        return None
    if not found.k < file.rows <= most:
        advice = "embed with --normalize and a cohort, and make the report with it"
        raise UserError(
            f"{path} has the gallery as cohort, which must have from {found.k + 1} (k = {found.k}) to {most:,} rows; "
            f"{file.path} has {file.rows:,}: {advice}"
        )
    return GalleryCohort(found.k, found.strength)
