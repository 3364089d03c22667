"""Whether a config can run, found out without data, weights or training."""

import logging
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TypeVar

import torch
from torch import nn
from yacs.config import CfgNode as CN

from pml_ext.training.checks.freeze_layers import patterns_without_parameters
from pml_ext.training.checks.needs import missing_here
from pml_ext.training.checks.supported import unsupported
from pml_ext.training.config.load import ConfigError, read_config
from pml_ext.training.data.transforms import build_transform
from pml_ext.training.evaluation.evaluate import opis_settings, verification_evaluator
from pml_ext.training.modeling.architectures import architecture_of
from pml_ext.training.modeling.image_sizes import ImageSizes
from pml_ext.training.modeling.losses.factory import build_losses, build_miner
from pml_ext.training.modeling.weights import download_to_come

log = logging.getLogger("pml_ext")

T = TypeVar("T")


def problems(cfg: CN, *, processes: int = 1, wrong: Collection[str] = ()) -> list[str]:
    """Everything that keeps a config from running, a line each: wrong values, then what is not built.

    Args:
        processes: among which a batch is divided.
        wrong: keys that have their defaults because their values were refused; what depends on them is not built.
    """
    found = unsupported(cfg, processes=processes)
    lines = [str(problem) for problem in found if not problem.not_built]
    lines += _found_by_building(cfg, {*wrong, *(problem.key for problem in found)})
    return lines + [str(problem) for problem in found if problem.not_built]


def require_supported(cfg: CN, *, processes: int = 1) -> None:
    """Raises one ConfigError that names everything that keeps a config from running."""
    _refuse(problems(cfg, processes=processes))


def load_checked(config_file: str | Path, overrides: list[str], *, processes: int = 1) -> CN:
    """As load_config; where keys or values are refused, its error names all else that keeps the config from running."""
    read = read_config(config_file, overrides)
    if read.mistakes.lines:
        _refuse(read.mistakes.lines + problems(read.cfg, processes=processes, wrong=read.mistakes.wrong))
    for note in read.notes:
        log.info("%s", note)
    return read.cfg


def _refuse(lines: Sequence[str]) -> None:
    if lines:
        raise ConfigError("the config cannot run as it is:\n" + "\n".join(f"  {line}" for line in lines))


def check_files(files: Sequence[str], overrides: Sequence[str], *, processes: int = 1) -> tuple[str, bool]:
    """What to tell about config files, and whether none is refused.

    Args:
        overrides: KEY VALUE… for all of them.
        processes: among which a batch is divided.
    """
    strange = [file for file in files if not file.endswith((".yml", ".yaml"))]
    if strange or not files:
        got = " ".join([*files, *overrides]) or "nothing"
        raise ConfigError(f"check-config needs one or more .yml or .yaml files, and KEY VALUE pairs; got {got}")
    told = [_told(file, list(overrides), processes) for file in files]
    return "\n".join(text for text, _ in told), all(can_run for _, can_run in told)


def _told(file: str, overrides: list[str], processes: int) -> tuple[str, bool]:
    """What to tell about a file, and whether it can run."""
    notes, missing = list[str](), list[str]()
    try:
        read = read_config(file, overrides)
    except ConfigError as error:
        reasons = str(error).splitlines()
    else:
        notes, mistakes = read.notes, read.mistakes
        reasons = mistakes.lines + problems(read.cfg, processes=processes, wrong=mistakes.wrong)
        missing = [] if reasons else missing_here(read.cfg)
        coming = None if reasons or read.cfg.MODEL.WEIGHTS else download_to_come(read.cfg.MODEL.BACKBONE)
        notes = [coming, *notes] if coming else notes
    verdict = "cannot run:" if reasons else "can run, but not here as it is:" if missing else "runs"
    lines = [f"{file}: {verdict}", *(f"  {line}" for line in reasons + missing), *(f"  ({note})" for note in notes)]
    return "\n".join(lines), not reasons


def _found_by_building(cfg: CN, wrong: set[str]) -> list[str]:
    """What only those who build find, a line each.

    Args:
        wrong: keys with a problem that is known already; what depends on them is not built.
    """
    model, found = cfg.MODEL, list[str]()

    def attempt(build: Callable[[], T], *depends_on: str) -> T | None:
        if any(key.startswith(depends_on) for key in wrong):
            return None
        try:
            return build()
        except ConfigError as error:
            found.append(str(error))
        except (RuntimeError, OverflowError, MemoryError) as error:  # sizes that no memory holds
            found.append(f"{depends_on[0]} cannot be built with these sizes: {error}")
        return None

    channels = len(model.PIXEL_MEAN)
    attempt(lambda: build_transform(cfg.INPUT, training=True, channels=channels), "INPUT", "MODEL.PIXEL")
    if "MODEL.META_ARCHITECTURE" in wrong:  # the parts that every architecture has may have mistakes of their own
        model = model.clone()
        model.defrost()
        model.META_ARCHITECTURE = "Baseline"
    of_network = ("MODEL.BACKBONE", "MODEL.HEADS", "MODEL.PIXEL", "MODEL.DEVICE", "INPUT")
    network = attempt(lambda: _network(model, cfg.INPUT), *of_network)
    reduced = model.HEADS.NECK_FEAT == "after" and model.HEADS.EMBEDDING_DIM
    size = architecture_of(model).feature_size(network) if network else reduced or model.BACKBONE.FEAT_DIM
    parts = {} if network is None else dict(network.named_parameters())
    for name in model.LOSSES.NAME:
        loss = attempt(lambda name=name: _loss(cfg, name, size), "MODEL.LOSSES")  # type: ignore[misc]
        parts |= {} if loss is None else {f"losses.{name}": value for name, value in loss.named_parameters()}
    of_freezing = ("MODEL.FREEZE_LAYERS", "MODEL.META_ARCHITECTURE", "SOLVER.FREEZE_ITERS", "SOLVER.FREEZE_EPOCHS")
    freezes = cfg.SOLVER.FREEZE_ITERS or cfg.SOLVER.FREEZE_EPOCHS
    if network is not None and freezes and not any(key.startswith(of_freezing) for key in wrong):
        found += patterns_without_parameters(model.FREEZE_LAYERS, parts)
    attempt(lambda: build_miner(model.MINER), "MODEL.MINER")
    attempt(lambda: opis_settings(cfg.TEST.OPIS), "TEST.OPIS")
    attempt(lambda: verification_evaluator(cfg.TEST.VERIFICATION), "TEST.VERIFICATION")
    return found


def _network(options: CN, images: CN) -> nn.Module:
    """The network's parts on torch's meta device: shapes without memory, weights or arithmetic."""
    model = options.clone()
    model.defrost()
    model.BACKBONE.PRETRAIN = False
    architecture = architecture_of(model)
    with torch.device("meta"):
        parts = architecture.parts(model, images, num_classes=max(model.HEADS.NUM_CLASSES, 2))
        network = nn.ModuleDict(parts).eval()
        for size in ImageSizes.of(images):
            if size[0] > 0:
                architecture.require_size(network, torch.zeros(1, len(model.PIXEL_MEAN), size[0], size[-1]))
    return network


def _loss(cfg: CN, name: str, feature_size: int) -> nn.Module:
    losses = cfg.MODEL.LOSSES.clone()
    losses.defrost()
    losses.NAME = (name,)
    return build_losses(losses, num_classes=max(cfg.MODEL.HEADS.NUM_CLASSES, 2), feature_size=feature_size)[1]
