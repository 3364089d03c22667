"""Backbones: images (B, C, H, W) to feature maps (B, channels, h, w)."""

from collections.abc import Callable
from typing import Any

from torch import nn
from yacs.config import CfgNode as CN

from pml_ext.training.config.load import ConfigError, require
from pml_ext.training.modeling.backbones.convnet import build_convnet
from pml_ext.training.modeling.backbones.iresnet import build_iresnet
from pml_ext.training.modeling.backbones.norms import NORMS, build_norm, check_norm_device
from pml_ext.training.modeling.backbones.resnest import build_resnest
from pml_ext.training.modeling.backbones.resnet import build_resnet, build_resnext
from pml_ext.training.modeling.backbones.timm_backbone import PREFIX, TimmBackbone, build_timm
from pml_ext.training.modeling.backbones.vit import build_vit
from pml_ext.training.modeling.image_sizes import ImageSizes
from pml_ext.training.modeling.weights import ALTERNATIVES, download, imagenet_url, load_pretrained

__all__ = [
    "BACKBONES",
    "NORMS",
    "REFUSED_BACKBONES",
    "build_backbone",
    "build_norm",
    "check_norm_device",
    "find_backbone",
]

# MODEL.BACKBONE.NAME -> what builds it; a built backbone has `num_features` (channels of its map) and
# `only_in_files` (starts of names that a pretrained file may have, or lack, against it)
BACKBONES: dict[str, Callable[..., nn.Module]] = {
    "build_resnet_backbone": build_resnet,
    "build_resnext_backbone": build_resnext,
    "build_resnest_backbone": build_resnest,
    "build_vit_backbone": build_vit,
    "build_iresnet_backbone": build_iresnet,
    "build_convnet_backbone": build_convnet,  # ours
    "timm:<model>": build_timm,  # ours
}
_OTHER_NAMES = "its parameters have other names in timm, so FastReID's weights would not load"
# FastReID's other backbones -> why not, and what instead
REFUSED_BACKBONES = {
    "build_osnet_backbone": "timm has no OSNet",
    "build_repvgg_backbone": f"{_OTHER_NAMES}; to train from other weights: timm:repvgg_a0 to timm:repvgg_b3",
    "build_mobilenetv2_backbone": f"{_OTHER_NAMES}; to train from other weights: timm:mobilenetv2_100",
    "build_mobilenetv3_backbone": f"{_OTHER_NAMES}; to train from other weights: timm:mobilenetv3_large_100",
    "build_shufflenetv2_backbone": "timm has no ShuffleNet",
    "build_regnet_backbone": f"{_OTHER_NAMES}; to train from other weights: timm:regnetx_032 and the like",
    "build_effnet_backbone": f"{_OTHER_NAMES}; to train from other weights: timm:efficientnet_b0 and the like",
    "build_resnet_backbone_distill": "knowledge distillation is not built",
    "build_resnetIR_backbone": "FastFace's config names it, but FastFace has no such backbone",
}


def find_backbone(name: str) -> Callable[..., nn.Module]:
    """The builder of a MODEL.BACKBONE.NAME.

    Raises:
        ConfigError: why FastReID's backbone of this name is not built; or the known names.
    """
    if name in REFUSED_BACKBONES:
        raise ConfigError(f"MODEL.BACKBONE.NAME {name} is not built: {REFUSED_BACKBONES[name]}")
    if name.startswith(PREFIX):
        return build_timm
    require(name, BACKBONES, "MODEL.BACKBONE.NAME")
    return BACKBONES[name]


def build_backbone(options: CN, *, channels: int, sizes: ImageSizes, pretrained: bool) -> nn.Module:
    """A backbone; with `pretrained`, PRETRAIN_PATH's weights or else FastReID's ImageNet file are in it.

    Args:
        options: the config's MODEL.BACKBONE.
        channels: of the images, 1 or 3.
        sizes: of the images.
    Raises:
        ConfigError: an option that the backbone does not have.
        WeightsError: a file of another architecture, or one that cannot be downloaded.
    """
    builder = find_backbone(options.NAME)
    require(options.NORM, NORMS, "MODEL.BACKBONE.NORM")
    url = None if options.PRETRAIN_PATH else imagenet_url(options)
    if pretrained and not options.PRETRAIN_PATH and url is None:
        raise ConfigError(
            f"MODEL.BACKBONE.PRETRAIN: FastReID names no weights to download for {options.NAME}; set {ALTERNATIVES}"
        )
    if builder in (build_convnet, build_timm):
        for key in ("WITH_IBN", "WITH_SE", "WITH_NL"):
            if options[key]:
                raise ConfigError(f"MODEL.BACKBONE.{key} is not an option of {options.NAME}; set it to False")
    backbone: Any = builder(options, channels=channels, sizes=sizes)
    if pretrained:
        load_pretrained(
            backbone.net if isinstance(backbone, TimmBackbone) else backbone,
            str(download(url)) if url else options.PRETRAIN_PATH,
            optional=backbone.only_in_files,
        )
    built: nn.Module = backbone
    return built
