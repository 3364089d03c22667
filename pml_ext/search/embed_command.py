"""`pml-ext embed`: the embeddings of pictures as a file, by one process or several."""

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
from yacs.config import CfgNode as CN

from pml_ext._errors import UserError
from pml_ext._files import write_atomically
from pml_ext.metrics import CohortNormalization
from pml_ext.runner.checks.supported import require_network
from pml_ext.runner.config.network_keys import SHAPING, load_for_embedding
from pml_ext.runner.config.run_folder import config_of_run, weights_of_run
from pml_ext.runner.failures import one_message
from pml_ext.runner.launch import Launch, start
from pml_ext.search.added_pictures import Plan, open_old, plan_additions, rows_that_stay
from pml_ext.search.embedder import Embedder
from pml_ext.search.embedding_blocks import Block, Version
from pml_ext.search.embedding_file import SUFFIXES, write_embeddings
from pml_ext.search.embedding_loop import Shards, embed_shards
from pml_ext.search.image_list import Listed, list_images
from pml_ext.search.model_record import ModelRecord
from pml_ext.search.normalized_scores import load_cohort_of, offsets_of, use_of
from pml_ext.search.onnx_model import OnnxModel
from pml_ext.search.parquet_file import require_pyarrow

log = logging.getLogger("pml_ext")

_SHOWN = 20  # pictures that could not be embedded and are named in the log; the file beside the output names all


def embed(
    images: Sequence[str], output: str | Path, launch: Launch, *, config_file: str | None, model: str | None,
    overrides: Sequence[str], half: bool, add: bool, prune: bool, overwrite: bool, label_by_folder: bool,
    normalize: str | None,
) -> None:  # fmt: skip
    """Embed pictures and write the file; a run that was killed goes on after its last shard.

    normalize: a saved cohort, whose mean cosines with each picture are written too, so that searches have normalised
    scores. With `add`, pictures whose content has changed are embedded again; with `prune`, rows of lost ones go.
    Pictures that cannot be embedded are listed in `<output>.unreadable.txt`, the first of them in the log, too.
    The model is a run, a YAML with MODEL.WEIGHTS, or an exported file, whose overrides only say where and how fast it
    runs.
    """
    launch = launch.joined()
    output = _check_output(output, add=add, prune=prune, overwrite=overwrite)
    if launch.needs_agent:
        start(launch, partial(
            embed, images, output, config_file=config_file, model=model, overrides=overrides, half=half, add=add,
            prune=prune, overwrite=overwrite, label_by_folder=label_by_folder, normalize=normalize,
        ))  # fmt: skip
        return
    cfg, embedder = _load_model(config_file, model, overrides, half)
    cohort = None if normalize is None else load_cohort_of(normalize, embedder.record)
    use = None if cohort is None else use_of(str(normalize), cohort)
    record = replace(embedder.record, normalization=use)
    old = open_old(output, record, label_by_folder) if add and output.exists() else None
    listed = list_images(images, output.parent)
    with one_message(output.parent), _process_group(launch.timeout) as (rank, processes):
        fresh, stay = _share(lambda: plan_additions(old, listed, prune=prune)) if old else Plan(listed)
        if old and not fresh and stay.all():
            return
        identities = [_identity(picture, label_by_folder) for picture in fresh]
        shards = Shards(output.with_name(f"{output.name}.shards"), identities, embedder.record.as_json())
        parts, missing = len(shards.rows), shards.missing()
        if rank == 0:
            shards.clear_others(overwrite=overwrite)
            if len(missing) < parts:
                log.info("going on: %d of %d parts are in %s", parts - len(missing), parts, shards.folder)
        mine = [shard for shard in missing if shard % processes == rank]
        embed_shards(embedder, fresh, shards, mine, workers=cfg.DATALOADER.NUM_WORKERS, show=rank == 0)
        if processes > 1:
            torch.distributed.barrier()
        if rank == 0:
            kept, versions = rows_that_stay(old, stay) if old else ((), ())
            _join(output, shards, fresh, record, cohort, label_by_folder, kept, versions)


@contextmanager
def _process_group(timeout: float) -> Iterator[tuple[int, int]]:
    """This process's rank, and how many processes there are; in the block they can wait for each other."""
    if not torch.distributed.is_torchelastic_launched():
        yield 0, 1
        return
    torch.distributed.init_process_group("gloo", timeout=timedelta(seconds=timeout))
    try:
        yield torch.distributed.get_rank(), torch.distributed.get_world_size()
    finally:
        torch.distributed.destroy_process_group()


def _share(make: Callable[[], Plan]) -> Plan:
    """What the first process makes, in all of them."""
    if not torch.distributed.is_initialized():
        return make()
    plan = [make() if torch.distributed.get_rank() == 0 else Plan(())]
    torch.distributed.broadcast_object_list(plan)
    return plan[0]


def _join(
    output: Path, shards: Shards, listed: Sequence[Listed], record: ModelRecord, cohort: CohortNormalization | None,
    label_by_folder: bool, kept: Iterable[Block], versions: tuple[Version, ...],
) -> None:  # fmt: skip
    """Write the rows that are kept of an old file and all shards as one; the log names what could not be embedded."""
    problems = list[str]()

    def blocks() -> Iterator[Block]:
        yield from kept
        for content in map(shards.read, range(len(shards.rows))):
            problems.extend(content.problems)
            if pictures := [listed[row] for row in content.rows]:
                labels = [picture.folder for picture in pictures] if label_by_folder else None
                names = [picture.name for picture in pictures]
                offsets = None if cohort is None else offsets_of(cohort, content.embeddings)
                yield Block(content.embeddings, names, labels, [*content.fingerprints], offsets)
        if listed and len(problems) == len(listed):
            raise UserError(f"none of {len(listed)} pictures could be embedded: {problems[0]}")

    written = write_embeddings(output, blocks(), record, versions)
    shards.remove()
    list_of_problems = output.with_name(f"{output.name}.unreadable.txt")
    list_of_problems.unlink(missing_ok=True)
    if problems:
        write_atomically(list_of_problems, "".join(f"{problem}\n" for problem in problems))
        counts = f"{len(problems)} of {len(listed)}"
        log.warning("%s pictures could not be embedded, all of them in %s:", counts, list_of_problems)
        for problem in problems[:_SHOWN]:
            log.warning("  %s", problem)
    log.info("%s: %d embeddings of %d dimensions", output, written.rows, written.dim)


def _check_output(output: str | Path, *, add: bool, prune: bool, overwrite: bool) -> Path:
    path = Path(output).expanduser()
    if path.suffix not in SUFFIXES:
        raise UserError(f"--output must be one of {', '.join(SUFFIXES)}; got {path.name}")
    if path.suffix == ".parquet":
        require_pyarrow(path)
    if not path.parent.is_dir():
        raise UserError(f"no folder {path.parent} to write {path.name} into")
    if add and overwrite:
        raise UserError("--add puts pictures into the output and --overwrite replaces it: give one of them")
    if prune and not add:
        raise UserError("--prune drops rows of pictures that are gone when others are added: give --add, too")
    if path.exists() and not add and not overwrite:
        raise UserError(f"{path} is there already: --add puts more pictures into it, --overwrite replaces it")
    return path


def _load_model(
    config_file: str | None, model: str | None, overrides: Sequence[str], half: bool
) -> tuple[CN, Embedder]:
    """The config to run with, for an exported file the one recorded in it; and the model, on this process's device."""
    if (config_file is None) == (model is None):
        raise UserError("embed needs either --model, a run or an ONNX file, or --config-file with MODEL.WEIGHTS")
    if model is not None and Path(model).suffix != ".onnx":
        config_file, overrides = config_of_run(model), ["MODEL.WEIGHTS", weights_of_run(model), *overrides]
    if config_file is not None:
        cfg = load_for_embedding(config_file, [*overrides])
        require_network(cfg)
        embedder = Embedder.of(cfg, device=_device(cfg), half=half, batch_size=cfg.TEST.IMS_PER_BATCH)
        weights = str(Path(cfg.MODEL.WEIGHTS).expanduser().resolve())
        embedder.record = replace(embedder.record, weights=weights)
        return cfg, embedder
    fixed = [key for key in overrides[::2] if key.startswith((*SHAPING, "MODEL.WEIGHTS"))]
    if fixed or half:
        raise UserError(f"{', '.join(fixed) or '--half'}: an exported file computes as it was exported")
    assert model is not None
    words = [str(word) for pair in OnnxModel(model, "cpu").record.config.items() for word in pair]
    cfg = load_for_embedding(None, [*words, "MODEL.DEVICE", "auto", *overrides])
    require_network(cfg)
    embedder = Embedder.from_onnx(model, device=_device(cfg), batch_size=cfg.TEST.IMS_PER_BATCH)
    embedder.record = replace(embedder.record, onnx=str(Path(model).expanduser().resolve()))
    return cfg, embedder


def _device(cfg: CN) -> str:
    """MODEL.DEVICE; each of several processes of a machine has its own GPU."""
    kind = cfg.MODEL.DEVICE.partition(":")[0]
    alone = kind == "cpu" or int(os.environ.get("LOCAL_WORLD_SIZE", 1)) == 1
    return cfg.MODEL.DEVICE if alone else f"{kind}:{os.environ['LOCAL_RANK']}"


def _identity(picture: Listed, label_by_folder: bool) -> str:
    """A text that no other picture has; a changed file is another picture."""
    try:
        state = picture.path.stat()
    except OSError:
        return picture.name
    return f"{picture.name}\0{picture.folder * label_by_folder}\0{state.st_size}\0{state.st_mtime_ns}"
