"""`pml-ext threshold`: choose a threshold on embeddings from a file, and leave the report."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from pml_ext._checks import warn_caller
from pml_ext._errors import UserError
from pml_ext.metrics import ThresholdReport
from pml_ext.reports.threshold_page import write_files
from pml_ext.search.embedding_set import EmbeddingSet, pictures_inside, read_embeddings


def report_threshold(
    file: str,
    *,
    checkpoint: str | None,
    out: str | None,
    same_camera_pairs: bool = False,
    images: str | None = None,
    **target: Any,
) -> str:
    """Make the report of a file of embeddings; leaves threshold.json, .html and .png.

    Args:
        file: see `read_embeddings`; with cameras, label −1 is junk and left out.
        checkpoint: the model file that the embeddings come from; its hash is kept in the report.
        out: folder; None: the checkpoint's, or the current one.
        same_camera_pairs: count genuine pairs of one camera too, where the file has cameras.
        images: the folder that the file's paths are in; None: the file's own.
        target: as of `ThresholdReport.from_embeddings`.
    Returns:
        what to print.
    Raises:
        UserError: files that cannot be read, or that the target does not fit.
        OSError: a folder that cannot be written.
    """
    if checkpoint is not None and not Path(checkpoint).is_file():
        raise UserError(f"no checkpoint at {checkpoint}")
    data = read_embeddings(file)
    if same_camera_pairs and data.cameras is None:
        raise UserError(f"{file} has no cameras: leave --same-camera-pairs out")
    rows = np.flatnonzero(~data.is_junk)
    try:
        report = ThresholdReport.from_embeddings(
            data.embeddings[torch.from_numpy(rows)],
            data.labels[rows],
            cameras=None if data.cameras is None else data.cameras[rows],
            same_camera_pairs=same_camera_pairs,
            rows=rows.tolist(),
            paths=_pictures(data, rows, file, images),
            data=Path(file).name,
            **target,
        )
    except ValueError as error:
        raise UserError(f"{file}: {error}") from error
    folder = Path(out) if out is not None else Path() if checkpoint is None else Path(checkpoint).parent
    folder.mkdir(parents=True, exist_ok=True)
    if checkpoint is not None:
        report = report.with_checkpoint(checkpoint)
    files = write_files(report, folder / "threshold")
    return "\n".join([report.summary(), "", *map(str, files)])


def _pictures(data: EmbeddingSet, rows: np.ndarray, file: str, images: str | None) -> list[Path | None] | None:
    """The samples' pictures; None for those that lie outside the folder."""
    if data.paths is None:
        if images is not None:
            raise UserError(f"--images needs the pictures' paths; {file} has none")
        return None
    paths = map(str, data.paths[rows])
    inside, outside = pictures_inside(paths, Path(file).parent if images is None else images)
    if outside is not None:
        warn_caller(outside)
    return inside
