"""`pml-ext embed`: make a gallery agree with images, by one process or several."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
from yacs.config import CfgNode as CN

from pml_ext._errors import UserError
from pml_ext.runner.checks.supported import require_network
from pml_ext.runner.config.network_keys import SHAPING, load_for_embedding
from pml_ext.runner.config.run_folder import config_of_run, weights_of_run
from pml_ext.runner.failures import one_message
from pml_ext.runner.launch import Launch, start
from pml_ext.search.embedder import Embedder
from pml_ext.search.images import embed_folder
from pml_ext.search.readers import READERS


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
        prune, label_by_folder, normalize: see `embed_folder`.
        model: a run or an exported file, whose overrides only say where and how fast it runs; config_file: in place of
            it, with MODEL.WEIGHTS.
    """
    cfg, embedder = _load_model(config_file, model, overrides, half)
    with one_message(output.parent), _process_group(timeout):
        embed_folder(
            embedder, images, output, label_by_folder=label_by_folder, prune=prune, normalize=normalize,
            workers=cfg.DATALOADER.NUM_WORKERS,
        )  # fmt: skip


@contextmanager
def _process_group(timeout: float) -> Iterator[None]:
    """In the block, processes that were started together are a group."""
    if not torch.distributed.is_torchelastic_launched():
        yield
        return
    torch.distributed.init_process_group("gloo", timeout=timedelta(seconds=timeout))
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


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
