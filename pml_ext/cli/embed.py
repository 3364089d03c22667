"""`pml-ext embed`: make a gallery agree with images, by one process or several."""

from __future__ import annotations

import logging
import os
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pml_ext._errors import UserError
from pml_ext.cli.arguments import IMPORT, KEY_AMONG_FILES, PROCESSES, Argument, Command, launch_of

if TYPE_CHECKING:
    from yacs.config import CfgNode as CN

    from pml_ext.runner.launch import Launch
    from pml_ext.search.embedder import Embedder
    from pml_ext.search.gallery import Gallery
    from pml_ext.search.images import Embedded, Listed

log = logging.getLogger("pml_ext")

T = TypeVar("T")

PART_SECONDS = 60.0  # the most work that a killed process loses


_ARGUMENTS = [
    Argument("IMAGES [KEY VALUE]…", "Image files and folders, and config overrides.", dest="images", nargs="*"),
    Argument(
        "--model MODEL",
        "OUTPUT_DIR of a run, file of `pml-ext export --format onnx`, or config file; set MODEL.WEIGHTS in the "
        "config file or on the command line.",
        required=True,
    ),
    Argument("--output GALLERY", "Folder of a new or an existing gallery.", required=True),
    Argument("--half", "Use 16-bit precision except in the heads."),
    Argument("--prune", "Remove the rows of images that no longer exist."),
    Argument("--label-by-folder", "Label each image with its folder's name."),
    Argument(
        "--normalize COHORT",
        "cohort.npz of `pml-ext threshold choose`; searches then rank by normalised scores.",
    ),
    IMPORT,
    *PROCESSES,
]


def _embed(options: Namespace) -> None:
    from pml_ext.runner.launch import start
    from pml_ext.search.readers import READERS

    launch = launch_of(options).joined()
    options.output = Path(options.output).expanduser()
    if options.output.suffix in READERS or options.output.is_file():
        raise UserError(f"--output is a gallery, which is a folder; got {options.output}")
    if not options.output.parent.is_dir():
        raise UserError(f"no folder {options.output.parent} for {options.output.name}")
    if launch.needs_agent:
        start(launch, partial(embed_in_process, options))
    else:
        embed_in_process(options, launch)


def embed_in_process(options: Namespace, launch: Launch) -> None:
    """Embed this process's share of the images that are not in the gallery yet, or whose content has changed."""
    from pml_ext.runner.failures import one_message
    from pml_ext.search.gallery import Gallery
    from pml_ext.search.images import list_images

    cfg, embedder = _load_model(options)
    output = options.output
    listed = list_images(options.images, Path(os.path.abspath(output)).parent)
    cohort = None if options.normalize is None else Path(options.normalize).expanduser()
    with one_message(output.parent), _process_group(launch.timeout) as (rank, processes):
        missing: list[Listed] = []
        if rank == 0:
            gallery = Gallery.create(output, embedder.record, has_labels=options.label_by_folder, cohort=cohort)
            missing = _remove_stale_rows(gallery, listed, prune=options.prune)
        missing = _exchange(missing)[0]
        gallery = Gallery.open(output, may_be_empty=True)
        workers = cfg.DATALOADER.NUM_WORKERS
        own = _embed_missing(gallery, embedder, missing[rank::processes], workers, show=rank == 0)
        problems = [problem for problems in _exchange(own) for problem in problems]
        if rank == 0:
            _report(Gallery.open(output, may_be_empty=True), problems, len(missing))


def _load_model(options: Namespace) -> tuple[CN, Embedder]:
    """The config to run with, and the model on this process's device."""
    from pml_ext.runner.checks.supported import require_network
    from pml_ext.runner.config.network_keys import load_for_embedding
    from pml_ext.runner.config.run_folder import config_of_run, weights_of_run
    from pml_ext.search.embedder import Embedder

    model, overrides = options.model, options.overrides
    path = Path(model).expanduser()
    is_exported = path.suffix == ".onnx"
    if is_exported:
        _require_no_model_keys(options)
        config_file, overrides = None, ["MODEL.DEVICE", "auto", *overrides]
    elif path.is_dir():
        config_file, overrides = config_of_run(model), ["MODEL.WEIGHTS", weights_of_run(model), *overrides]
    else:
        config_file = model
    cfg = load_for_embedding(config_file, [*overrides])
    require_network(cfg)
    device, batch_size = _device(cfg), cfg.TEST.IMS_PER_BATCH
    if is_exported:
        embedder = Embedder.from_onnx(model, device=device, batch_size=batch_size)
        embedder.record = replace(embedder.record, onnx=str(path.resolve()))
    else:
        embedder = Embedder.of(cfg, device=device, half=options.half, batch_size=batch_size)
        weights = Path(cfg.MODEL.WEIGHTS).expanduser().resolve()
        embedder.record = replace(embedder.record, weights=str(weights))
    return cfg, embedder


def _require_no_model_keys(options: Namespace) -> None:
    """Raise a UserError for arguments that would change what an exported model computes."""
    from pml_ext.runner.config.network_keys import SHAPING

    fixed = [key for key in options.overrides[::2] if key.startswith((*SHAPING, "MODEL.WEIGHTS"))]
    if options.half:
        fixed.append("--half")
    if fixed:
        raise UserError(f"{', '.join(fixed)}: an exported file computes as it was exported")


def _device(cfg: CN) -> str:
    """MODEL.DEVICE; each of several processes of a machine has its own GPU."""
    device = str(cfg.MODEL.DEVICE)
    kind = device.partition(":")[0]
    if kind == "cpu" or int(os.environ.get("LOCAL_WORLD_SIZE", 1)) == 1:
        return device
    return f"{kind}:{os.environ['LOCAL_RANK']}"


def _remove_stale_rows(gallery: Gallery, listed: Sequence[Listed], *, prune: bool) -> list[Listed]:
    """Remove rows of changed images, with `prune` of images that no longer exist; returns the images to embed."""
    import numpy as np

    from pml_ext.search.images import is_unchanged

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
        unchanged = len(listed) - len(missing)
        text = "%s: %d images to embed, %d of them changed; %d unchanged"
        log.info(text, gallery.folder, len(missing), len(changed), unchanged)
    return missing


def _embed_missing(
    gallery: Gallery, embedder: Embedder, missing: Sequence[Listed], workers: int, *, show: bool
) -> list[str]:
    """Embed images and add a part whenever it is large enough or a minute has passed; returns the problems."""
    from pml_ext.search.gallery import PART_ROWS
    from pml_ext.search.images import embed_images

    problems, pending, rows, begun = list[str](), list["Embedded"](), 0, time.monotonic()
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
    from pml_ext.search.images import join_batches

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
    from torch import distributed

    if not distributed.is_torchelastic_launched():
        yield 0, 1
        return
    distributed.init_process_group("gloo", timeout=timedelta(seconds=timeout))
    try:
        yield distributed.get_rank(), distributed.get_world_size()
    finally:
        distributed.destroy_process_group()


def _exchange(value: list[T]) -> list[list[T]]:
    """The values of all processes."""
    from torch import distributed

    if not distributed.is_initialized():
        return [value]
    values: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(values, value)
    return values


EMBED = Command(
    "embed",
    "Embed images into a gallery. Rerun the command to resume.",
    _embed,
    _ARGUMENTS,
    "pml-ext embed images/ --model logs/products --label-by-folder --output gallery",
    notes="Images that are new or whose content has changed are embedded; the others stay as they are.\n",
    key=KEY_AMONG_FILES,
    resume_hint="; run the same command again to resume",
)
