"""Problems of a config that only building its parts can find; large parts are built on torch's meta device."""

import re
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, TypeVar

import torch
from torch import nn
from yacs.config import CfgNode as CN

from pml_ext._errors import UserError
from pml_ext.runner.data.samplers import require_callable
from pml_ext.runner.data.transforms import require_image
from pml_ext.runner.evaluation.evaluate import gallery_cohort, opis_settings, verification_evaluator
from pml_ext.runner.modeling.architectures import architecture_of
from pml_ext.runner.modeling.heads import build_partial_fc
from pml_ext.runner.modeling.image_sizes import ImageSizes
from pml_ext.runner.modeling.losses.factory import build_losses, build_miner
from pml_ext.runner.registry import TRANSFORM_REGISTRY
from pml_ext.runner.solver.optimizer import build_optimizer
from pml_ext.runner.solver.schedule import build_schedule

T = TypeVar("T")


def found_by_building(cfg: CN, wrong: Collection[str]) -> list[str]:
    """A line for each problem; parts that depend on keys with a known one (wrong) are not built."""
    model, found = cfg.MODEL, list[str]()

    def attempt(build: Callable[[], T], *depends_on: str) -> T | None:
        if any(key.startswith(depends_on) for key in wrong):
            return None
        try:
            return build()
        except UserError as error:
            found.append(str(error))
        except (ValueError, TypeError) as error:  # a library's message, without the key
            found.append(f"{depends_on[0]}: {error}")
        except (RuntimeError, OverflowError, MemoryError) as error:  # sizes that no memory holds
            found.append(f"{depends_on[0]} cannot be built with these sizes: {error}")
        return None

    channels = len(model.PIXEL_MEAN)
    for entry in map(TRANSFORM_REGISTRY.entry, TRANSFORM_REGISTRY):
        if cfg.INPUT.get(entry.node, {}).get("ENABLED"):
            read = f"INPUT.{entry.node}", "INPUT.SIZE", "INPUT.INTERPOLATION"
            attempt(partial(require_image, cfg.INPUT, entry, channels), *read)
    attempt(lambda: require_callable(cfg.DATALOADER), "DATALOADER.SAMPLER_TRAIN", "DATALOADER.SET_WEIGHT")
    shaping = ("MODEL.BACKBONE", "MODEL.HEADS", "MODEL.META_ARCHITECTURE", "MODEL.PIXEL", "MODEL.DEVICE", "INPUT")
    network = attempt(lambda: _network(model, cfg.INPUT), *shaping)
    reduced = model.HEADS.NECK_FEAT == "after" and model.HEADS.EMBEDDING_DIM
    size = architecture_of(model).feature_size(network) if network else reduced or model.BACKBONE.FEAT_DIM or 2048
    parts = {} if network is None else dict(network.named_parameters())
    for name in model.LOSSES.NAME:
        read = ("MODEL.LOSSES", *(shaping[:3] if model.HEADS.PFC.ENABLED else ()))
        loss = attempt(lambda name=name: _loss(model, name, size), *read)  # type: ignore[misc]
        parts |= {} if loss is None else {f"losses.{name}": value for name, value in loss.named_parameters()}
    if network is not None and (cfg.SOLVER.FREEZE_ITERS or cfg.SOLVER.FREEZE_EPOCHS):
        attempt(
            lambda: _require_matches(model.FREEZE_LAYERS, parts),
            *("MODEL.FREEZE_LAYERS", "MODEL.META_ARCHITECTURE", "SOLVER.FREEZE_ITERS", "SOLVER.FREEZE_EPOCHS"),
        )
    attempt(lambda: build_miner(model.MINER), "MODEL.MINER")
    trained = nn.ModuleDict({"heads": nn.Linear(1, 1)})
    optimizer = attempt(lambda: build_optimizer(cfg.SOLVER, trained), "SOLVER.OPT", "SOLVER.MOMENTUM", "SOLVER.BASE_LR")
    if optimizer is not None:
        schedule = "SOLVER.SCHED", "SOLVER.MAX_EPOCH"
        attempt(lambda: build_schedule(cfg.SOLVER, optimizer, steps_per_epoch=100), *schedule)
    attempt(lambda: opis_settings(cfg.TEST.OPIS), "TEST.OPIS")
    attempt(lambda: gallery_cohort(cfg.TEST.NORMALIZE), "TEST.NORMALIZE")
    attempt(lambda: verification_evaluator(cfg.TEST.VERIFICATION), "TEST.VERIFICATION")
    return [line for error in found for line in error.splitlines()]


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


def _loss(model: CN, name: str, feature_size: int) -> nn.Module:
    losses = model.LOSSES.clone()
    losses.defrost()
    losses.NAME = (name,)
    classes = max(model.HEADS.NUM_CLASSES, 2)

    def partial_fc(**of_loss: Any) -> nn.Module:
        size: dict[str, Any] = {"embedding_size": model.HEADS.EMBEDDING_DIM or feature_size}
        with torch.device("meta"):
            return build_partial_fc(model.HEADS, num_classes=classes, seed=0, part=(0, 1), **size | of_loss)

    divided = partial_fc if model.HEADS.PFC.ENABLED else None
    return build_losses(losses, num_classes=classes, feature_size=feature_size, partial_fc=divided)[1]


def _require_matches(patterns: list[str], names: Collection[str]) -> None:
    """Raise a UserError for FREEZE_LAYERS that match no parameter; an empty one is FastReID's old "nothing"."""
    known = ", ".join(sorted({name.split(".")[0] for name in names}))
    try:
        unmatched = [pattern for pattern in patterns if pattern and not any(re.match(pattern, name) for name in names)]
    except (re.error, TypeError) as error:
        raise UserError(f"MODEL.FREEZE_LAYERS must be regular expressions: {error}") from error
    if unmatched:
        raise UserError(
            "\n".join(f"MODEL.FREEZE_LAYERS: {p!r} matches no parameter; names begin with {known}" for p in unmatched)
        )
