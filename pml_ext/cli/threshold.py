"""`pml-ext threshold choose` and `check`: decision thresholds on files of embeddings."""

from __future__ import annotations

import os
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pml_ext.cli.arguments import (
    COHORT,
    EMBEDDING_FILES,
    IMAGE_FOLDER,
    Argument,
    Arguments,
    Command,
    OneOf,
    errors_of_file,
    image_folder,
    plain_warnings,
    require_image_folder,
)

if TYPE_CHECKING:
    import numpy as np

    from pml_ext.deploy.readers import EmbeddingSet
    from pml_ext.metrics import CohortNormalization
    from pml_ext.thresholds import SearchPlan, ThresholdReport

_SEE_FILES = "See `pml-ext metrics --help` for the layout of files.\n"


_FAR = Argument("--far RATE", "Choose the threshold with a false accept rate of at most RATE, e.g. 0.001.", type=float)
_FRR = Argument("--frr RATE", "Choose the threshold with a false reject rate of at most RATE, e.g. 0.05.", type=float)
_FPIR = Argument(
    "--fpir RATE",
    "Choose the threshold at which at most RATE of the searches for identities outside the gallery find a match.",
    type=float,
)
_GALLERY_SIZE = Argument(
    "--gallery-size N",
    "Enrolled identities in a search; if the file has fewer, rates are extrapolated. With --fpir, the threshold is "
    "chosen for this number; otherwise searches are only reported [default: with --fpir all of the file, each search "
    "without the query's own; otherwise no searches]",
    type=int,
)


_CHOOSE_ARGUMENTS: Arguments = [
    Argument("FILE", "Embeddings of validation samples, see below."),
    OneOf(_FAR, _FRR, _FPIR, required=True),
    Argument(
        "--confidence P",
        "Choose so that new identities meet RATE with probability P, e.g. 0.95 [default: only the file's samples do]",
        type=float,
    ),
    _GALLERY_SIZE,
    Argument("--rank R", "Count a search as correct if the right identity is in the top R [default: 1]", type=int),
    Argument(
        "--template",
        "Compare a search with the best sample of an identity, or with their mean [default: best]",
        choices=["best", "mean"],
    ),
    Argument("--groups NAME", "Array or column with groups of samples; compares their rates [default: none]"),
    COHORT,
    Argument(
        "--checkpoint FILE", "Model file of the embeddings; the report keeps its hash [default: a gallery's model]"
    ),
    IMAGE_FOLDER,
    Argument("--output FOLDER", "Folder for the report: page, figure, JSON and cohort [default: only print]"),
]


@plain_warnings()
def _choose(options: Namespace) -> None:
    from pml_ext.cli.cohort_option import FILE, require_cohort_file, take_cohort
    from pml_ext.deploy.model_record import model_of
    from pml_ext.deploy.readers import read_embeddings
    from pml_ext.reports.page import require_page
    from pml_ext.thresholds.page import write_files

    if options.output is not None:
        require_page(Path(options.output) / "threshold.html")
        if options.cohort is not None:
            require_cohort_file(Path(options.output))
    data = read_embeddings(options.file, also=[] if options.groups is None else [options.groups])
    model = model_of(data.record, options.checkpoint, options.file)
    require_image_folder(options.images, None if data.paths is None else data.paths.tolist(), options.file)
    rows = (~data.is_junk).nonzero()[0]
    data, cohort, about = data.take(rows), None, list[str]()
    if options.cohort is not None:
        cohort, (measured,), about = take_cohort(options.cohort, [data], model)
        data, rows = data.take(measured), rows[measured]
    with errors_of_file(options.file, options):
        report = _report_of(options, data, rows, cohort)
        report = report if model is None else report.with_checkpoint(model)
    print(report.summary(), *about, sep="\n", end="\n\n")
    if report.doubtful is not None:
        print(*report.doubtful.summary(), sep="\n", end="\n\n")
    if options.output is None:
        print("nothing was written; --output FOLDER writes the report as page, figure and JSON")
        return
    folder = Path(options.output)
    folder.mkdir(parents=True, exist_ok=True)
    files = list[Path]()
    if cohort is not None:
        files.append(folder / FILE)
        cohort.save(files[-1], checkpoint=model)
    files += write_files(report, folder / "threshold")
    print(*files, f"open {folder / 'threshold.html'}", sep="\n")


def _report_of(
    options: Namespace, data: EmbeddingSet, rows: np.ndarray, cohort: CohortNormalization | None
) -> ThresholdReport:
    from pml_ext.thresholds import SampleSource, ThresholdReport

    source = SampleSource(rows.tolist(), _image_paths(data, options), Path(options.file).name)
    search, groups = _search_plan(options, data), data.also.get(options.groups)
    return ThresholdReport.from_embeddings(
        data.embeddings,
        data.labels,
        far=options.far,
        frr=options.frr,
        confidence=options.confidence,
        cameras=data.cameras,
        groups=groups,
        search=search,
        normalize=cohort,
        source=source,
    )


def _chosen(options: Namespace, *names: str) -> dict[str, Any]:
    """Returns the options that have a value."""
    return {name: value for name in names if (value := getattr(options, name)) is not None}


def _search_plan(options: Namespace, data: EmbeddingSet) -> SearchPlan | None:
    """Returns the searches that the options describe; None without such options."""
    from pml_ext.thresholds import SearchPlan

    search = _chosen(options, "fpir", "rank", "template")
    size = options.gallery_size
    if size is None and not search:
        return None
    if size is None:
        size = len(set(data.labels.tolist()))
    return SearchPlan(size, **search)


def _image_paths(data: EmbeddingSet, options: Namespace) -> list[Path | None] | None:
    """Returns the samples' images, wherever they lie; relative paths start at the folder. None for an empty path."""
    if data.paths is None:
        return None
    folder = image_folder(options, options.file)
    return [folder / path if path else None for path in data.paths.tolist()]


CHOOSE = Command(
    "threshold choose",
    "Choose a decision threshold, and report its effect on each class.",
    _choose,
    _CHOOSE_ARGUMENTS,
    "pml-ext threshold choose val.npz --far 0.001 --output report/",
    notes=EMBEDDING_FILES,
)


_DEFAULT_LIMIT = "[default: twice the odds of the report's rate, or where its interval ends if that is higher]"
_CHECK_ARGUMENTS: Arguments = [
    Argument("REPORT", "threshold.json of `pml-ext threshold choose`.", type=os.path.expanduser),
    Argument("FILE", "New embeddings."),
    Argument(
        "--labels NAME",
        "Array or column of identities; not with --frames or --tracks [default: the file's labels]",
    ),
    Argument(
        "--frames NAME",
        "Array or column with each sample's frame; samples of one frame are different people; -1: left out "
        "[default: none]",
    ),
    Argument(
        "--tracks NAME",
        "Array or column with each sample's track; samples of one track are the same person; -1: left out "
        "[default: none]",
    ),
    Argument("--far-limit RATE", f"Highest false accept rate that holds {_DEFAULT_LIMIT}", type=float),
    Argument("--frr-limit RATE", f"Highest false reject rate that holds {_DEFAULT_LIMIT}", type=float),
    Argument("--cohort FILE", "cohort.npz of a report on normalised scores [default: the one next to REPORT]"),
    Argument("--checkpoint FILE", "Model file in use; must be the report's [default: a gallery's model, if recorded]"),
    Argument("--output FILE", "JSON file for the check [default: only print]"),
]


@plain_warnings()
def _check(options: Namespace) -> int:
    import numpy as np

    from pml_ext._shared.identities import is_junk
    from pml_ext.cli.cohort_option import cohort_of_report, rows_outside
    from pml_ext.deploy.model_record import model_of
    from pml_ext.deploy.readers import read_embeddings
    from pml_ext.thresholds import ThresholdReport

    columns = _chosen(options, "labels", "frames", "tracks")
    data = read_embeddings(options.file, need_labels=False, also=[*columns.values()])
    has_labels = "labels" in columns or (not columns and data.has_labels)
    label_column = columns.pop("labels", None)
    if label_column is not None:
        data = replace(data, labels=data.also[label_column])
    of_nobody = [data.is_junk, *(is_junk(data.also[column]) for column in columns.values())]
    rows = np.flatnonzero(~np.logical_or.reduce(of_nobody))
    data = data.take(rows)
    with errors_of_file(options.file, options):
        model = model_of(data.record, options.checkpoint, options.file)
        report = ThresholdReport.load(options.report, checkpoint=model)
        cohort = cohort_of_report(report, options.report, options.cohort, model)
        notes = list[str]()
        if cohort is not None:
            measured, notes = rows_outside(cohort, data, options.file, has_labels=has_labels, rows=rows)
            data = data.take(measured)
        known: dict[str, Any] = {name: data.also[column] for name, column in columns.items()}
        if has_labels:
            known["labels"] = data.labels
        if has_labels and report.is_across_cameras:
            known["cameras"] = data.cameras
        limits = _chosen(options, "far_limit", "frr_limit")
        check = report.check(data.embeddings, **known, **limits, normalization=cohort)
    print(check.summary(), *notes, sep="\n")
    if options.output is not None:
        check.save(options.output)
    return check.status


CHECK = Command(
    "threshold check",
    "Test a saved threshold on new data.",
    _check,
    _CHECK_ARGUMENTS,
    "pml-ext threshold check report/threshold.json today.npz",
    notes=f"Exit status: 0 holds, 1 does not hold, 3 cannot be told.\n{_SEE_FILES}",
)
