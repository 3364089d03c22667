"""Registration of this package's backbones, and the inputs of their builders."""

import logging
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, NamedTuple, TypeVar

import timm
from torch import nn
from yacs.config import CfgNode as CN

from pml_ext.runner.modeling.layers import replace_batch_norms
from pml_ext.runner.modeling.weights.imagenet import TIMM, fetch, is_built_in
from pml_ext.runner.modeling.weights.load import fill, load_pretrained
from pml_ext.runner.registry import BACKBONE_REGISTRY

log = logging.getLogger("pml_ext")

Builder = TypeVar("Builder", bound=Callable[..., nn.Module])


class ImageSizes(NamedTuple):
    """Height and width in pixels, for training and for tests; one number: the shorter side; 0: unchanged."""

    train: list[int]
    test: list[int]

    @classmethod
    def of(cls, options: CN) -> "ImageSizes":
        """Reads the sizes from the config's INPUT; CROP's size if CROP is enabled."""
        if options.CROP.ENABLED:
            size = [options.CROP.SIZE[0], options.CROP.SIZE[-1]]
            return cls(size, size)
        return cls(list(options.SIZE_TRAIN), list(options.SIZE_TEST))


def built_in(name: str, *, depths: Iterable[str] = ()) -> Callable[[Builder], Builder]:
    """Returns a decorator that registers a builder of this package under FastReID's name.

    The builder gets MODEL.BACKBONE, the number of `channels` of an image, and the image `sizes`. Its network has
    `num_features` (channels of its map) and `only_in_files` (prefixes of names that need not be in both the network
    and a pretrained file). The registered function takes the complete config, like a user's.

    depths: the values of DEPTH; none: it has no effect.
    """

    def register(build: Builder) -> Builder:
        @wraps(build)
        def build_from_config(cfg: CN) -> nn.Module:
            options = cfg.MODEL.BACKBONE
            channels = len(cfg.MODEL.PIXEL_MEAN)
            backbone = build(options, channels=channels, sizes=ImageSizes.of(cfg.INPUT))
            replace_batch_norms(backbone, options.NORM)
            if options.PRETRAIN and not cfg.MODEL.WEIGHTS:  # MODEL.WEIGHTS replace every weight afterwards
                _load_weights(backbone, options, channels)
            return backbone

        build_from_config.depths = tuple(depths)  # type: ignore[attr-defined]
        BACKBONE_REGISTRY.register(name)(build_from_config)
        return build

    return register


def _load_weights(backbone: Any, options: CN, channels: int) -> None:
    """Loads a backbone's weights from PRETRAIN_PATH, or else from its published ImageNet file."""
    path, is_download = fetch(options)
    log.info("backbone %s: weights from %s", options.NAME, path)
    if options.NAME.startswith(TIMM) and is_download:  # timm adapts its files to the number of channels
        name, file = options.NAME.removeprefix(TIMM), {"file": path}
        net: Any = timm.create_model(name, True, pretrained_cfg_overlay=file, in_chans=channels, num_classes=0)
        fill(backbone.net, net.state_dict(), path, backbone.only_in_files)
    else:
        load_pretrained(backbone, path, optional=backbone.only_in_files)


def with_trained_norms(cfg: CN) -> CN:
    """Returns the config of a training from its first step: frozen norms of a random backbone become trained ones."""
    options = cfg.MODEL.BACKBONE
    is_random = not options.PRETRAIN and not cfg.MODEL.WEIGHTS and is_built_in(options.NAME)
    if not is_random or options.NORM != "FrozenBN":
        return cfg
    log.warning(
        "warning: MODEL.BACKBONE.NORM FrozenBN needs loaded weights: with random ones, residual branches that begin at "
        "zero would stay zero. The norms are trained: NORM BN"
    )
    cfg = cfg.clone()
    cfg.merge_from_list(["MODEL.BACKBONE.NORM", "BN"])
    return cfg
