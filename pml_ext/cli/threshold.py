"""`pml-ext threshold`: choose a threshold on embeddings from a file, or check one on new embeddings."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pml_ext._errors import UserError
from pml_ext.metrics import CohortNormalization, ThresholdReport
from pml_ext.metrics.threshold.model_comparison import compare_models
from pml_ext.metrics.threshold.validity import check_threshold, is_across_cameras
from pml_ext.reports.model_page import write_model_page
from pml_ext.reports.threshold_page import write_files
from pml_ext.search.cohorts import choose_normalization, is_saved_cohort, load_cohort
from pml_ext.search.readers import EmbeddingSet, images_inside, read_embeddings

_NOT_WRITTEN = "nothing was written; --out FOLDER writes {}"


def report_threshold(
    file: str,
    *,
    checkpoint: str | None,
    out: str | None,
    same_camera_pairs: bool = False,
    images: str | None = None,
    groups: str | None = None,
    normalize: str | None = None,
    **asked: Any,
) -> str:
    """Choose a threshold on a file of embeddings, return the text to print.

    checkpoint: the model file that the embeddings come from; out: the folder for threshold.json, .html and .png; None:
    nothing is written; images None: the file's own folder; groups: the name of a column; normalize: see
    `choose_normalization`, a cohort is written as cohort.npz beside them; asked: as for
    `ThresholdReport.from_embeddings`. Samples of label −1 are ignored with cameras.
    """
    if checkpoint is not None and not Path(checkpoint).is_file():
        raise UserError(f"no checkpoint at {checkpoint}")
    data = read_embeddings(file, also=() if groups is None else (groups,))
    if same_camera_pairs and data.cameras is None:
        raise UserError(f"{file} has no cameras: leave --same-camera-pairs out")
    rows = np.flatnonzero(~data.is_junk)
    embeddings, labels = data.embeddings[torch.from_numpy(rows)], data.labels[rows]
    cohort, told = None, list[str]()
    if normalize is not None:
        far = asked.get("far")
        cohort, chosen = choose_normalization(normalize, embeddings, labels, far=far, checkpoint=checkpoint)
        told = [chosen, ""]
    try:
        report = ThresholdReport.from_embeddings(
            embeddings,
            labels,
            cameras=None if data.cameras is None else data.cameras[rows],
            same_camera_pairs=same_camera_pairs,
            groups=None if groups is None else data.also[groups][rows],
            rows=rows.tolist(),
            paths=_picture_paths(data, rows, file, images),
            data=Path(file).name,
            normalize=cohort,
            **{name: value for name, value in asked.items() if value is not None},
        )
    except ValueError as error:
        raise UserError(f"{file}: {error}") from error
    if checkpoint is not None:
        report = report.with_checkpoint(checkpoint)
    told += [report.summary(), ""]
    if out is None:
        return "\n".join([*told, _NOT_WRITTEN.format("the report as page, picture and JSON")])
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    files = [*map(str, write_files(report, folder / "threshold"))]
    if isinstance(cohort, CohortNormalization) and not is_saved_cohort(str(normalize)):
        cohort.save(folder / "cohort.npz", checkpoint=checkpoint)
        files.append(str(folder / "cohort.npz"))
    return "\n".join(told + files)


def check_threshold_file(
    report_file: str,
    file: str,
    *,
    checkpoint: str | None,
    labels: str | None = None,
    frames: str | None = None,
    tracks: str | None = None,
    look: int = 1,
    normalize: str | None = None,
) -> tuple[str, int]:
    """Compare a saved threshold with the error rates of a file of new embeddings; look is 1 for the first check, 2 …

    checkpoint: the model file in use, which must be the report's; labels, frames, tracks: names of columns in the file;
    without them its labels count, if it has any; normalize: the cohort.npz of a report that has one. Cameras count if
    the report's FRR is across cameras, and samples of label −1 are ignored with cameras.
    Returns the text to print, and 0 if the threshold holds, 1 if it does not, 3 if the data cannot tell.
    """
    columns = {"labels": labels, "frames": frames, "tracks": tracks}
    asked = {name: column for name, column in columns.items() if column is not None}
    data = read_embeddings(file, need_labels=False, also=tuple(asked.values()))
    known = {name: data.also[column] for name, column in asked.items()}
    if not known and data.has_labels:
        known["labels"] = data.labels
    if "labels" in known:
        data = replace(data, labels=known["labels"])
    try:
        report = ThresholdReport.load(report_file, checkpoint=checkpoint)
        cohort = None if normalize is None else load_cohort(normalize, checkpoint)
        if cohort is None and report.normalization is not None and report.normalization.cohort == "samples":
            raise UserError(f"{report_file} is of normalised scores: give --normalize the cohort.npz written beside it")
        if "labels" in known and data.cameras is not None and is_across_cameras(report):
            known["cameras"] = data.cameras
        rows = np.flatnonzero(~data.is_junk)
        ids: dict[str, Any] = {name: values[rows] for name, values in known.items()}
        embeddings = data.embeddings[torch.from_numpy(rows)]
        found = check_threshold(report, embeddings, **ids, look=look, normalization=cohort, rows=rows.tolist())
    except ValueError as error:
        raise UserError(f"{file}: {error}") from error
    return found.summary(), found.status


def compare_files(files: list[str], *, far: float | None, fpir: float | None, gallery_size: int | None,
                  out: str | None, **others: Any) -> str:  # fmt: skip
    """Compare the models of files of the same samples, return the text to print; out: the folder for models.html.

    The first file's labels and cameras count; others must be options that are not given.
    """
    if (far is None) == (fpir is None):
        raise UserError("--compare needs --far RATE, or --fpir RATE with --gallery-size N")
    if given := [f"--{name.replace('_', '-')}" for name, value in others.items() if value]:
        raise UserError(f"{', '.join(given)} do not go with --compare")
    if len(set(files)) < len(files) or len(files) < 2:
        raise UserError(f"--compare needs two or more different files; got {', '.join(files)}")
    sets = [read_embeddings(file) for file in files]
    for file, data in zip(files[1:], sets[1:], strict=True):
        for name in ("labels", "cameras", "paths"):
            one, other = getattr(sets[0], name), getattr(data, name)
            if one is not None and other is not None and not np.array_equal(one, other):
                raise UserError(f"{file} must hold the samples of {files[0]}, in the same order: their {name} differ")
    rows = np.flatnonzero(~sets[0].is_junk)
    names = files if len({Path(file).name for file in files}) < len(files) else [Path(file).name for file in files]
    cameras = sets[0].cameras
    try:
        found = compare_models(
            {name: data.embeddings[torch.from_numpy(rows)] for name, data in zip(names, sets, strict=True)},
            sets[0].labels[rows],
            far=far,
            fpir=fpir,
            gallery_size=gallery_size,
            cameras=None if cameras is None else cameras[rows],
        )
    except ValueError as error:
        raise UserError(str(error)) from error
    if out is None:
        return f"{found.summary()}\n\n{_NOT_WRITTEN.format('the comparison as a page')}"
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    write_model_page(folder / "models.html", found)
    return f"{found.summary()}\n\n{folder / 'models.html'}"


def _picture_paths(data: EmbeddingSet, rows: np.ndarray, file: str, images: str | None) -> list[Path | None] | None:
    """The samples' pictures, None for those outside the folder."""
    if data.paths is None:
        if images is not None:
            raise UserError(f"--images needs the pictures' paths; {file} has none")
        return None
    paths = map(str, data.paths[rows])
    return images_inside(paths, Path(file).parent if images is None else images)
