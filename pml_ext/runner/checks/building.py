"""Problems of a config that only building its parts can find; large parts are built on torch's meta device."""

import re
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from yacs.config import CfgNode as CN

from pml_ext._errors import UserError
from pml_ext.runner.data.samplers import require_callable
from pml_ext.runner.data.transforms import require_image
from pml_ext.runner.evaluation.evaluate import gallery_cohort, opis_settings, verification_evaluator
from pml_ext.runner.modeling.architectures import build_model
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
    network = attempt(lambda: _network(cfg), *shaping)
    sizes = _output_sizes(cfg, network)
    parts = {} if network is None else dict(network.named_parameters())
    for name in model.LOSSES.NAME:
        read = ("MODEL.LOSSES", *(shaping[:3] if model.HEADS.PFC.ENABLED else ()))
        loss = attempt(lambda name=name: _loss(model, name, sizes), *read)  # type: ignore[misc]
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


def _network(cfg: CN) -> nn.Module:
    """The architecture on torch's meta device: shapes without memory, weights or arithmetic.

    It embeds an image of each fixed size, unless it wants more of a batch than that.
    """
    with torch.device("meta"):
        network = build_model(cfg, num_classes=max(cfg.MODEL.HEADS.NUM_CLASSES, 2)).eval()
        for size in ImageSizes.of(cfg.INPUT):
            if size[0] > 0:
                _run(network, _batch(cfg, size, count=1))
    return network


def _output_sizes(cfg: CN, network: nn.Module | None) -> dict[str, int]:
    """Columns of the architecture's `features` and `cls_outputs` in training, or what the config lets one guess."""
    model, (size, _) = cfg.MODEL, ImageSizes.of(cfg.INPUT)
    reduced = model.HEADS.EMBEDDING_DIM or model.BACKBONE.FEAT_DIM or 2048
    guessed = {"features": reduced, "cls_outputs": reduced}
    if network is None or not hasattr(network, "compute_outputs") or size[0] == 0:
        return guessed
    with torch.device("meta"):
        outputs = _run(network.train(), _batch(cfg, size, count=2), "compute_outputs") or {}
    for name in guessed.keys() & outputs.keys():
        output = outputs[name]
        guessed[name] = int((output if isinstance(output, Tensor) else output[0]).shape[1])
    return guessed


def _batch(cfg: CN, size: list[int], *, count: int) -> dict[str, Any]:
    images = torch.zeros(count, len(cfg.MODEL.PIXEL_MEAN), size[0], size[-1])
    numbers = torch.zeros(count, dtype=torch.long)
    return {"images": images, "targets": numbers, "camids": numbers, "img_paths": [""] * count}


def _run(network: nn.Module, batch: dict[str, Any], method: str = "__call__") -> Any:
    """Outputs of a batch; None if the network cannot run without data: it has no shapes, or reads further columns."""
    try:
        return getattr(network, method)(batch)
    except (NotImplementedError, KeyError):
        return None


def _loss(model: CN, name: str, sizes: dict[str, int]) -> nn.Module:
    losses = model.LOSSES.clone()
    losses.defrost()
    losses.NAME = (name,)
    classes = max(model.HEADS.NUM_CLASSES, 2)

    def partial_fc(**of_loss: Any) -> nn.Module:
        with torch.device("meta"):
            return build_partial_fc(model.HEADS, num_classes=classes, seed=0, part=(0, 1), **of_loss)

    divided = partial_fc if model.HEADS.PFC.ENABLED else None
    return build_losses(losses, num_classes=classes, output_size=sizes.__getitem__, partial_fc=divided)[1]


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
