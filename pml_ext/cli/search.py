"""`pml-ext search`: the images of a gallery that are closest to one image, or to each of several."""

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pml_ext._errors import UserError
from pml_ext._text import printable
from pml_ext.metrics import GalleryCohort, ThresholdReport
from pml_ext.reports.hits_page import Answer, Hit, write_hits
from pml_ext.runner.config.network_keys import config_of
from pml_ext.search.embedder import Embedder
from pml_ext.search.gallery import Gallery, is_same_cohort, search_sides
from pml_ext.search.images import embed_images, join_batches, list_images
from pml_ext.search.index import Neighbours, search_all
from pml_ext.search.index import search as search_target
from pml_ext.search.model_record import ModelRecord, load_report_of
from pml_ext.search.readers import READERS, EmbeddingSet, images_inside, is_readable, open_embeddings, read_embeddings

log = logging.getLogger("pml_ext")

Target = Gallery | EmbeddingSet
_MOST_IN_COHORT = 100_000  # rows of a gallery that is its own cohort: each is compared with each


def search(
    query: str, index: str, *, k: int, threshold: str | None, page: str | None, images: str | None,
    overrides: Sequence[str],
) -> str:  # fmt: skip
    """Search for an image, a folder of images, or the rows of a file; returns a line for each hit, below each query.

    Args:
        index: a gallery, or a file of embeddings.
        threshold: a threshold report of the model; one with the gallery as cohort normalises scores by the gallery.
        page: an HTML page to write.
        images: the folder that the paths of the index are relative to, None for the folder that the index is in.
        overrides: MODEL.WEIGHTS if the model's file has moved, MODEL.DEVICE.
    """
    if k < 1:
        raise UserError(f"-k must be 1 or more; got {k}")
    target = open_embeddings(index)
    report = None if threshold is None else load_report_of(threshold, target.record)
    own_cohort = None if report is None else _check_scores(report, str(threshold), target, index)
    names, embeddings, query_images = _query_embeddings(query, target, index, overrides)
    facts = {"index": f"{index}, {target.rows:,} rows of {target.dim} dimensions"}
    kind = "score"
    if own_cohort is not None:
        found = _search_normalised_by_itself(target, own_cohort, embeddings, k)
        facts["scores"] = f"normalised by the index itself (k = {own_cohort.k}, strength = {own_cohort.strength:g})"
    else:
        found = search_target(target, target.as_queries(embeddings), k)
        if target.cohort is None:
            kind = "cosine"
        else:
            facts["scores"] = f"normalised by {_cohort_text(target.cohort)}"
    facts["searched"] = found.how
    least = None
    if report is not None:
        least, facts["threshold"] = _least_score(report, str(threshold), target, kind)
    rows = np.unique(found.rows[found.rows >= 0]).tolist()
    hit_names, files = _names_and_files(
        target, rows, None if page is None else images or Path(os.path.abspath(index)).parent
    )
    answers, lines = list[Answer](), list[str]()
    for name, image, scores, hit_rows in zip(names, query_images, found.scores, found.rows, strict=True):
        hits = [
            Hit(row, score, hit_names[row], files[row], None if least is None else score >= least)
            for score, row in zip(scores.tolist(), hit_rows.tolist(), strict=True)
            if row >= 0
        ]
        answers.append(Answer(name, image, hits))
        lines += _lines(answers[-1])
    if page is not None:
        write_hits(page, answers, facts, score=kind)
    lines += ["", *(f"{name}: {printable(text)}" for name, text in facts.items()), *([page] if page else [])]
    return "\n".join(lines)


def _names_and_files(
    target: Target, rows: list[int], folder: str | Path | None
) -> tuple[dict[int, str], dict[int, Path | None]]:
    """The path and label of each row, and the image to show if it is in the folder."""
    paths, labels = target.describe(rows)
    names = {row: path or f"row {row}" for row, path in zip(rows, paths, strict=True)}
    files: dict[int, Path | None] = dict.fromkeys(rows)
    if labels is not None:
        names = {row: f"{names[row]}  [{label}]" for row, label in zip(rows, labels, strict=True)}
    if folder is not None and any(paths):
        files = dict(zip(rows, images_inside(paths, folder), strict=True))
    return names, files


def _lines(answer: Answer) -> list[str]:
    decisions = {None: "", True: "  accept", False: "  reject"}
    lines = [printable(answer.query)]
    for place, hit in enumerate(answer.hits, start=1):
        lines.append(f"{place:4d}  {hit.cosine:7.4f}{decisions[hit.accepted]}  {printable(hit.path)}")
    return lines


def _query_embeddings(
    query: str, target: Target, index: str, overrides: Sequence[str]
) -> tuple[list[str], np.ndarray, list[Path | None]]:
    """Names, unit vectors (Q, D), and images of the queries."""
    path = Path(query).expanduser()
    if is_readable(path):
        if overrides:
            raise UserError(f"{' '.join(overrides)}: only an image needs the model; {query} holds embeddings")
        return _query_rows(query, target, index)
    if not path.exists():
        raise UserError(f"no image, folder, gallery or file of embeddings at {query}")
    if target.record is None:
        raise UserError(
            f"{index} does not say which model made it, so an image cannot be embedded: give a file of embeddings "
            f"({', '.join(READERS)}) as QUERY, or make the index with pml-ext embed"
        )
    listed = list_images([query], Path.cwd())
    images, embeddings, _, problems = join_batches(list(embed_images(_load_embedder(target.record, overrides), listed)))
    if not images:
        raise UserError(problems[0])
    if problems:
        log.warning("%d of %d query images cannot be used and are skipped: %s", len(problems), len(listed), problems[0])
    names = [image.name for image in images] if path.is_dir() else [query]
    return names, embeddings, [image.path for image in images]


def _query_rows(query: str, target: Target, index: str) -> tuple[list[str], np.ndarray, list[Path | None]]:
    given = read_embeddings(query, need_labels=False)
    if given.dim != target.dim:
        raise UserError(f"{query} must have {target.dim} dimensions, as {index}; got {given.dim}")
    if given.record and target.record and not given.record.same_model(target.record):
        models = f"{given.record.weights} and {target.record.weights}"
        raise UserError(f"{query} and {index} are of models that cannot be compared: {models}")
    names = [f"row {row}" for row in range(given.rows)] if given.paths is None else given.paths.tolist()
    return names, np.concatenate([vectors for _, vectors in given.vectors()]), [None] * given.rows


def _load_embedder(record: ModelRecord, overrides: Sequence[str]) -> Embedder:
    """The model that a record names; `overrides` as in `search`."""
    if len(overrides) % 2:
        raise UserError(f"{overrides[-1]} needs a value")
    given = dict(zip(overrides[::2], overrides[1::2], strict=True))
    if unknown := given.keys() - {"MODEL.WEIGHTS", "MODEL.DEVICE"}:
        others = ", ".join(sorted(unknown))
        raise UserError(f"{others}: search takes MODEL.WEIGHTS and MODEL.DEVICE; the index says the rest")
    path = Path(given.get("MODEL.WEIGHTS") or record.onnx or record.weights).expanduser()
    if not path.is_file():
        advice = "say where it is now with MODEL.WEIGHTS PATH"
        raise UserError(f"the index is of the model {path}, which does not exist: {advice}")
    device = given.get("MODEL.DEVICE", "auto")
    if path.suffix == ".onnx":
        embedder = Embedder.from_onnx(path, device=device)
    else:
        cfg = config_of(record.config)
        cfg.MODEL.WEIGHTS = str(path)
        embedder = Embedder.of(cfg, device=device, half=False, batch_size=32)
    if not embedder.record.same_model(record):
        hashes = f"{embedder.record.sha256[:12]}…, the index's {record.sha256[:12]}…"
        raise UserError(f"{path} is not the model of the index: its weights have SHA-256 {hashes}")
    return embedder


def _check_scores(report: ThresholdReport, path: str, target: Target, index: str) -> GalleryCohort | None:
    """The cohort if it is the gallery itself; UserError unless the threshold is of the scores that the index has."""
    if target.record is None:
        log.warning("%s does not say which model made it: make sure that it is the one of %s", index, path)
        if report.embedding_dim != target.dim:
            raise UserError(
                f"{path} is about embeddings of {report.embedding_dim} dimensions; {index} has {target.dim}"
            )
    wanted, cohort = report.normalization, target.cohort
    if wanted is not None and wanted.cohort == "gallery" and cohort is None:
        if not wanted.k < target.rows <= _MOST_IN_COHORT:
            raise UserError(
                f"{path} has the gallery as cohort, which must have from {wanted.k + 1} to {_MOST_IN_COHORT:,} rows; "
                f"{index} has {target.rows:,}: embed with --normalize and a cohort, and make the report with it"
            )
        return GalleryCohort(wanted.k, wanted.strength)
    if not is_same_cohort(cohort, wanted):
        of_report = "plain cosines" if wanted is None else f"normalised by {_cohort_text(wanted)}"
        of_index = "plain cosines" if cohort is None else f"normalised by {_cohort_text(cohort)}"
        raise UserError(
            f"{path} is of scores that are {of_report}, those of {index} are {of_index}: embed into another gallery "
            "with --normalize and the cohort.npz beside the report, or make the report with the index's cohort"
        )
    return None


def _cohort_text(cohort: Any) -> str:
    """cohort: k, strength and sha256 of a normalisation."""
    sha256 = "the gallery" if cohort.sha256 is None else f"SHA-256 {cohort.sha256[:12]}…"
    return f"a cohort (k = {cohort.k}, strength = {cohort.strength:g}, {sha256})"


def _search_normalised_by_itself(target: Target, cohort: GalleryCohort, embeddings: np.ndarray, k: int) -> Neighbours:
    """Compare all rows by scores that the rows themselves normalise; each leaves itself out."""
    rows = np.concatenate([vectors for _, vectors in target.vectors()])
    fitted = cohort.fit(torch.from_numpy(rows))
    offsets = fitted.offsets(fitted.cohort, rows=torch.arange(len(rows))).numpy()
    query_offsets = fitted.offsets(torch.from_numpy(embeddings)).numpy()
    searched = search_sides(rows, offsets, fitted.strength)[1]
    queries = search_sides(embeddings, query_offsets, fitted.strength)[0]
    scores, found = search_all([(0, searched)], queries, min(k, len(rows)))
    return Neighbours(scores, found, f"all {len(rows):,} rows compared")


def _least_score(report: ThresholdReport, path: str, target: Target, kind: str) -> tuple[float | None, str]:
    """The least score of an accepted hit, and a line that describes it."""
    if report.target.kind == "fpir":
        labels = target.identities()
        identities = target.rows if labels is None else labels
        try:
            size = report.for_gallery(identities)
        except ValueError as error:
            raise UserError(f"{path}: {error}") from error
        enrolled = "rows, each taken for an identity" if labels is None else "identities"
        of_size = f"for galleries of up to {size.enrolled:,} (the index has {identities:,} {enrolled})"
        fnir = "unknown" if size.cosine_fnir is None else f"{size.cosine_fnir:.3g}"
        return size.cosine, f"cosine {size.cosine:.4f}, {of_size}: FPIR {report.target.value:g}, FNIR {fnir}"
    chosen = str(report.target.kind)
    if report.target.value is not None:
        chosen += f" {report.target.value:g}"
    if report.data:
        chosen += f" on {report.data}"
    rates = f"FAR {report.far.rate:.3g}, FRR {report.frr.rate:.3g}"
    pairs = "of single comparisons; of searches among many more are wrong (pml-ext threshold --fpir)"
    return report.cosine, f"{kind} {report.cosine:.4f}, chosen for {chosen}: {rates} {pairs}"
