"""`pml-ext search`: the pictures of an index that are closest to one picture, or to each of several embeddings."""

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pml_ext._errors import UserError
from pml_ext._text import printable
from pml_ext.reports.hits_page import Answer, Hit, write_hits
from pml_ext.runner.config.network_keys import config_of
from pml_ext.runner.data.datasets.image_files import ImageFiles
from pml_ext.search.embedder import Embedder
from pml_ext.search.embedding_file import EmbeddingFile
from pml_ext.search.embedding_set import pictures_inside
from pml_ext.search.exact_or_indexed import open_nearest
from pml_ext.search.file_formats import READERS
from pml_ext.search.model_record import ModelRecord, report_for

log = logging.getLogger("pml_ext")


def search(
    query: str, index: str, *, k: int, threshold: str | None, page: str | None, images: str | None,
    overrides: Sequence[str],
) -> str:  # fmt: skip
    """Search for a picture, or for every row of a file of embeddings; returns a line for each hit, below each query.

    threshold: a threshold report of the model; page: an HTML page to write; images: the folder that the index's paths
    are relative to, None for its own; overrides: MODEL.WEIGHTS if the model's file has moved, MODEL.DEVICE.
    """
    if k < 1:
        raise UserError(f"-k must be 1 or more; got {k}")
    file = EmbeddingFile.open(index)
    cosine, chosen = _threshold(file, threshold)
    names, vectors, shown = _queries(query, file, overrides)
    nearest = open_nearest(file)
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
    share = f"{nearest.recall:.1%} of the true ten neighbours"
    some = f"{nearest.probes} of {nearest.lists} lists, which hold {share}"
    compared = "all rows compared" if nearest.is_exact else some
    facts = {"index": f"{index}, {file.rows:,} rows of {file.dim} dimensions", "searched": compared}
    if chosen:
        facts["threshold"] = chosen
    if page is not None:
        write_hits(page, answers, facts)
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
        embedder = Embedder.of(cfg, device=device, half=False, batch_size=1)
    if not embedder.record.same_model(record):
        hashes = f"{embedder.record.sha256[:12]}…, the index's {record.sha256[:12]}…"
        raise UserError(f"{path} is not the model of the index: its weights have SHA-256 {hashes}")
    return embedder


def _queries(
    query: str, file: EmbeddingFile, overrides: Sequence[str]
) -> tuple[list[str], np.ndarray, list[Path | None]]:
    """Names, unit vectors (Q, D) and pictures of the queries."""
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
        return names, np.concatenate([block.embeddings for block in asked.blocks()]), [None] * asked.rows
    if not path.is_file():
        raise UserError(f"no picture and no file of embeddings at {query}")
    if file.record is None:
        raise UserError(
            f"{file.path} does not say which model made it, so a picture cannot be embedded: give a file of embeddings "
            f"({', '.join(READERS)}) as QUERY, or make the index with pml-ext embed"
        )
    embedder = _load_embedder(file.record, overrides)
    return [query], embedder(ImageFiles([path], grey=embedder.is_grey)[0]).numpy(), [path]


def _threshold(file: EmbeddingFile, report: str | None) -> tuple[float | None, str]:
    """The least cosine of an accepted hit, and a line that describes it."""
    if report is None:
        cosine = file.record.threshold if file.record else None
        return cosine, "" if cosine is None else f"cosine {cosine:.4f}, as the exported model says"
    if file.record is None:
        may = f"so {report} may be about another: make the index with pml-ext embed"
        raise UserError(f"{file.path} does not say which model made it, {may}")
    found = report_for(report, file.record)
    if found.target.kind == "fpir":
        identities = file.identities()
        try:
            size = found.for_gallery(identities)
        except ValueError as error:
            raise UserError(f"{report}: {error}") from error
        enrolled = "identities" if "labels" in file.texts else "rows, each taken for an identity"
        of_size = f"for galleries of up to {size.enrolled:,} (the index has {identities:,} {enrolled})"
        fnir = "unknown" if size.cosine_fnir is None else f"{size.cosine_fnir:.3g}"
        return size.cosine, f"cosine {size.cosine:.4f}, {of_size}: FPIR {found.target.value:g}, FNIR {fnir}"
    chosen = f"{found.target.kind} {'' if found.target.value is None else format(found.target.value, 'g')}".strip()
    chosen += f" on {found.data}" if found.data else ""
    rates = f"FAR {found.far.rate:.3g}, FRR {found.frr.rate:.3g}"
    pairs = "of single comparisons; of searches among many more are wrong (pml-ext threshold --fpir)"
    return found.cosine, f"cosine {found.cosine:.4f}, chosen for {chosen}: {rates} {pairs}"
