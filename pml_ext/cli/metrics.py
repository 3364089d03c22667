"""`pml-ext metrics`: metrics and report of precomputed embeddings."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pml_ext._shared.errors import LaterErrors, UserError
from pml_ext._shared.identities import JUNK
from pml_ext.cli.arguments import (
    COHORT,
    EMBEDDING_FILES,
    IMAGE_FOLDER,
    Argument,
    Arguments,
    Command,
    OneOf,
    image_folder,
    plain_warnings,
    require_image_folder,
)

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from pml_ext.deploy.readers import EmbeddingSet
    from pml_ext.metrics import LabelledEmbeddings
    from pml_ext.metrics.labelled_embeddings import NumberedEmbeddings
    from pml_ext.runner.data.datasets.image_set import ImageSet

_FAR = 1e-3  # TEST.THRESHOLD.FAR's default


_ARGUMENTS: Arguments = [
    Argument("FILE", "Embeddings of the queries, see below."),
    Argument("--gallery FILE", "Embeddings to search in. Without it, each sample searches all others."),
    OneOf(
        Argument(
            "--distractors FILE",
            "More gallery embeddings, of identities that neither file has. Only TAR at FAR and searches "
            "are then measured [default: none]",
        ),
        COHORT,
        required=False,
    ),
    Argument(
        "--checkpoint FILE",
        "Model file of the embeddings; metrics.json keeps its hash, and a saved cohort must be of the same model "
        "[default: a gallery's model, if recorded]",
    ),
    Argument("--report", "Write an HTML report, too."),
    IMAGE_FOLDER,
    Argument("--output FOLDER", "Folder of metrics.json and report.html", default="."),
]


@plain_warnings()
def _print_metrics(options: Namespace) -> None:
    import numpy as np
    import torch

    from pml_ext.cli.cohort_option import take_cohort
    from pml_ext.deploy.model_record import model_of, require_one_model
    from pml_ext.deploy.readers import read_embeddings
    from pml_ext.metrics.labelled_embeddings import (
        check_matches_of,
        metrics_among_distractors,
        number_labels,
        standard_metrics,
    )
    from pml_ext.metrics.opis_settings import OPISSettings
    from pml_ext.runner.evaluation.collapse import describe_collapse
    from pml_ext.runner.evaluation.results import results_table, write_metrics
    from pml_ext.thresholds.samples import describe_cohort

    about: dict[str, Any] = {
        "embeddings": options.file,
        "gallery": options.gallery,
        "distractors": options.distractors,
        "opis": asdict(OPISSettings()),
    }
    folder = Path(options.output)
    files = [options.file] if options.gallery is None else [options.file, options.gallery]
    sets = [read_embeddings(name) for name in files]
    require_one_model(files[0], sets[0].record, files[-1], sets[-1].record)
    model = model_of(sets[0].record, options.checkpoint, options.file)
    if model is not None:
        about["checkpoint"] = asdict(model)
    images = [path for data in sets if data.paths is not None for path in data.paths.tolist()]
    require_image_folder(options.images, images or None, options.file)
    cohort, notes, rows = None, list[str](), [np.arange(data.rows) for data in sets]
    if options.cohort is not None:
        cohort, rows, notes = take_cohort(options.cohort, sets, model)
        sets = [data.take(measured) for data, measured in zip(sets, rows, strict=True)]
        about["normalize"] = asdict(describe_cohort(cohort))
    folder.mkdir(parents=True, exist_ok=True)
    named = [_labelled(data, name) for data, name in zip(sets, files, strict=True)]
    query, gallery = named[0], named[1] if len(named) > 1 else None
    if options.distractors is not None:
        others = read_embeddings(options.distractors, need_labels=False)
        require_one_model(options.file, sets[0].record, options.distractors, others.record)
        values = metrics_among_distractors(query, gallery, _labelled(others, options.distractors))
    else:
        values = standard_metrics(query, gallery, normalize=cohort)
    parts = number_labels(query, gallery)
    notes += check_matches_of(parts) if options.distractors is None else []
    name = Path(options.file).name
    embeddings = torch.cat([part.embeddings for part in parts])
    collapse = describe_collapse(name, embeddings, torch.cat([part.labels for part in parts]))
    notes += [collapse] if collapse else []
    file, later = folder / "metrics.json", LaterErrors()
    with later.collected(file):
        write_metrics(file, {name: values}, **about, notes=notes)
    print(results_table({name: values}, {"metrics": file}, notes=notes))
    if options.report:
        sources = [(data.paths, measured) for data, measured in zip(sets, rows, strict=True)]
        with later.collected(folder / "report.html"):
            print(f"open {_write_report(folder, name, parts, sources, values, notes, options)}")
    later.raise_together()


def _labelled(data: EmbeddingSet, name: str) -> LabelledEmbeddings:
    from pml_ext.metrics import LabelledEmbeddings

    return LabelledEmbeddings(data.embeddings, data.labels if data.has_labels else None, data.cameras, name)


def _write_report(
    folder: Path,
    name: str,
    parts: Sequence[NumberedEmbeddings],
    sources: Sequence[tuple[np.ndarray | None, np.ndarray]],
    values: dict[str, float],
    notes: list[str],
    options: Namespace,
) -> Path:
    """Write report.html and its figures; returns its path.

    sources: of each part, the paths of its samples, and their rows in the file.
    """
    import torch

    from pml_ext._ops.numerics import unit_rows
    from pml_ext._version import __version__
    from pml_ext.metrics.opis_settings import OPISSettings
    from pml_ext.runner.data.datasets.image_set import OpenSet
    from pml_ext.runner.evaluation.run_metrics import Measured
    from pml_ext.runner.report.run_page import write_report

    image_sets = []
    for part, of_part in zip(parts, sources, strict=True):
        image_sets.append(_image_set(part, *of_part, image_folder(options, part.name)))
    test_sets = {name: OpenSet(image_sets[0].subset([]), *image_sets)}
    features = {name: [unit_rows(part.without_junk()[0]) for part in parts]}
    facts = {
        "embeddings": parts[0].name,
        "searched": parts[1].name if len(parts) > 1 else "each other",
        "dimensions": str(parts[0].embeddings.shape[1]),
        "made by": f"pml_ext {__version__}, torch {torch.__version__}",
    }
    measured = Measured({name: values}, features)
    return write_report(
        folder, test_sets, measured, {}, far=_FAR, opis=OPISSettings(), seed=0, notes=notes, facts=facts
    )


def _image_set(
    part: NumberedEmbeddings, paths_of_rows: np.ndarray | None, rows_in_file: np.ndarray, folder: Path
) -> ImageSet:
    from pml_ext.deploy.readers import images_inside
    from pml_ext.runner.data.datasets.image_files import read_image
    from pml_ext.runner.data.datasets.image_set import ImageSet, LazyImages

    rows = (part.labels != JUNK).nonzero().flatten().numpy()
    names = [f"row {row}" for row in rows_in_file[rows]]
    paths: list[Path | None] = [None] * len(rows)
    if paths_of_rows is not None:
        listed = paths_of_rows[rows].tolist()
        paths = images_inside(listed, folder)
        names = [path or name for path, name in zip(listed, names, strict=True)]

    def read(path: Path | None) -> Tensor:
        if path is None:
            raise UserError(f"{part.name} has no paths of images in its folder or in --images")
        return read_image(path, grey=False)

    pixels = LazyImages(paths, read)
    return ImageSet(pixels, part.labels.numpy()[rows], part.cameras.numpy()[rows], names, part.identity_names)


METRICS = Command(
    "metrics",
    "Compute the metrics of precomputed embeddings.",
    _print_metrics,
    _ARGUMENTS,
    "pml-ext metrics query.npz --gallery gallery.npz --report --output report/",
    notes=EMBEDDING_FILES + "\nThe report shows no image outside the file's folder or --images.\n",
)
