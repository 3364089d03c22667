"""Backbones: images (B, C, H, W) to feature maps (B, channels, h, w)."""

import importlib
import logging
from typing import Any

from torch import nn
from yacs.config import CfgNode as CN

from pml_ext.runner.modeling.backbones.norms import build_norm, replace_batch_norms
from pml_ext.runner.modeling.image_sizes import ImageSizes
from pml_ext.runner.modeling.names import BACKBONES, LIBRARIES, TIMM
from pml_ext.runner.modeling.weights.imagenet import fetch, timm_weights, weights_path
from pml_ext.runner.modeling.weights.load import fill, load_pretrained

__all__ = ["build_backbone", "build_norm", "warn_of_unused"]

log = logging.getLogger("pml_ext")


def build_backbone(options: CN, *, channels: int, sizes: ImageSizes, pretrained: bool) -> nn.Module:
    """A backbone; with `pretrained`, filled from PRETRAIN_PATH or else from its published ImageNet file.

    It has `num_features` (channels of its map) and `only_in_files` (starts of names that it and a pretrained file need
    not have in common).
    """
    library = next((f"{start}<model>" for start in LIBRARIES if options.NAME.startswith(start)), None)
    entry = BACKBONES[library or options.NAME]
    warn_of_unused(options, *(key for key in ("WITH_IBN", "WITH_SE", "WITH_NL") if key not in entry.options))
    module, _, builder = entry.builder.partition(":")
    build = getattr(importlib.import_module(f"{__name__}.{module}"), builder)
    backbone: Any = build(options, channels=channels, sizes=sizes)
    if "NORM" in entry.options:
        replace_batch_norms(backbone, options.NORM)
    if pretrained:
        path = weights_path(options) or str(fetch(options))
        log.info("backbone %s: weights from %s", options.NAME, path)
        if options.NAME.startswith(TIMM) and not weights_path(options):
            fill(backbone.net, timm_weights(options, channels), path, backbone.only_in_files)
        else:
            load_pretrained(backbone, path, optional=backbone.only_in_files)
    built: nn.Module = backbone
    return built


def warn_of_unused(options: CN, *keys: str, on: str = "") -> None:
    """Warn of options that FastReID's YAMLs inherit and that the backbone, or its use (`on`), does not have."""
    for key in keys:
        if options[key]:
            log.warning("MODEL.BACKBONE.%s has no effect on %s, as in FastReID", key, on or options.NAME)
