"""Backbones, which map images (B, C, H, W) to feature maps (B, channels, h, w)."""

from torch import nn
from yacs.config import CfgNode as CN

from pml_ext.runner.modeling.backbones import (  # noqa: F401  # register
    convnet,
    iresnet,
    resnet,
    timm_networks,
    torchvision_networks,
    vit,
)
from pml_ext.runner.registry import BACKBONE_REGISTRY

__all__ = ["build_backbone", "build_resnet_backbone"]


def build_backbone(cfg: CN) -> nn.Module:
    """Builds the backbone of MODEL.BACKBONE.NAME, with its pretrained weights if PRETRAIN is True."""
    backbone: nn.Module = BACKBONE_REGISTRY.get(cfg.MODEL.BACKBONE.NAME)(cfg)
    return backbone


def build_resnet_backbone(cfg: CN) -> nn.Module:
    """Builds FastReID's ResNet of MODEL.BACKBONE, for user-defined backbones that contain it."""
    backbone: nn.Module = BACKBONE_REGISTRY.get("build_resnet_backbone")(cfg)
    return backbone
