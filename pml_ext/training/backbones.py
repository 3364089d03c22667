"""Backbones: images (B, C, H, W) to feature maps (B, FEAT_DIM, h, w)."""

import re
from collections.abc import Callable
from typing import cast

import timm
from torch import Tensor, nn
from yacs.config import CfgNode as CN

from pml_ext.training.config import ConfigError, require
from pml_ext.training.weights import load_weights

BACKBONES = {
    "build_convnet_backbone": "blocks of convolution, norm, ReLU and pooling, for small pictures (ours)",
    "timm:<model>": "any convolutional timm network (ours)",
}
NORMS = ("BN", "GN", "none")


def build_norm(name: str, channels: int) -> nn.Module:
    """BN, GN (32 channels a group at most, no dependence on the batch) or nothing."""
    require(name, NORMS, "NORM")
    if name == "BN":
        return nn.BatchNorm2d(channels)
    if name == "GN":
        return nn.GroupNorm(max(1, channels // 32), channels)
    return nn.Identity()


class ConvNet(nn.Sequential):
    """Blocks of convolution 3×3, norm, ReLU and 2×2 max-pool: for small pictures, trained from scratch.

    Pooling stops where a side would fall under 2, so 8×8 digits pass four blocks too.
    """

    def __init__(self, in_channels: int, channels: int, depth: int, norm: str) -> None:
        blocks: list[nn.Module] = []
        for i in range(depth):
            blocks += [
                nn.Conv2d(in_channels if i == 0 else channels, channels, 3, padding=1, bias=norm == "none"),
                build_norm(norm, channels),
                nn.ReLU(inplace=True),
                _PoolWhileLarge(),
            ]
        super().__init__(*blocks)


class _PoolWhileLarge(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.max_pool2d(x, 2) if min(x.shape[-2:]) >= 4 else x


class TimmBackbone(nn.Module):
    """Any convolutional timm network, its feature map before pooling."""

    def __init__(self, name: str, in_channels: int) -> None:
        super().__init__()
        if not timm.is_model(name):
            near = timm.list_models(f"*{name.split('_')[0]}*")[:10]
            raise ConfigError(f"MODEL.BACKBONE.NAME: timm {timm.__version__} has no model {name!r}; near: {near}")
        # Weights come from PRETRAIN_PATH, never from a hub behind the user's back.
        self.net = timm.create_model(name, pretrained=False, in_chans=in_channels, num_classes=0)
        self.feature_size = self.net.num_features

    def forward(self, x: Tensor) -> Tensor:
        features = cast(Callable[[Tensor], Tensor], self.net.forward_features)(x)
        if features.ndim != 4:
            raise ConfigError(f"timm backbone gives {tuple(features.shape)} features; expected a map (B, C, h, w)")
        return features


def build_backbone(cfg: CN) -> nn.Module:
    """The backbone named by MODEL.BACKBONE, with PRETRAIN_PATH's weights where PRETRAIN is set."""
    options, in_channels = cfg.MODEL.BACKBONE, len(cfg.MODEL.PIXEL_MEAN)
    if options.FEAT_DIM < 1:
        raise ConfigError(f"MODEL.BACKBONE.FEAT_DIM must be 1 or more; got {options.FEAT_DIM}")
    backbone: nn.Module
    if options.NAME.startswith("timm:"):
        timm_backbone = TimmBackbone(options.NAME.removeprefix("timm:"), in_channels)
        if timm_backbone.feature_size != options.FEAT_DIM:
            raise ConfigError(
                f"MODEL.BACKBONE.FEAT_DIM must be {timm_backbone.feature_size} for {options.NAME}; "
                f"got {options.FEAT_DIM}"
            )
        backbone, target = timm_backbone, timm_backbone.net
    else:
        require(options.NAME, BACKBONES, "MODEL.BACKBONE.NAME")
        depth = re.fullmatch(r"(\d+)x", options.DEPTH)
        if not depth or not 1 <= int(depth[1]) <= 8:
            raise ConfigError(f"MODEL.BACKBONE.DEPTH must be '1x' to '8x' for {options.NAME}; got {options.DEPTH!r}")
        backbone = target = ConvNet(in_channels, options.FEAT_DIM, int(depth[1]), options.NORM)
    if options.PRETRAIN:
        if not options.PRETRAIN_PATH:
            raise ConfigError("MODEL.BACKBONE.PRETRAIN needs MODEL.BACKBONE.PRETRAIN_PATH, a local weights file")
        load_weights(target, options.PRETRAIN_PATH)
    return backbone
