"""How the package's own backbones register."""

import logging
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from torch import nn
from yacs.config import CfgNode as CN

from pml_ext.runner.modeling.backbones.norms import replace_batch_norms
from pml_ext.runner.modeling.image_sizes import ImageSizes
from pml_ext.runner.modeling.names import TIMM, BackboneFacts
from pml_ext.runner.modeling.weights.imagenet import fetch, timm_weights, weights_path
from pml_ext.runner.modeling.weights.load import fill, load_pretrained
from pml_ext.runner.registry import BACKBONE_REGISTRY

log = logging.getLogger("pml_ext")

Builder = TypeVar("Builder", bound=Callable[..., nn.Module])


def built_in(name: str, **facts: Any) -> Callable[[Builder], Builder]:
    """A decorator that registers a builder of this package under FastReID's name.

    The builder gets MODEL.BACKBONE, the number of `channels` of an image, and the image `sizes`. Its network has
    `num_features` (channels of its map) and `only_in_files` (starts of names that it and a pretrained file need not
    have in common). What is registered is a function of the whole config, as a user's is.
    """
    known = BackboneFacts(**facts)

    def register(build: Builder) -> Builder:
        @wraps(build)
        def build_from_config(cfg: CN) -> nn.Module:
            options = cfg.MODEL.BACKBONE
            switches = [key for key in ("WITH_IBN", "WITH_SE", "WITH_NL") if key not in known.options]
            warn_of_unused(options, *switches)
            channels = len(cfg.MODEL.PIXEL_MEAN)
            backbone = build(options, channels=channels, sizes=ImageSizes.of(cfg.INPUT))
            if "NORM" in known.options:
                replace_batch_norms(backbone, options.NORM)
            if options.PRETRAIN and not cfg.MODEL.WEIGHTS:  # which replace every weight afterwards
                _load_weights(backbone, options, channels)
            return backbone

        build_from_config.facts = known  # type: ignore[attr-defined]
        BACKBONE_REGISTRY.register(name)(build_from_config)
        return build

    return register


def _load_weights(backbone: Any, options: CN, channels: int) -> None:
    """Fill a backbone from PRETRAIN_PATH, or else from its published ImageNet file."""
    path = weights_path(options) or str(fetch(options))
    log.info("backbone %s: weights from %s", options.NAME, path)
    if options.NAME.startswith(TIMM) and not weights_path(options):
        fill(backbone.net, timm_weights(options, channels), path, backbone.only_in_files)
    else:
        load_pretrained(backbone, path, optional=backbone.only_in_files)


def warn_of_unused(options: CN, *keys: str, on: str = "") -> None:
    """Warn of options that FastReID's YAMLs inherit and that the backbone, or its use (`on`), does not have."""
    for key in keys:
        if options[key]:
            log.warning("MODEL.BACKBONE.%s has no effect on %s, as in FastReID", key, on or options.NAME)
