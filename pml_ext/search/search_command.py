"""`pml-ext search`: the pictures of an index that are closest to one picture, or to each of several embeddings."""

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from pml_ext._errors import UserError
from pml_ext._text import printable
from pml_ext.metrics import CohortNormalization, GalleryCohort
from pml_ext.reports.hits_page import Answer, Hit, write_hits
from pml_ext.runner.config.network_keys import config_of
from pml_ext.search.embedder import Embedder
from pml_ext.search.embedding_file import EmbeddingFile
from pml_ext.search.embedding_loop import Embedded, Pictures
from pml_ext.search.embedding_set import pictures_inside
from pml_ext.search.exact_or_indexed import EXACT_UP_TO, open_nearest, search_gallery_as_cohort
from pml_ext.search.file_formats import READERS
from pml_ext.search.image_list import list_images
from pml_ext.search.model_record import ModelRecord, report_for
from pml_ext.search.nearest import Reranked
from pml_ext.search.normalized_scores import (
    gallery_cohort_of,
    load_cohort_of,
    offsets_of,
    require_same_scores,
    search_vectors,
    use_of,
)

log = logging.getLogger("pml_ext")


def search(
    query: str, index: str, *, k: int, threshold: str | None, normalize: str | None, page: str | None,
    images: str | None, overrides: Sequence[str],
) -> str:  # fmt: skip
    """Search for an image, a folder of images, or the rows of a file; returns a line for each hit, below each query.

    threshold: a threshold report of the model; one with the gallery as cohort makes the index's rows the cohort;
    normalize: where the cohort of an index of normalised scores is, None where it was; page: an HTML page to write;
    images: the folder that the index's paths are relative to, None for its own; overrides: MODEL.WEIGHTS if the model's
    file has moved, MODEL.DEVICE.
    """
    if k < 1:
        raise UserError(f"-k must be 1 or more; got {k}")
    file = EmbeddingFile.open(index)
    cosine, chosen, own_cohort = _threshold(file, threshold)
    use = file.record.normalization if file.record else None
    if normalize is not None and use is None:
        raise UserError(f"{file.path} has plain cosines: leave out --normalize, or embed it with --normalize")
    if own_cohort is not None:
        cohort, nearest = search_gallery_as_cohort(file, own_cohort)
        scored = f"normalised by the index itself (k = {cohort.k}, strength = {cohort.strength:g})"
    else:
        cohort, nearest = None, open_nearest(file)
        scored = f"normalised by {use}" if use else ""
    names, vectors, shown = _queries(query, file, overrides, normalize, cohort)
    cosines, rows = nearest.search(vectors, k)
    found = np.unique(rows[rows >= 0]).tolist()
    paths = dict(zip(found, file.paths(found) or [""] * len(found), strict=True))
    pictures: dict[int, Path | None] = {}
    if page is not None and any(paths.values()):
        inside, warning = pictures_inside(paths.values(), Path(index).parent if images is None else images)
        pictures = dict(zip(paths, inside, strict=True))
        if warning is not None:
            log.warning("%s", warning)
    answers, lines = list[Answer](), list[str]()
    for name, picture, scores, places in zip(names, shown, cosines.tolist(), rows.tolist(), strict=True):
        hits = [
            Hit(row, score, paths[row], pictures.get(row), None if cosine is None else score >= cosine)
            for score, row in zip(scores, places, strict=True)
            if row >= 0
        ]
        answers.append(Answer(name, picture, hits))
        lines.append(printable(name))
        for place, hit in enumerate(hits, start=1):
            decision = {None: "", True: "  accept", False: "  reject"}[hit.accepted]
            lines.append(f"{place:4d}  {hit.cosine:7.4f}{decision}  {printable(hit.path) or f'row {hit.row}'}")
    if isinstance(nearest, Reranked):
        share = f"{nearest.recall:.1%} of the true ten neighbours"
        compared = f"{nearest.probes} of {nearest.lists} lists, which hold {share}"
    else:
        compared = "all rows compared"
    facts = {"index": f"{index}, {file.rows:,} rows of {file.dim} dimensions", "searched": compared}
    facts |= {name: text for name, text in (("scores", scored), ("threshold", chosen)) if text}
    if page is not None:
        write_hits(page, answers, facts, score="score" if scored else "cosine")
    lines += ["", *(f"{name}: {printable(text)}" for name, text in facts.items()), *([page] if page else [])]
    return "\n".join(lines)


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


def _queries(
    query: str, file: EmbeddingFile, overrides: Sequence[str], normalize: str | None, cohort: CohortNormalization | None
) -> tuple[list[str], np.ndarray, list[Path | None]]:
    """Names, vectors (Q, D) or of normalised scores (Q, D + 2), and pictures of the queries."""
    names, embeddings, offsets, shown = _query_embeddings(query, file, overrides)
    use = file.record.normalization if file.record else None
    if use is not None:
        assert file.record is not None
        if offsets is None:
            cohort = load_cohort_of(normalize or use.file, file.record)
            if not use.same_as(use_of(normalize or use.file, cohort)):
                raise UserError(f"{normalize or use.file} is not the cohort of {file.path}, {use}")
    elif cohort is None:
        return names, embeddings, shown
    strength = use.strength if use else cohort.strength if cohort else 0.0
    if cohort is not None:
        offsets = offsets_of(cohort, embeddings)
    assert offsets is not None
    return names, search_vectors(embeddings, offsets, strength)[0], shown


def _query_embeddings(
    query: str, file: EmbeddingFile, overrides: Sequence[str]
) -> tuple[list[str], np.ndarray, np.ndarray | None, list[Path | None]]:
    """Names, unit vectors (Q, D), offsets (Q,) by the file's cohort if they are known, and pictures of the queries."""
    path = Path(query).expanduser()
    if path.suffix in READERS:
        if overrides:
            raise UserError(f"{' '.join(overrides)}: only a picture needs the model; {query} holds embeddings")
        asked = EmbeddingFile.open(path)
        if asked.dim != file.dim:
            raise UserError(f"{query} must have {file.dim} dimensions, as {file.path}; got {asked.dim}")
        if asked.record and file.record and not asked.record.same_model(file.record):
            models = f"{asked.record.weights} and {file.record.weights}"
            raise UserError(f"{query} and {file.path} are of models that cannot be compared: {models}")
        names = asked.paths() or [f"row {row}" for row in range(asked.rows)]
        blocks, use = list(asked.blocks()), asked.record.normalization if asked.record else None
        same = use is not None and use.same_as(file.record.normalization if file.record else None)
        offsets = np.concatenate([block.offsets for block in blocks if block.offsets is not None]) if same else None
        return names, np.concatenate([block.embeddings for block in blocks]), offsets, [None] * asked.rows
    if not path.exists():
        raise UserError(f"no image, folder or file of embeddings at {query}")
    if file.record is None:
        raise UserError(
            f"{file.path} does not say which model made it, so a picture cannot be embedded: give a file of embeddings "
            f"({', '.join(READERS)}) as QUERY, or make the index with pml-ext embed"
        )
    listed = list_images([query], Path.cwd())
    embedder = _load_embedder(file.record, overrides)
    pictures, found = Pictures(listed, embedder), Embedded.none()
    for start in range(0, len(listed), embedder.batch_size):
        rows = range(start, min(start + embedder.batch_size, len(listed)))
        found.add([pictures[row] for row in rows], embedder, listed)
    problems = found.problems
    if not found.rows:
        raise UserError(problems[0])
    if problems:
        log.warning("%d of %d query images cannot be used and are skipped: %s", len(problems), len(listed), problems[0])
    names = [listed[row].name for row in found.rows] if path.is_dir() else [query]
    return names, torch.stack(found.vectors).numpy(), None, [listed[row].path for row in found.rows]


def _threshold(file: EmbeddingFile, report: str | None) -> tuple[float | None, str, GalleryCohort | None]:
    """The least score of an accepted hit, a line that describes it, and the cohort if it is the gallery."""
    if report is None:
        return None, "", None
    if file.record is None:
        may = f"so {report} may be about another: make the index with pml-ext embed"
        raise UserError(f"{file.path} does not say which model made it, {may}")
    found = report_for(report, file.record)
    own = gallery_cohort_of(found, report, file, EXACT_UP_TO)
    if own is None:
        require_same_scores(found, report, file.record.normalization, file.path)
    if found.target.kind == "fpir":
        identities = file.identities()
        try:
            size = found.for_gallery(identities)
        except ValueError as error:
            raise UserError(f"{report}: {error}") from error
        enrolled = "identities" if "labels" in file.texts else "rows, each taken for an identity"
        of_size = f"for galleries of up to {size.enrolled:,} (the index has {identities:,} {enrolled})"
        fnir = "unknown" if size.cosine_fnir is None else f"{size.cosine_fnir:.3g}"
        return size.cosine, f"cosine {size.cosine:.4f}, {of_size}: FPIR {found.target.value:g}, FNIR {fnir}", None
    chosen = f"{found.target.kind} {'' if found.target.value is None else format(found.target.value, 'g')}".strip()
    chosen += f" on {found.data}" if found.data else ""
    rates = f"FAR {found.far.rate:.3g}, FRR {found.frr.rate:.3g}"
    pairs = "of single comparisons; of searches among many more are wrong (pml-ext threshold --fpir)"
    text = f"{_kind(file) if own is None else 'score'} {found.cosine:.4f}, chosen for {chosen}: {rates} {pairs}"
    return found.cosine, text, own


def _kind(file: EmbeddingFile) -> str:
    return "score" if file.record and file.record.normalization else "cosine"
