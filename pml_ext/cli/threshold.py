"""`pml-ext threshold choose`, `check` and `compare`: decision thresholds on files of embeddings."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pml_ext._errors import UserError
from pml_ext.cli.arguments import EMBEDDING_FILES, IMAGE_FOLDER, Argument, Arguments, Command, OneOf, plain_warnings

if TYPE_CHECKING:
    import numpy as np

    from pml_ext.metrics import ThresholdReport
    from pml_ext.metrics.normalization import Normalization
    from pml_ext.search.readers import EmbeddingSet

_NOT_WRITTEN = "nothing was written; --output FOLDER writes {}"
_SEE_FILES = "See `pml-ext evaluate --help` for the layout of files.\n"


_FAR = Argument("--far RATE", "Choose the threshold with a false accept rate of at most RATE, e.g. 0.001.", type=float)
_FPIR = Argument("--fpir RATE", "Maximum false positive identification rate (FPIR).", type=float)
_GALLERY_SIZE = Argument(
    "--gallery-size N", "Searches are among N enrolled identities [default: all of the file but one]", type=int
)


_CHOOSE_ARGUMENTS: Arguments = [
    Argument("FILE", "Embeddings of validation samples, see below."),
    OneOf(_FAR, Argument("--frr RATE", "Maximum false reject rate.", type=float), _FPIR, required=True),
    _GALLERY_SIZE,
    Argument("--rank R", "Count a search as correct if the right identity is in the top R [default: 1]", type=int),
    Argument(
        "--template",
        "Compare a search with the best sample of an identity, or with their mean [default: best]",
        choices=["best", "mean"],
    ),
    Argument("--groups NAME", "Array or column with groups of samples; compares their rates."),
    Argument(
        "--normalize COHORT",
        "Normalise scores by a cohort: `gallery` for the samples themselves, a file of embeddings, or a saved "
        "cohort.npz.",
    ),
    Argument("--checkpoint FILE", "Model file of the embeddings; the report keeps its hash."),
    IMAGE_FOLDER,
    Argument("--output FOLDER", "Folder for the report: page, figure and JSON."),
]


@plain_warnings()
def _choose(options: Namespace) -> None:
    from pml_ext.metrics import CohortNormalization
    from pml_ext.reports.threshold_page import write_files
    from pml_ext.search.cohorts import choose_normalization, is_saved_cohort
    from pml_ext.search.readers import read_embeddings

    checkpoint = options.checkpoint
    if checkpoint is not None and not Path(checkpoint).is_file():
        raise UserError(f"no checkpoint at {checkpoint}")
    data = read_embeddings(options.file, also=() if options.groups is None else (options.groups,))
    rows, lines, cohort = _rows_without_junk(data), list[str](), None
    if options.normalize is not None:
        cohort, chosen = choose_normalization(
            options.normalize, data.embeddings[rows], data.labels[rows], far=options.far, checkpoint=checkpoint
        )
        lines += [chosen, ""]
    try:
        report = _report_of(options, data, rows, cohort)
    except ValueError as error:
        raise UserError(f"{options.file}: {error}") from error
    lines += [report.summary(), ""]
    if options.output is None:
        lines.append(_NOT_WRITTEN.format("the report as page, figure and JSON"))
    else:
        folder = Path(options.output)
        folder.mkdir(parents=True, exist_ok=True)
        lines += map(str, write_files(report, folder / "threshold"))
        if isinstance(cohort, CohortNormalization) and not is_saved_cohort(options.normalize):
            cohort.save(folder / "cohort.npz", checkpoint=checkpoint)
            lines.append(str(folder / "cohort.npz"))
    print("\n".join(lines))


def _report_of(
    options: Namespace, data: EmbeddingSet, rows: np.ndarray, cohort: Normalization | None
) -> ThresholdReport:
    from pml_ext.metrics import SampleSource, SearchPlan, ThresholdReport

    searches: dict[str, Any] = {"fpir": options.fpir, "rank": options.rank, "template": options.template}
    searches = {name: value for name, value in searches.items() if value is not None}
    size = options.gallery_size
    if searches and size is None:
        size = _most_enrolled(data.labels[rows])
    report = ThresholdReport.from_embeddings(
        data.embeddings[rows],
        data.labels[rows],
        far=options.far,
        frr=options.frr,
        cameras=_rows_of(data.cameras, rows),
        groups=_rows_of(data.also.get(options.groups), rows),
        search=None if size is None else SearchPlan(size, **searches),
        normalize=cohort,
        source=SampleSource(rows.tolist(), _image_paths(data, rows, options), Path(options.file).name),
    )
    return report if options.checkpoint is None else report.with_checkpoint(options.checkpoint)


def _rows_without_junk(data: EmbeddingSet) -> np.ndarray:
    rows: np.ndarray = (~data.is_junk).nonzero()[0]
    return rows


def _rows_of(values: np.ndarray | None, rows: np.ndarray) -> np.ndarray | None:
    return None if values is None else values[rows]


def _most_enrolled(labels: np.ndarray) -> int:
    """Identities of a gallery while one is searched for that is not in it."""
    return max(1, len(set(labels.tolist())) - 1)


def _image_paths(data: EmbeddingSet, rows: np.ndarray, options: Namespace) -> list[Path | None] | None:
    """The samples' images, None for those outside the folder."""
    from pml_ext.search.readers import images_inside

    if data.paths is not None:
        return images_inside(map(str, data.paths[rows]), options.images or Path(options.file).parent)
    if options.images is not None:
        raise UserError(f"--images needs the images' paths; {options.file} has none")
    return None


CHOOSE = Command(
    "threshold choose",
    "Choose a decision threshold on embeddings, and report its effect on each class.",
    _choose,
    _CHOOSE_ARGUMENTS,
    "pml-ext threshold choose val.npz --far 0.001 --checkpoint last.ckpt --output report/",
    notes=EMBEDDING_FILES,
)


_CHECK_ARGUMENTS: Arguments = [
    Argument("REPORT", "threshold.json of `pml-ext threshold choose`."),
    Argument("FILE", "New embeddings."),
    Argument("--labels NAME", "Array or column of identities [default: the file's labels]"),
    Argument("--frames NAME", "Array or column; samples of one frame are different people."),
    Argument("--tracks NAME", "Array or column; samples of one track are the same person."),
    Argument("--normalize COHORT", "cohort.npz next to the report, if there is one."),
    Argument("--checkpoint FILE", "Model file in use; must be the report's."),
]


@plain_warnings()
def _check(options: Namespace) -> int:
    from pml_ext.metrics import ThresholdReport
    from pml_ext.search.cohorts import load_cohort
    from pml_ext.search.readers import read_embeddings

    columns = {name: getattr(options, name) for name in ("labels", "frames", "tracks")}
    columns = {name: column for name, column in columns.items() if column is not None}
    data = read_embeddings(options.file, need_labels=False, also=tuple(columns.values()))
    known = {name: data.also[column] for name, column in columns.items()}
    if not known and data.has_labels:
        known["labels"] = data.labels
    if "labels" in known:
        data = replace(data, labels=known["labels"])
    try:
        report = ThresholdReport.load(options.report, checkpoint=options.checkpoint)
        cohort = None if options.normalize is None else load_cohort(options.normalize, options.checkpoint)
        if cohort is None and report.normalization is not None and report.normalization.cohort == "samples":
            raise UserError(
                f"{options.report} is of normalised scores: give --normalize the cohort.npz written beside it"
            )
        if "labels" in known and data.cameras is not None and report.is_across_cameras:
            known["cameras"] = data.cameras
        rows = _rows_without_junk(data)
        ids: dict[str, Any] = {name: values[rows] for name, values in known.items()}
        check = report.check(data.embeddings[rows], **ids, normalization=cohort, rows=rows.tolist())
    except ValueError as error:
        raise UserError(f"{options.file}: {error}") from error
    print(check.summary())
    return check.status


CHECK = Command(
    "threshold check",
    "Test a saved threshold on new data.",
    _check,
    _CHECK_ARGUMENTS,
    "pml-ext threshold check report/threshold.json today.npz --checkpoint last.ckpt",
    notes=f"Exit status: 0 holds, 1 does not hold, 3 the data cannot tell. {_SEE_FILES}",
)


@plain_warnings()
def _compare(options: Namespace) -> None:
    from pml_ext.metrics import SearchPlan
    from pml_ext.metrics.threshold.comparison import compare_models
    from pml_ext.reports.comparison import write_model_page

    sets = _read_models(options.files)
    first = next(iter(sets.values()))
    rows = _rows_without_junk(first)
    size = options.gallery_size
    if options.fpir is not None and size is None:
        size = _most_enrolled(first.labels[rows])
    try:
        comparison = compare_models(
            {name: data.embeddings[rows] for name, data in sets.items()},
            first.labels[rows],
            far=options.far,
            search=None if size is None else SearchPlan(size, options.fpir),
            cameras=_rows_of(first.cameras, rows),
        )
    except ValueError as error:
        raise UserError(str(error)) from error
    if options.output is None:
        last = _NOT_WRITTEN.format("the comparison as a page")
    else:
        page = Path(options.output) / "models.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        write_model_page(page, comparison)
        last = str(page)
    print(f"{comparison.summary()}\n\n{last}")


def _read_models(files: list[str]) -> dict[str, EmbeddingSet]:
    """The files by name, or by path if two have the same name; the first one's labels and cameras count."""
    import numpy as np

    from pml_ext.search.readers import read_embeddings

    if len(set(files)) < len(files) or len(files) < 2:
        raise UserError(f"threshold compare needs two or more different files; got {', '.join(files)}")
    sets = [read_embeddings(file) for file in files]
    for file, data in zip(files[1:], sets[1:], strict=True):
        for name in ("labels", "cameras", "paths"):
            one, other = getattr(sets[0], name), getattr(data, name)
            if one is not None and other is not None and not np.array_equal(one, other):
                raise UserError(f"{file} must hold the samples of {files[0]}, in the same order: their {name} differ")
    names = [Path(file).name for file in files]
    if len(set(names)) < len(names):
        names = files
    return dict(zip(names, sets, strict=True))


COMPARE_MODELS = Command(
    "threshold compare",
    "Compare the models of files of embeddings, each at its own threshold.",
    _compare,
    [
        Argument("FILE", "Embeddings of the same samples by two or more models.", dest="files", nargs="+"),
        OneOf(_FAR, _FPIR, required=True),
        _GALLERY_SIZE,
        Argument("--output FOLDER", "Folder for the page models.html."),
    ],
    "pml-ext threshold compare old.npz new.npz --far 0.001 --output report/",
    notes=_SEE_FILES,
)
