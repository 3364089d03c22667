"""`pml-ext metrics`: metrics and report of precomputed embeddings."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pml_ext._errors import UserError, import_library
from pml_ext._identities import JUNK, require_matches
from pml_ext.cli.arguments import (
    COHORT,
    EMBEDDING_FILES,
    IMAGE_FOLDER,
    Argument,
    Arguments,
    Command,
    OneOf,
    plain_warnings,
)

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from pml_ext.metrics import CohortNormalization
    from pml_ext.runner.data.datasets.image_set import ImageSet
    from pml_ext.search.readers import EmbeddingSet

_FAR = 1e-3  # TEST.THRESHOLD.FAR's default
_BLOCK = 16_384  # distractors that are compared at once


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
        "[default: not compared]",
    ),
    Argument("--report", "Write an HTML report, too."),
    IMAGE_FOLDER,
    Argument("--output FOLDER", "Folder of metrics.json and report.html", default="."),
]


@plain_warnings()
def _print_metrics(options: Namespace) -> None:
    import torch

    from pml_ext._files import sha256_of
    from pml_ext.cli.cohort_option import FILE, take_cohort
    from pml_ext.metrics.opis_settings import OPISSettings
    from pml_ext.metrics.threshold.samples import describe_cohort
    from pml_ext.runner.evaluation.collapse import describe_collapse
    from pml_ext.runner.evaluation.results import results_table, write_metrics
    from pml_ext.search.readers import read_embeddings

    about: dict[str, Any] = {
        "embeddings": options.file,
        "gallery": options.gallery,
        "distractors": options.distractors,
        "opis": asdict(OPISSettings()),
    }
    if options.checkpoint is not None:
        about["checkpoint"] = {"file": Path(options.checkpoint).name, "sha256": sha256_of(options.checkpoint)}
    files = [options.file] if options.gallery is None else [options.file, options.gallery]
    sets = [read_embeddings(name) for name in files]
    cohort, notes = None, list[str]()
    if options.cohort is not None:
        cohort, rows, notes = take_cohort(options.cohort, sets, options.checkpoint)
        sets = [data.take(measured) for data, measured in zip(sets, rows, strict=True)]
        about["normalize"] = asdict(describe_cohort(cohort))
    parts = _number_parts(files, sets)
    if options.distractors is not None:
        values = _measure_among_distractors(parts[0], parts[-1], options.distractors)
    else:
        values = _measure_all(parts, cohort)
    name = Path(options.file).name
    embeddings = torch.cat([part.data.embeddings for part in parts])
    collapse = describe_collapse(name, embeddings, torch.cat([part.labels for part in parts]))
    notes += [collapse] if collapse else []
    folder = Path(options.output)
    folder.mkdir(parents=True, exist_ok=True)
    written = {"metrics": folder / "metrics.json"}
    if cohort is not None:
        written["cohort"] = folder / FILE
        cohort.save(written["cohort"], checkpoint=options.checkpoint)
    if options.report:
        written["report"] = _write_report(folder, name, parts, values, notes, options.images)
    write_metrics(written["metrics"], {name: values}, **about, notes=notes)
    print(results_table({name: values}, written, notes=notes))


@dataclass(frozen=True)
class _NumberedSet:
    """A file, with labels and cameras as numbers that both files share; JUNK is ignored.

    identity_names: original label of each number.
    """

    file: str
    data: EmbeddingSet
    labels: Tensor
    cameras: Tensor
    identity_names: dict[int, str]

    def without_junk(self) -> tuple[Tensor, Tensor, Tensor]:
        """Returns embeddings, labels and cameras."""
        rows = self.labels != JUNK
        return self.data.embeddings.float()[rows], self.labels[rows], self.cameras[rows]


def _number_parts(files: Sequence[str], sets: Sequence[EmbeddingSet]) -> list[_NumberedSet]:
    """Number the labels and cameras of the queries and the gallery, if any; without cameras no two samples share one.

    UserError: the files are inconsistent.
    """
    import numpy as np
    import torch

    dims = [part.dim for part in sets]
    if dims[-1] != dims[0]:
        raise UserError(f"{files[-1]} must have {dims[0]} dimensions, as {files[0]}; got {dims[-1]}")
    labels, names = _number("labels", [part.labels for part in sets])
    for ids, part in zip(labels, sets, strict=True):
        ids[torch.from_numpy(part.is_junk)] = JUNK
    known_cameras = [part.cameras for part in sets if part.cameras is not None]
    if known_cameras and len(known_cameras) < len(sets):
        owner = "gallery has" if sets[0].cameras is None else "queries have"
        raise UserError(f"cameras must be in both files or in none; only the {owner} them")
    if not known_cameras:  # so that the camera rule removes nothing
        counts = np.cumsum([len(ids) for ids in labels])
        known_cameras = np.split(np.arange(counts[-1]), counts[:-1])
    cameras, _ = _number("cameras", known_cameras)
    identity_names = {number: str(name) for number, name in enumerate(names.tolist())}
    return [_NumberedSet(*part, identity_names) for part in zip(files, sets, labels, cameras, strict=True)]


def _number(what: str, arrays: Sequence[np.ndarray]) -> tuple[list[Tensor], np.ndarray]:
    """Number the integers or strings of all arrays 0, 1, … consistently; returns the numbers and the values."""
    import numpy as np
    import torch

    if len({values.dtype.kind for values in arrays}) > 1:
        kinds = " and ".join(str(values.dtype) for values in arrays)
        raise UserError(f"{what} must be of the same kind in both files; got {kinds}")
    names, ids = np.unique(np.concatenate(arrays), return_inverse=True)
    numbers = torch.from_numpy(ids.astype(np.int64))
    return list(torch.split(numbers, [len(values) for values in arrays])), names


def _measure_all(parts: Sequence[_NumberedSet], cohort: CohortNormalization | None) -> dict[str, float]:
    """Compute the standard metrics of queries against a gallery or each other, with a cohort also of normalised scores.

    Gallery items with the query's label and camera are ignored, as is junk.
    """
    import numpy as np
    import torch

    from pml_ext.metrics import CohortNormalization, keys
    from pml_ext.metrics.headings import STANDARD_METRICS, STANDARD_RANKS, named_metrics

    import_library("faiss", needed_for="the clustering behind NMI", install="faiss-cpu")
    query, *gallery = [(part.labels.numpy(), part.cameras.numpy()) for part in parts]
    require_matches(parts[0].file, query, gallery[0] if gallery else None)
    names = named_metrics(STANDARD_METRICS, STANDARD_RANKS)
    values = _measure(parts, names)
    if cohort is not None:
        labels = np.concatenate([part.data.labels.astype(str) for part in parts])
        try:
            cohort.require_others(torch.cat([part.data.embeddings for part in parts]), labels)
        except ValueError as error:
            raise UserError(f"{parts[0].file}: {error}") from error
        cohort = CohortNormalization.fit(cohort.cohort, cohort.k, cohort.strength)  # the parts' labels are renumbered
        names = [name for name in names if keys.follows_scores(name)]
        for name, value in _measure(parts, names, normalize=cohort).items():
            values[keys.normalized(name)] = value
    return values


def _measure(parts: Sequence[_NumberedSet], names: list[str], **options: Any) -> dict[str, float]:
    import torch

    from pml_ext._ops.custom_gradient import to_sphere
    from pml_ext.metrics import AccuracyCalculator
    from pml_ext.metrics.headings import STANDARD_RANKS
    from pml_ext.metrics.opis_settings import OPISSettings

    settings = asdict(OPISSettings()) | options
    calculator = AccuracyCalculator(include=names, ranks=STANDARD_RANKS, device=torch.device("cpu"), **settings)
    units = [to_sphere(part.data.embeddings.double()) for part in parts]
    reference: dict[str, Any] = {}
    if len(parts) == 2:
        gallery = parts[1]
        reference = {"reference": units[1], "reference_labels": gallery.labels, "reference_cameras": gallery.cameras}
    try:
        values = calculator.get_accuracy(units[0], parts[0].labels, query_cameras=parts[0].cameras, **reference)
    except ValueError as error:
        raise UserError(f"{parts[0].file}: {error}") from error
    return {name: float(values[name]) for name in names}


def _measure_among_distractors(query: _NumberedSet, gallery: _NumberedSet, distractors: str) -> dict[str, float]:
    """Compute TAR at FAR over all pairs of a query and a gallery row, TPIR at FPIR, and ranks of identities.

    Gallery rows with the query's identity and camera are ignored, as are junk and the query itself.

    UserError: the files are inconsistent; see also `_distractor_blocks`.
    """
    from pml_ext.metrics import IdentificationEvaluator, StreamingVerification

    probes, probe_ids, probe_cameras = query.without_junk()
    pairs = StreamingVerification()
    blocks = chain([gallery.without_junk()], _distractor_blocks(distractors, query))
    try:
        values = IdentificationEvaluator().of_blocks(
            probes, probe_ids, blocks, cameras=probe_cameras, verification=pairs
        )
    except UserError:
        raise
    except ValueError as error:
        raise UserError(f"{query.file}: {error}") from error
    return pairs.compute() | values


def _distractor_blocks(path: str, query: _NumberedSet) -> Iterator[tuple[Tensor, Tensor]]:
    """Returns embeddings and identities of distractors, without junk; without labels no two rows share an identity.

    UserError: different dimensions, or an identity of the queries or their gallery.
    """
    import numpy as np
    import torch

    from pml_ext.search.readers import read_embeddings

    data = read_embeddings(path, need_labels=False)
    if data.dim != query.data.dim:
        raise UserError(f"{path} must have {query.data.dim} dimensions, as {query.file}; got {data.dim}")
    data = data.take((~data.is_junk).nonzero()[0])
    numbers = np.arange(data.rows)
    if data.has_labels:
        names, numbers = np.unique(data.labels.astype(str), return_inverse=True)
        if common := {*query.identity_names.values()}.intersection(names.tolist()):
            raise UserError(f"{path} must have other identities than {query.file} and its gallery; got {min(common)}")
    ids = torch.from_numpy(numbers) + len(query.identity_names)
    return zip(data.embeddings.float().split(_BLOCK), ids.split(_BLOCK), strict=True)


def _write_report(
    folder: Path,
    name: str,
    parts: Sequence[_NumberedSet],
    values: dict[str, float],
    notes: list[str],
    images: str | None,
) -> Path:
    """Write report.html and its figures; returns its path."""
    import torch

    from pml_ext._ops.normalize import unit_rows
    from pml_ext._version import __version__
    from pml_ext.metrics.opis_settings import OPISSettings
    from pml_ext.runner.data.datasets.image_set import OpenSet
    from pml_ext.runner.evaluation.run_metrics import Measured
    from pml_ext.runner.report.run_page import write_report

    if images is not None and all(part.data.paths is None for part in parts):
        raise UserError(f"--images needs the images' paths; {parts[0].file} has none")
    image_sets = [_image_set(part, images) for part in parts]
    test_sets = {name: OpenSet(image_sets[0].subset([]), *image_sets)}
    features = {name: [unit_rows(part.without_junk()[0]) for part in parts]}
    facts = {
        "embeddings": parts[0].file,
        "searched": parts[1].file if len(parts) > 1 else "each other",
        "dimensions": str(parts[0].data.dim),
        "made by": f"pml_ext {__version__}, torch {torch.__version__}",
    }
    measured = Measured({name: values}, features)
    return write_report(
        folder, test_sets, measured, {}, far=_FAR, opis=OPISSettings(), seed=0, notes=notes, facts=facts
    )


def _image_set(part: _NumberedSet, images: str | None) -> ImageSet:
    from pml_ext.runner.data.datasets.image_files import read_image
    from pml_ext.runner.data.datasets.image_set import ImageSet, LazyImages
    from pml_ext.search.readers import images_inside

    rows = (part.labels != JUNK).nonzero().flatten().numpy()
    names = [f"row {row}" for row in rows]
    paths: list[Path | None] = [None] * len(rows)
    if part.data.paths is not None:
        names = part.data.paths[rows].tolist()
        paths = images_inside(names, images or Path(part.file).parent)

    def read(path: Path | None) -> Tensor:
        if path is None:
            raise UserError(f"{part.file} has no paths of images in its folder or in --images")
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
