"""`pml-ext search`: similarity search in a gallery or a file of embeddings."""

from __future__ import annotations

import logging
import os
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pml_ext._shared.errors import UserError, after_results
from pml_ext._shared.names import closest_path
from pml_ext._shared.text import printable
from pml_ext.cli.arguments import (
    IMPORTS,
    KEY_AMONG_FILES,
    Argument,
    Command,
    image_folder,
    plain_warnings,
    require_image_folder,
)

if TYPE_CHECKING:
    import numpy as np

    from pml_ext.deploy.embedder import Embedder
    from pml_ext.deploy.gallery import Gallery
    from pml_ext.deploy.model_record import ModelRecord
    from pml_ext.deploy.neighbours import Neighbours
    from pml_ext.deploy.readers import EmbeddingSet
    from pml_ext.reports.hits_page import Hit
    from pml_ext.thresholds import ThresholdReport

    AnyGallery = Gallery | EmbeddingSet

log = logging.getLogger("pml_ext")

_CHECKED = 1000  # rows of a gallery that --images is compared with

_ARGUMENTS = [
    Argument("QUERY", "Image, folder of images, gallery or file of embeddings."),
    Argument("--gallery GALLERY", "Gallery of `pml-ext embed`, or file of embeddings.", required=True),
    Argument("-k N", "Number of hits for each query", type=int, default=10),
    Argument("--threshold FILE", "Threshold report of the model: accept or reject each hit [default: only rank]"),
    Argument("--images FOLDER", "Folder that the gallery's paths are relative to [default: the folder it is in]"),
    Argument("--output FILE", "HTML page to write, with the images [default: only print]"),
    IMPORTS,
]


@plain_warnings()
def _search(options: Namespace) -> None:
    from pml_ext._shared.checks import check_whole
    from pml_ext.deploy.model_record import describe_scores
    from pml_ext.deploy.neighbours import search
    from pml_ext.deploy.readers import open_embeddings
    from pml_ext.reports.hits_page import Answer, Hit, write_hits

    name = options.gallery
    check_whole(options.k, "k", 1)
    stored = open_embeddings(name)
    target, rows_of_file = _without_junk(stored, name)
    paths, _ = target.describe(range(min(target.rows, _CHECKED)))
    require_image_folder(options.images, paths, name)
    report = None if options.threshold is None else _load_threshold(options.threshold, name, target)
    queries = _embed_queries(options, target)
    facts = {"gallery": f"{name}, {target.rows:,} rows of {target.dim} dimensions"}
    neighbours = search(target, target.as_queries(queries.embeddings), options.k)
    neighbours = replace(neighbours, rows=rows_of_file[neighbours.rows])
    kind = "cosine"
    if target.cohort is not None:
        kind, facts["scores"] = "score", describe_scores(target.cohort)
    least = None
    if report is not None:
        least, facts["threshold"] = report.cosine, _describe_threshold(report, options.threshold, target, kind)
    names, images = _describe_hits(stored, neighbours, options)
    lines, answers = list[str](), list[Answer]()
    for place, query in enumerate(queries.names):
        hits = list[Hit]()
        for score, row in zip(neighbours.scores[place].tolist(), neighbours.rows[place].tolist(), strict=True):
            hits.append(Hit(row, score, names[row], images[row], None if least is None else score >= least))
        answers.append(Answer(query, queries.images[place], hits))
        lines += [printable(query), *(_line(number, hit) for number, hit in enumerate(hits, start=1))]
    lines += ["", *(f"{fact}: {printable(text)}" for fact, text in facts.items())]
    print("\n".join(lines))
    if options.output is not None:
        with after_results(options.output):
            write_hits(options.output, answers, facts, score_name=kind)
        print(f"open {options.output}")


def _without_junk(stored: AnyGallery, name: str) -> tuple[AnyGallery, np.ndarray]:
    """Returns a gallery, or a file without junk, which metrics and thresholds ignore as well, and its row numbers."""
    import numpy as np

    from pml_ext.deploy.gallery import Gallery

    if isinstance(stored, Gallery) or not stored.is_junk.any():
        return stored, np.arange(stored.rows)
    rows = np.flatnonzero(~stored.is_junk)
    if not len(rows):
        raise UserError(f"{name} has junk only, samples of label -1. Give a file with other labels")
    return stored.take(rows), rows


@dataclass(frozen=True)
class _Queries:
    """Names, unit vectors (Q, D) and images of the queries."""

    names: list[str]
    embeddings: np.ndarray
    images: list[Path | None]


def _embed_queries(options: Namespace, target: AnyGallery) -> _Queries:
    from pml_ext.deploy.images import embed_images, join_batches, list_images
    from pml_ext.deploy.readers import is_readable

    query, overrides = options.query, options.overrides
    path = Path(query).expanduser()
    if is_readable(path):
        if overrides:
            raise UserError(f"{' '.join(overrides)}: only an image needs the model; {query} holds embeddings")
        return _read_queries(query, target, options.gallery)
    if not path.exists():
        raise UserError(f"no image, folder, gallery or file of embeddings at {query}{closest_path(path)}")
    embedder = _load_embedder(target.record, options.gallery, overrides)
    listed = list_images([query], Path.cwd())
    images, embeddings, _, problems = join_batches(list(embed_images(embedder, listed)))
    if not images:
        raise UserError(problems[0])
    if problems:
        log.warning("%d of %d query images cannot be used and are skipped: %s", len(problems), len(listed), problems[0])
    names = [image.name for image in images] if path.is_dir() else [query]
    return _Queries(names, embeddings, [image.path for image in images])


def _read_queries(query: str, target: AnyGallery, gallery: str) -> _Queries:
    import numpy as np

    from pml_ext.deploy.model_record import require_one_model
    from pml_ext.deploy.readers import read_embeddings

    data = read_embeddings(query, need_labels=False)
    if data.dim != target.dim:
        raise UserError(f"{query} must have {target.dim} dimensions, as {gallery}; got {data.dim}")
    require_one_model(query, data.record, gallery, target.record)
    paths = [""] * data.rows if data.paths is None else data.paths.tolist()
    names = [path or f"row {row}" for row, path in enumerate(paths)]
    embeddings = np.concatenate([vectors for _, vectors in data.vectors()])
    return _Queries(names, embeddings, [None] * data.rows)


def _load_embedder(record: ModelRecord | None, gallery: str, overrides: Sequence[str]) -> Embedder:
    """Load a record's model; overrides: MODEL.WEIGHTS if its file has moved, MODEL.DEVICE."""
    from pml_ext.deploy.embedder import Embedder
    from pml_ext.runner.config.network_keys import config_of

    if record is None or record.is_of_a_module:
        made_by = f"the module {record.weights}" if record else "an unknown model"
        raise UserError(
            f"{gallery} has no model that could embed an image, it was made by {made_by}: give a file of embeddings as "
            "QUERY (numpy.savez('query.npz', embeddings=…)), or make the gallery with pml-ext embed"
        )
    if len(overrides) % 2:
        raise UserError(f"{overrides[-1]} needs a value")
    settings = dict(zip(overrides[::2], overrides[1::2], strict=True))
    if unknown := settings.keys() - {"MODEL.WEIGHTS", "MODEL.DEVICE"}:
        others = ", ".join(sorted(unknown))
        raise UserError(f"{others}: search takes MODEL.WEIGHTS and MODEL.DEVICE; the gallery has the rest")
    path = Path(settings.get("MODEL.WEIGHTS") or record.onnx or record.weights).expanduser()
    if not path.is_file():
        raise UserError(f"the gallery is of the model {path}, which does not exist: add MODEL.WEIGHTS and its new path")
    device = settings.get("MODEL.DEVICE", "auto")
    if path.suffix == ".onnx":
        embedder = Embedder.from_onnx(path, device=device)
    else:
        cfg = config_of(record.config)
        cfg.MODEL.WEIGHTS = str(path)
        embedder = Embedder.of(cfg, device=device, half=False, batch_size=32)
    if not embedder.record.same_model(record):
        ours, theirs = embedder.record.sha256, record.sha256
        reason = f"its weights have SHA-256 {ours[:12]}…, the gallery's {theirs[:12]}…"
        if ours == theirs:
            reason = "its weights are the gallery's, but it was exported with another config"
        raise UserError(f"{path} is not the model of the gallery: {reason}")
    return embedder


def _load_threshold(path: str, gallery: str, target: AnyGallery) -> ThresholdReport:
    """Load a threshold report; UserError unless it applies to the gallery's scores."""
    from pml_ext.deploy.model_record import describe_scores, load_report_of, require_dimensions
    from pml_ext.thresholds.samples import is_same_cohort

    report = load_report_of(path, target.record)
    if target.record is None:
        log.warning("%s does not record its model. Make sure that it is the model of %s", gallery, path)
        require_dimensions(path, report.embedding_dim, gallery, target.dim)
    wanted, cohort = report.normalization, target.cohort
    if not is_same_cohort(cohort, wanted):
        raise UserError(
            f"{path} is of scores that are {describe_scores(wanted)}, those of {gallery} are "
            f"{describe_scores(cohort)}: embed into another gallery with --cohort and the cohort.npz next to the "
            "report, or make the report with the gallery's cohort"
        )
    return report


def _describe_threshold(report: ThresholdReport, path: str, target: AnyGallery, kind: str) -> str:
    """Returns a line; UserError for a larger gallery than a threshold for searches serves."""
    if report.target.kind == "fpir":
        return _describe_search_threshold(report, path, target, kind)
    chosen = str(report.target.kind)
    if report.target.value is not None:
        chosen = f"{chosen.upper()} {report.target.value:g}"
    if report.data:
        chosen += f" on {report.data}"
    rates = f"FAR {report.far.rate:.3g}, FRR {report.frr.rate:.3g} for single pairs"
    searches = (
        "A search compares a query with every identity, so it accepts an unknown one more often: choose a threshold "
        "for searches with pml-ext threshold choose --fpir RATE"
    )
    return f"{kind} {report.cosine:.4f}, chosen for {chosen}: {rates}. {searches}"


def _describe_search_threshold(report: ThresholdReport, path: str, target: AnyGallery, kind: str) -> str:
    identities, enrolled = target.identities(), "identities"
    if identities is None:
        identities, enrolled = target.rows, "rows, each taken for an identity"
    searches = report.searches
    assert searches is not None  # not None: its target is of searches
    if searches.template == "mean":
        raise UserError(
            f"{path} is for searches that compare with the mean of an identity's samples; this one compares with every "
            "sample. Choose the threshold without --template mean"
        )
    try:
        rates = report.for_gallery(identities)
    except ValueError as error:
        raise UserError(f"{path}: {error}") from error
    chosen = f"chosen for FPIR {report.target.value:g} in galleries of {searches.gallery_size:,}"
    how = "extrapolated to" if rates.is_extrapolated else "measured in"
    fnir = "unknown" if rates.fnir is None else f"{rates.fnir.rate:.3g}"
    measured = f"{how} galleries of {rates.enrolled:,}: FPIR {rates.fpir.rate:.3g}, FNIR {fnir}"
    text = f"{kind} {report.cosine:.4f}, {chosen} (this one has {identities:,} {enrolled}); {measured}"
    images = round(target.rows / identities)
    if searches.images in (None, images):
        return text
    return f"{text}. FNIR depends on the images per identity: {searches.images} in the report, {images} in this gallery"


def _describe_hits(
    target: AnyGallery, neighbours: Neighbours, options: Namespace
) -> tuple[dict[int, str], dict[int, Path | None]]:
    """Returns path and label of each hit's row, and its image if a page is written; warns of missing images."""
    import numpy as np

    from pml_ext.deploy.gallery import Gallery
    from pml_ext.deploy.readers import images_inside

    rows = np.unique(neighbours.rows).tolist()
    paths, labels = target.describe(rows)
    images: list[Path | None] = [None] * len(rows)
    if options.output is not None and any(paths):
        folder = image_folder(options, options.gallery)
        images = images_inside(paths, folder)
        if not any(image is not None and os.path.exists(image) for image in images):
            log.warning("the page shows no images, as %s has none of the %d hits. Give --images the folder that the "
                        "gallery's paths are relative to", folder, len(rows))  # fmt: skip
    names = {row: path or f"row {row}" for row, path in zip(rows, paths, strict=True)}
    if isinstance(target, Gallery):
        _warn_of_lost_images([target.base / path for path in paths])
    if labels is not None:
        names = {row: f"{names[row]}  [{label}]" for row, label in zip(rows, labels, strict=True)}
    return names, dict(zip(rows, images, strict=True))


def _warn_of_lost_images(paths: Sequence[Path]) -> None:
    """Log hits whose images were deleted or renamed since they were embedded."""
    lost = [path for path in paths if _is_lost(path)]
    has_moved = len(lost) == len(paths) and not any(path.parent.exists() for path in lost)  # without its images
    if lost and not has_moved:
        log.warning(
            "%d of %d images found no longer exist (deleted or renamed), such as %s: remove their rows with "
            "pml-ext embed --prune",
            len(lost), len(paths), lost[0],
        )  # fmt: skip


def _is_lost(path: Path) -> bool:
    """Returns whether an image no longer exists; False for one in another user's folder, which may exist."""
    try:
        return not path.exists()
    except PermissionError:
        return False


def _line(number: int, hit: Hit) -> str:
    decision = {None: "", True: "  accept", False: "  reject"}[hit.accepted]
    return f"{number:4d}  {hit.score:7.4f}{decision}  {printable(hit.path)}"


SEARCH = Command(
    "search",
    "Find the images in a gallery that are most similar to a query.",
    _search,
    _ARGUMENTS,
    "pml-ext search query.jpg --gallery gallery --output hits.html",
    notes="The gallery names its model; add MODEL.WEIGHTS PATH if its file has moved.\n",
    key=KEY_AMONG_FILES,
)
