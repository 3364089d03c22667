"""`pml-ext threshold`: choose a threshold on embeddings from a file, and leave the report."""

from pathlib import Path
from typing import Any

import torch

from pml_ext.metrics import ThresholdReport
from pml_ext.metrics.threshold.report_files import write_files
from pml_ext.training.embeddings.files import EmbeddingFileError, read_embeddings


def report_threshold(file: str, *, checkpoint: str | None, out: str | None, **target: Any) -> str:
    """Make the report of a file of embeddings; leaves threshold.json, .html and .png.

    Args:
        file: see `embedding_files`; with cameras, label −1 is junk and left out.
        checkpoint: the model file that the embeddings come from; its hash is kept in the report.
        out: folder; None: the checkpoint's, or the current one.
        target: as of `ThresholdReport.from_embeddings`.
    Returns:
        what to print.
    Raises:
        EmbeddingFileError: files that cannot be read, or that the target does not fit.
        OSError: a folder that cannot be written.
    """
    if checkpoint is not None and not Path(checkpoint).is_file():
        raise EmbeddingFileError(f"no checkpoint at {checkpoint}")
    data = read_embeddings(file)
    kept = torch.from_numpy(~data.is_junk)
    try:
        report = ThresholdReport.from_embeddings(data.embeddings[kept], data.labels[~data.is_junk], **target)
    except ValueError as error:
        raise EmbeddingFileError(f"{file}: {error}") from error
    folder = Path(out) if out is not None else Path() if checkpoint is None else Path(checkpoint).parent
    folder.mkdir(parents=True, exist_ok=True)
    if checkpoint is not None:
        report = report.with_checkpoint(checkpoint)
    files = write_files(report, folder / "threshold")
    return "\n".join([report.summary(), "", *map(str, files)])
