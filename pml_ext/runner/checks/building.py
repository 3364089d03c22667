"""What only those who build find wrong with a config; everything is built, on torch's meta device where it is large."""

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import nn
from yacs.config import CfgNode as CN

from pml_ext._errors import UserError
from pml_ext.runner.checks.certain import DEPENDS_ON
from pml_ext.runner.checks.freeze_layers import patterns_without_parameters
from pml_ext.runner.data.transforms import build_transform
from pml_ext.runner.evaluation.evaluate import opis_settings, verification_evaluator
from pml_ext.runner.modeling.architectures import architecture_of
from pml_ext.runner.modeling.image_sizes import ImageSizes
from pml_ext.runner.modeling.losses.factory import build_losses, build_miner

T = TypeVar("T")


def found_by_building(cfg: CN, wrong: set[str]) -> list[str]:
    """A line for each problem.

    Args:
        wrong: keys with a problem that is known already; what depends on them is not built.
    """
    model, found = cfg.MODEL, list[str]()

    def attempt(build: Callable[[], T], part: str) -> T | None:
        depends_on = DEPENDS_ON[part]
        if any(key.startswith(depends_on) for key in wrong):
            return None
        try:
            return build()
        except UserError as error:
            found.append(str(error))
        except (RuntimeError, OverflowError, MemoryError) as error:  # sizes that no memory holds
            found.append(f"{depends_on[0]} cannot be built with these sizes: {error}")
        return None

    channels = len(model.PIXEL_MEAN)
    attempt(lambda: build_transform(cfg.INPUT, training=True, channels=channels), "transform")
    if "MODEL.META_ARCHITECTURE" in wrong:  # the parts that every architecture has may have mistakes of their own
        model = model.clone()
        model.defrost()
        model.META_ARCHITECTURE = "Baseline"
    network = attempt(lambda: _network(model, cfg.INPUT), "network")
    reduced = model.HEADS.NECK_FEAT == "after" and model.HEADS.EMBEDDING_DIM
    size = architecture_of(model).feature_size(network) if network else reduced or model.BACKBONE.FEAT_DIM
    parts = {} if network is None else dict(network.named_parameters())
    for name in model.LOSSES.NAME:
        loss = attempt(lambda name=name: _loss(model, name, size), "losses")  # type: ignore[misc]
        parts |= {} if loss is None else {f"losses.{name}": value for name, value in loss.named_parameters()}
    freezes = cfg.SOLVER.FREEZE_ITERS or cfg.SOLVER.FREEZE_EPOCHS
    if network is not None and freezes and not any(key.startswith(DEPENDS_ON["freezing"]) for key in wrong):
        found += patterns_without_parameters(model.FREEZE_LAYERS, parts)
    attempt(lambda: build_miner(model.MINER), "miner")
    attempt(lambda: opis_settings(cfg.TEST.OPIS), "opis")
    attempt(lambda: verification_evaluator(cfg.TEST.VERIFICATION), "verification")
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


def _loss(model: CN, name: str, feature_size: int) -> nn.Module:
    losses = model.LOSSES.clone()
    losses.defrost()
    losses.NAME = (name,)
    return build_losses(losses, num_classes=max(model.HEADS.NUM_CLASSES, 2), feature_size=feature_size)[1]
