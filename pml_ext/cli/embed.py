"""`pml-ext embed`: make a gallery agree with images, by one process or several."""

import logging
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from yacs.config import CfgNode as CN

from pml_ext._errors import UserError
from pml_ext.runner.checks.supported import require_network
from pml_ext.runner.config.network_keys import SHAPING, load_for_embedding
from pml_ext.runner.config.run_folder import config_of_run, weights_of_run
from pml_ext.runner.failures import one_message
from pml_ext.runner.launch import Launch, start
from pml_ext.search.embedder import Embedder
from pml_ext.search.gallery import PART_ROWS, Gallery
from pml_ext.search.images import Embedded, Listed, embed_images, is_unchanged, join_batches, list_images
from pml_ext.search.readers import READERS

log = logging.getLogger("pml_ext")

T = TypeVar("T")

PART_SECONDS = 60.0  # the most work that a killed process loses


def embed(images: Sequence[str], output: str | Path, launch: Launch, **options: Any) -> None:
    """Embed the images that are not in the gallery yet, or whose content has changed.

    Args:
        options: see `_embed`.
    """
    launch = launch.joined()
    output = Path(output).expanduser()
    if output.suffix in READERS or output.is_file():
        raise UserError(f"--output is a gallery, which is a folder; got {output}")
    if not output.parent.is_dir():
        raise UserError(f"no folder {output.parent} for {output.name}")
    if launch.needs_agent:
        start(launch, partial(embed, images, output, **options))
    else:
        _embed(images, output, launch.timeout, **options)


def _embed(
    images: Sequence[str], output: Path, timeout: float, *, config_file: str | None, model: str | None,
    overrides: Sequence[str], half: bool, prune: bool, label_by_folder: bool, normalize: str | None,
) -> None:  # fmt: skip
    """One process of `embed`.

    Args:
        prune: drop the rows of images that no longer exist.
        normalize: a saved cohort, whose mean cosines with each image are kept, so that searches have normalised scores.
        model: a run or an exported file, whose overrides only say where and how fast it runs; config_file: in place of
            it, with MODEL.WEIGHTS.
    """
    cfg, embedder = _load_model(config_file, model, overrides, half)
    listed = list_images(images, Path(os.path.abspath(output)).parent)
    cohort = None if normalize is None else Path(normalize).expanduser()
    with one_message(output.parent), _process_group(timeout) as (rank, processes):
        missing = list[Listed]()
        if rank == 0:
            gallery = Gallery.create(output, embedder.record, has_labels=label_by_folder, cohort=cohort)
            missing = _remove_stale_rows(gallery, listed, prune=prune)
        missing = _exchange(missing)[0]
        gallery = Gallery.open(output, may_be_empty=True)
        workers = cfg.DATALOADER.NUM_WORKERS
        own = _embed_missing(gallery, embedder, missing[rank::processes], workers, show=rank == 0)
        problems = [problem for problems in _exchange(own) for problem in problems]
        if rank == 0:
            _report(Gallery.open(output, may_be_empty=True), problems, len(missing))


def _remove_stale_rows(gallery: Gallery, listed: Sequence[Listed], *, prune: bool) -> list[Listed]:
    """Remove rows of changed images, with `prune` of images that no longer exist; returns the images to embed."""
    paths, hashes = gallery.column("path"), gallery.column("content_hash")
    row_of = {path: row for row, path in enumerate(paths)}  # two commands may have embedded an image: the last counts
    known = [image for image in listed if image.name in row_of]
    with ThreadPoolExecutor(min(8, 2 * (os.cpu_count() or 1))) as pool:
        same = pool.map(lambda image: is_unchanged(image.path, hashes[row_of[image.name]]), known)
        changed = {image.name for image, is_same in zip(known, same, strict=True) if not is_same}
    lost = {path for path in row_of if not (gallery.base / path).exists()}
    if lost:
        does = "their rows are removed" if prune else "--prune removes their rows"
        log.warning("%d images of %s no longer exist, such as %s: %s", len(lost), gallery.folder, min(lost), does)
    dropped = changed | lost if prune else changed
    stays = [row_of[path] == row and path not in dropped for row, path in enumerate(paths)]
    if not all(stays):
        gallery.keep(np.array(stays))
    missing = [image for image in listed if image.name not in row_of or image.name in changed]
    if paths:
        log.info(
            "%s: %d images to embed, %d of them changed; %d unchanged", gallery.folder, len(missing), len(changed),
            len(listed) - len(missing),
        )  # fmt: skip
    return missing


def _embed_missing(
    gallery: Gallery, embedder: Embedder, missing: Sequence[Listed], workers: int, *, show: bool
) -> list[str]:
    """Embed images and add a part whenever it is large enough or a minute has passed; returns the problems."""
    problems, pending, rows, begun = list[str](), list[Embedded](), 0, time.monotonic()
    for batch in embed_images(embedder, missing, workers=workers, show=show):
        problems += batch.problems
        pending.append(batch)
        rows += len(batch.images)
        if rows >= PART_ROWS or time.monotonic() - begun >= PART_SECONDS:
            _add_part(gallery, pending)
            pending, rows, begun = [], 0, time.monotonic()
    _add_part(gallery, pending)
    return problems


def _add_part(gallery: Gallery, batches: Sequence[Embedded]) -> None:
    if any(batch.images for batch in batches):
        images, embeddings, hashes, _ = join_batches(batches)
        gallery.add([image.name for image in images], [image.folder for image in images], hashes, embeddings)


def _report(gallery: Gallery, problems: Sequence[str], count: int) -> None:
    file = gallery.folder / "unreadable.txt"
    file.unlink(missing_ok=True)
    if problems:
        file.write_text("".join(f"{problem}\n" for problem in problems), encoding="utf-8")
        log.warning("%d of %d images could not be embedded, see %s: %s …", len(problems), count, file, problems[0])
    if not gallery.rows:
        raise UserError(f"none of {count} images could be embedded: {problems[0]}")
    log.info("%s: %d embeddings of %d dimensions", gallery.folder, gallery.rows, gallery.dim)


@contextmanager
def _process_group(timeout: float) -> Iterator[tuple[int, int]]:
    """This process's rank, and the number of processes; in the block they can exchange objects."""
    if not torch.distributed.is_torchelastic_launched():
        yield 0, 1
        return
    torch.distributed.init_process_group("gloo", timeout=timedelta(seconds=timeout))
    try:
        yield torch.distributed.get_rank(), torch.distributed.get_world_size()
    finally:
        torch.distributed.destroy_process_group()


def _exchange(value: list[T]) -> list[list[T]]:
    """The values of all processes."""
    if not torch.distributed.is_initialized():
        return [value]
    values: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(values, value)
    return values


def _load_model(
    config_file: str | None, model: str | None, overrides: Sequence[str], half: bool
) -> tuple[CN, Embedder]:
    """The config to run with, and the model on this process's device."""
    if (config_file is None) == (model is None):
        raise UserError("embed needs either --model, a run or an ONNX file, or --config-file with MODEL.WEIGHTS")
    if model is not None and Path(model).suffix == ".onnx":
        fixed = [key for key in overrides[::2] if key.startswith((*SHAPING, "MODEL.WEIGHTS"))]
        if fixed or half:
            raise UserError(f"{', '.join(fixed) or '--half'}: an exported file computes as it was exported")
        cfg = load_for_embedding(None, ["MODEL.DEVICE", "auto", *overrides])
        require_network(cfg)
        embedder = Embedder.from_onnx(model, device=_device(cfg), batch_size=cfg.TEST.IMS_PER_BATCH)
        embedder.record = replace(embedder.record, onnx=str(Path(model).expanduser().resolve()))
        return cfg, embedder
    if model is not None:
        config_file, overrides = config_of_run(model), ["MODEL.WEIGHTS", weights_of_run(model), *overrides]
    cfg = load_for_embedding(config_file, [*overrides])
    require_network(cfg)
    embedder = Embedder.of(cfg, device=_device(cfg), half=half, batch_size=cfg.TEST.IMS_PER_BATCH)
    weights = str(Path(cfg.MODEL.WEIGHTS).expanduser().resolve())
    embedder.record = replace(embedder.record, weights=weights)
    return cfg, embedder


def _device(cfg: CN) -> str:
    """MODEL.DEVICE; each of several processes of a machine has its own GPU."""
    kind = cfg.MODEL.DEVICE.partition(":")[0]
    alone = kind == "cpu" or int(os.environ.get("LOCAL_WORLD_SIZE", 1)) == 1
    return cfg.MODEL.DEVICE if alone else f"{kind}:{os.environ['LOCAL_RANK']}"
