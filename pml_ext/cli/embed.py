"""`pml-ext embed`: embeds images into a gallery, in one process or several."""

from __future__ import annotations

import logging
import os
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pml_ext._shared.errors import UserError, ended_by_signals
from pml_ext._shared.files import EMBEDDING_SUFFIXES
from pml_ext.cli.arguments import HALF, IMPORTS, KEY_AMONG_FILES, PROCESSES, Argument, Command, launch_of

if TYPE_CHECKING:
    from yacs.config import CfgNode as CN

    from pml_ext.deploy.embedder import Embedder
    from pml_ext.runner.launch import Launch

log = logging.getLogger("pml_ext")

_ARGUMENTS = [
    Argument("IMAGES [KEY VALUE]", "Image files and folders, and config overrides.", dest="images", nargs="*"),
    Argument(
        "--model MODEL",
        "OUTPUT_DIR of a run, file of `pml-ext export`, or config file; set MODEL.WEIGHTS in the "
        "config file or on the command line.",
        required=True,
    ),
    Argument("--output GALLERY", "Folder of a new or an existing gallery.", required=True),
    HALF,
    Argument("--prune", "Remove the rows of images that no longer exist."),
    Argument("--label-by-folder", "Label each image with its class folder's name."),
    Argument(
        "--cohort FILE",
        "cohort.npz of `pml-ext threshold choose`; searches then rank by normalised scores [default: plain cosines]",
    ),
    IMPORTS,
    *PROCESSES,
]


def _embed(options: Namespace) -> None:
    from pml_ext.runner.launch import start

    launch = launch_of(options).joined()
    options.output = Path(options.output).expanduser()
    if options.output.suffix in EMBEDDING_SUFFIXES or options.output.is_file():
        raise UserError(f"--output must be a gallery folder; got {options.output}")
    if launch.needs_agent:
        start(launch, partial(embed_in_process, options))
    else:
        embed_in_process(options, launch)


@ended_by_signals()
def embed_in_process(options: Namespace, launch: Launch) -> None:
    """Embed this process's share of the images that are new or whose content has changed."""
    from pml_ext.deploy.images import embed_folder
    from pml_ext.runner.launch import one_message
    from pml_ext.runner.modeling.cuda import describe_cpu_processes

    cfg, embedder = _load_model(options)
    if line := describe_cpu_processes(cfg.MODEL.DEVICE, launch.joined().num_gpus):
        log.info("%s", line)
    with one_message(options.output.parent), _process_group(launch.timeout):
        embed_folder(
            embedder,
            options.images,
            options.output,
            label_by_folder=options.label_by_folder,
            prune=options.prune,
            cohort=options.cohort,
            workers=cfg.DATALOADER.NUM_WORKERS,
        )


def _load_model(options: Namespace) -> tuple[CN, Embedder]:
    """Returns the config, and the model on this process's device."""
    from pml_ext.deploy.embedder import Embedder
    from pml_ext.runner.checks.rules import require_network
    from pml_ext.runner.config.files import config_of_run, weights_of_run
    from pml_ext.runner.config.network_keys import load_for_embedding

    model, overrides = options.model, options.overrides
    path = Path(model).expanduser()
    if path.suffix == ".onnx":
        _require_no_model_keys(options)
        cfg = load_for_embedding(None, ["MODEL.DEVICE", "auto", *overrides])
        require_network(cfg)
        return cfg, Embedder.from_onnx(model, device=_device_of_process(cfg), batch_size=cfg.TEST.IMS_PER_BATCH)
    if path.is_dir():
        model, overrides = config_of_run(model), ["MODEL.WEIGHTS", weights_of_run(model), *overrides]
    cfg = load_for_embedding(model, [*overrides])
    return cfg, Embedder.of(cfg, device=_device_of_process(cfg), half=options.half, batch_size=cfg.TEST.IMS_PER_BATCH)


def _require_no_model_keys(options: Namespace) -> None:
    """Raise a UserError for arguments that would change what an exported model computes."""
    from pml_ext.runner.config.network_keys import SHAPING

    fixed = [key for key in options.overrides[::2] if key.startswith((*SHAPING, "MODEL.WEIGHTS"))]
    if options.half:
        fixed.append("--half")
    if fixed:
        raise UserError(f"{', '.join(fixed)}: an exported file computes as it was exported")


def _device_of_process(cfg: CN) -> str:
    """Returns MODEL.DEVICE, with this process's GPU if a machine runs several processes."""
    from torch import distributed

    device = str(cfg.MODEL.DEVICE)
    kind = device.partition(":")[0]
    if kind == "cpu" or not distributed.is_torchelastic_launched() or os.environ["LOCAL_WORLD_SIZE"] == "1":
        return device
    return f"{kind}:{os.environ['LOCAL_RANK']}"


@contextmanager
def _process_group(timeout: float) -> Iterator[None]:
    """Join the processes that were started together into a group during the block."""
    from torch import distributed

    if not distributed.is_torchelastic_launched():
        yield
        return
    distributed.init_process_group("gloo", timeout=timedelta(seconds=timeout))
    try:
        yield
    finally:
        distributed.destroy_process_group()


EMBED = Command(
    "embed",
    "Embed images into a gallery. Rerun the command to resume.",
    _embed,
    _ARGUMENTS,
    "pml-ext embed images/ --model logs/products --label-by-folder --output gallery",
    notes="Embeds images that are new or whose content has changed.\n",
    key=KEY_AMONG_FILES,
    resume_hint="; run the same command again to resume",
)
