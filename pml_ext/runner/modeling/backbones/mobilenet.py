"""FastReID's MobileNetV2 and MobileNetV3: torchvision's layers under FastReID's names, up to the last map."""

from typing import Any

from torch import Tensor, nn
from torchvision import models
from torchvision.ops import Conv2dNormActivation
from yacs.config import CfgNode as CN

from pml_ext.runner.modeling.backbones.registration import built_in

# DEPTH -> torchvision's network, channels of the last map
_V3 = {"Large": (models.mobilenet_v3_large, 1280), "Small": (models.mobilenet_v3_small, 1024)}


class MobileNet(nn.Module):
    """torchvision's blocks, the first of which is the stem; then a 1×1 convolution, its norm and its activation."""

    def __init__(self, features: nn.Sequential, last: Any, in_channels: int, *, only_in_files: tuple[str, ...]) -> None:
        super().__init__()
        self.features, self.conv, self.only_in_files = features, nn.Sequential(*last), only_in_files
        self.num_features = last.out_channels
        if in_channels != 3:
            stem: Any = features[0]
            stem[0] = nn.Conv2d(in_channels, stem[0].out_channels, 3, 2, 1, bias=False)
            nn.init.kaiming_normal_(stem[0].weight, mode="fan_out")

    def forward(self, x: Tensor) -> Tensor:
        """Images (B, C, H, W) to maps (B, num_features, H / 32, W / 32)."""
        maps: Tensor = self.conv(self.features(x))
        return maps


@built_in("build_mobilenetv2_backbone", depths=("1.0x", "0.75x", "0.5x", "0.35x", "0.25x", "0.1x"))
def build_mobilenetv2(options: CN, *, channels: int, **_: object) -> MobileNet:
    """DEPTH is the width: the factor of all channels but the last map's."""
    width = float(options.DEPTH.removesuffix("x"))
    *features, last = models.MobileNetV2(width_mult=width, round_nearest=4 if width == 0.1 else 8).features
    for block in features[1:]:  # FastReID's blocks are flat
        block.conv = nn.Sequential(
            *(layer for part in block.conv for layer in (part if isinstance(part, nn.Sequential) else [part]))
        )
    return MobileNet(nn.Sequential(*features), last, channels, only_in_files=("classifier.",))


@built_in("build_mobilenetv3_backbone", depths=("Large", "Small"))
def build_mobilenetv3(options: CN, *, channels: int, **_: object) -> MobileNet:
    build, num_features = _V3[options.DEPTH]
    # FastReID's batch norms have torch's defaults, torchvision's do not.
    features = build(weights=None, norm_layer=nn.BatchNorm2d).features
    last = Conv2dNormActivation(features[-1].out_channels, num_features, 1, activation_layer=nn.ReLU6)
    nn.init.kaiming_normal_(last[0].weight, mode="fan_out")
    # An ImageNet file has a classifier and no last convolution.
    return MobileNet(features, last, channels, only_in_files=("classifier.", "conv."))
