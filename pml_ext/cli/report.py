"""`pml-ext report --embeddings`: the page of a run for embeddings made elsewhere."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pml_ext._checks import warn_caller
from pml_ext._errors import UserError
from pml_ext._identities import JUNK
from pml_ext._ops.normalize import unit_rows
from pml_ext._version import __version__
from pml_ext.reports.run_report import measure_utility, notes_on_opis, write_report
from pml_ext.runner.data.datasets.data_set import OpenSet
from pml_ext.runner.data.datasets.image_files import read_image
from pml_ext.runner.data.datasets.image_set import ImageSet, LazyImages
from pml_ext.runner.evaluation.baselines import Measured
from pml_ext.runner.evaluation.collapse import describe_collapse
from pml_ext.runner.evaluation.results import results_table, write_metrics
from pml_ext.search.evaluate_command import OPIS_SETTINGS, Part, measure_parts, read_parts
from pml_ext.search.readers import images_inside

_FAR = 1e-3  # that of TEST.THRESHOLD


def report_embeddings(file: str, gallery_file: str | None, out: str, images: str | None) -> str:
    """Write out/report.html, its pictures and out/metrics.json; return the table to print.

    The file's queries search the gallery, or each other. images: the folder of the files' paths, None: each file's own.
    """
    parts = read_parts(file, gallery_file)
    if images is not None and all(part.data.paths is None for part in parts):
        raise UserError(f"--images needs the pictures' paths; {file} has none")
    name, folder = Path(file).name, Path(out)
    results = {name: measure_parts(parts)}
    kept = [part.labels != JUNK for part in parts]
    sets = [_image_set(part, rows.numpy(), images) for part, rows in zip(parts, kept, strict=True)]
    features = {name: [unit_rows(part.data.embeddings.float())[rows] for part, rows in zip(parts, kept, strict=True)]}
    test_sets = {name: OpenSet(sets[0].subset([]), *sets)}
    utility = measure_utility(test_sets, features, OPIS_SETTINGS)
    noted = {name: describe_collapse(name, torch.cat(features[name]), torch.cat([part.labels for part in parts]))}
    notes = list(filter(None, [*noted.values(), *notes_on_opis(utility, noted)]))
    folder.mkdir(parents=True, exist_ok=True)
    facts = {
        "embeddings": file,
        "searched": gallery_file or "each other",
        "dimensions": str(features[name][0].shape[1]),
    }
    page, _ = write_report(
        folder,
        test_sets,
        Measured(results, features),
        {},
        far=_FAR,
        utility=utility,
        seed=0,
        notes=notes,
        facts={**facts, "made by": f"pml_ext {__version__}, torch {torch.__version__}"},
    )
    path = folder / "metrics.json"
    write_metrics(path, results, embeddings=file, gallery=gallery_file, opis=asdict(OPIS_SETTINGS), notes=notes)
    return results_table(results, {"metrics": path, "report": page}, notes=notes)


def _image_set(part: Part, rows: np.ndarray, images: str | None) -> ImageSet:
    paths = None if part.data.paths is None else part.data.paths[rows]
    names: Iterable[str] = [f"row {row}" for row in np.flatnonzero(rows)] if paths is None else paths.tolist()
    pictures = _pictures(part.file, paths, int(rows.sum()), images)
    ids, cameras = part.labels.numpy()[rows], part.cameras.numpy()[rows]
    return ImageSet(pictures, ids, cameras, [*names], part.identity_names)


def _pictures(file: str, paths: np.ndarray | None, count: int, images: str | None) -> Sequence[Tensor]:
    """The pictures of a file's rows; blank ones, after a warning, for those that cannot be read."""
    if paths is None:
        return _no_pictures(count, f"{file} has no paths of pictures")
    folder = Path(file).parent if images is None else Path(images)
    found = images_inside(map(str, paths), folder)
    if not any(path is not None and path.is_file() for path in found):
        return _no_pictures(count, f"none of the {count} pictures of {file} is in {folder}: give --images their folder")
    return LazyImages(found, partial(_read_or_blank, set()))


def _no_pictures(count: int, reason: str) -> LazyImages:
    """Images that are not there, for a reason."""

    def refuse(row: int) -> Tensor:
        raise UserError(reason)

    return LazyImages(range(count), refuse)


def _read_or_blank(reported: set[Path], path: Path | None) -> Tensor:
    if path is not None:
        try:
            return read_image(path, grey=False)
        except UserError as error:
            if path not in reported:
                warn_caller(f"{error} It is shown blank")
            reported.add(path)
    return torch.full((3, 64, 64), 220, dtype=torch.uint8)
