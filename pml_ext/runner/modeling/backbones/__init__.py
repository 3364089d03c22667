"""Backbones: images (B, C, H, W) to feature maps (B, channels, h, w)."""

from collections.abc import Callable
from typing import Any

from torch import nn
from yacs.config import CfgNode as CN

from pml_ext.runner.config.rules import require_rules
from pml_ext.runner.modeling.backbones.convnet import build_convnet
from pml_ext.runner.modeling.backbones.iresnet import build_iresnet
from pml_ext.runner.modeling.backbones.mobilenet import build_mobilenetv2, build_mobilenetv3
from pml_ext.runner.modeling.backbones.norms import build_norm
from pml_ext.runner.modeling.backbones.osnet import build_osnet
from pml_ext.runner.modeling.backbones.regnet import build_regnet
from pml_ext.runner.modeling.backbones.repvgg import build_repvgg
from pml_ext.runner.modeling.backbones.resnest import build_resnest
from pml_ext.runner.modeling.backbones.resnet import build_resnet, build_resnet_distill, build_resnext
from pml_ext.runner.modeling.backbones.shufflenetv2 import build_shufflenetv2
from pml_ext.runner.modeling.backbones.timm_backbone import build_timm
from pml_ext.runner.modeling.backbones.torchvision_backbone import build_torchvision
from pml_ext.runner.modeling.backbones.vit import build_vit
from pml_ext.runner.modeling.image_sizes import ImageSizes
from pml_ext.runner.modeling.names import TIMM, TORCHVISION
from pml_ext.runner.modeling.rules import BACKBONE_RULES
from pml_ext.runner.modeling.weights.imagenet import download, has_weights, imagenet_url
from pml_ext.runner.modeling.weights.load import load_pretrained

__all__ = [
    "BACKBONES",
    "build_backbone",
    "build_norm",
]

# MODEL.BACKBONE.NAME -> what builds it; a built backbone has `num_features` (channels of its map) and
# `only_in_files` (starts of names that it and a pretrained file need not have in common)
BACKBONES: dict[str, Callable[..., nn.Module]] = {
    "build_resnet_backbone": build_resnet,
    "build_resnet_backbone_distill": build_resnet_distill,
    "build_resnext_backbone": build_resnext,
    "build_resnest_backbone": build_resnest,
    "build_vit_backbone": build_vit,
    "build_iresnet_backbone": build_iresnet,
    "build_osnet_backbone": build_osnet,
    "build_mobilenetv2_backbone": build_mobilenetv2,
    "build_mobilenetv3_backbone": build_mobilenetv3,
    "build_shufflenetv2_backbone": build_shufflenetv2,
    "build_regnet_backbone": build_regnet,
    "build_repvgg_backbone": build_repvgg,
    "build_convnet_backbone": build_convnet,
    "timm:<model>": build_timm,
    "torchvision:<model>": build_torchvision,
}
_OF_LIBRARIES: dict[str, Callable[..., nn.Module]] = {TIMM: build_timm, TORCHVISION: build_torchvision}


def build_backbone(options: CN, *, channels: int, sizes: ImageSizes, pretrained: bool) -> nn.Module:
    """A backbone; with `pretrained`, PRETRAIN_PATH's weights or else its published ImageNet file are in it.

    Args:
        options: the config's MODEL.BACKBONE.
        channels: of the images, 1 or 3.
        sizes: of the images.
    Raises:
        UserError: an option that the backbone does not have; a file of another architecture, or one that cannot be
            downloaded.
    """
    require_rules(options, "MODEL.BACKBONE", [*BACKBONE_RULES, has_weights] if pretrained else BACKBONE_RULES)
    builder = next((b for start, b in _OF_LIBRARIES.items() if options.NAME.startswith(start)), None)
    builder = builder or BACKBONES[options.NAME]
    backbone: Any = builder(options, channels=channels, sizes=sizes)
    if pretrained:
        url = None if options.PRETRAIN_PATH else imagenet_url(options)
        path = str(download(url)) if url else options.PRETRAIN_PATH
        load_pretrained(backbone, path, optional=backbone.only_in_files)
    built: nn.Module = backbone
    return built
