"""MobileNetV2 with FastReID's parameter names, which differ from torchvision's and timm's."""

import math

from torch import Tensor, nn
from yacs.config import CfgNode as CN

from pml_ext.runner.modeling.backbones.norms import replace_batch_norms
from pml_ext.runner.modeling.backbones.resnet import warn_of_unused

# DEPTH -> factor of all channels but the last map's
WIDTHS = {"1.0x": 1.0, "0.75x": 0.75, "0.5x": 0.5, "0.35x": 0.35, "0.25x": 0.25, "0.1x": 0.1}
CHANNELS_OF_MAP = 1280
# expansion, channels, blocks, stride of the first (Sandler et al., CVPR 2018, table 2)
_STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


class Block(nn.Module):
    """Expansion, a 3×3 convolution of each channel by itself, projection; a shortcut where the shapes agree."""

    def __init__(self, channels: int, out: int, *, stride: int, expansion: int) -> None:
        super().__init__()
        middle = channels * expansion
        layers = conv(channels, middle, 1) if expansion > 1 else []
        layers += conv(middle, middle, 3, stride=stride, groups=middle) + conv(middle, out, 1)[:-1]
        self.conv = nn.Sequential(*layers)
        self.has_shortcut = stride == 1 and channels == out

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.conv(x)
        return x + out if self.has_shortcut else out


class MobileNetV2(nn.Module):
    """Up to the last map.

    Args:
        width: a value of WIDTHS.
        in_channels: of the images.
    """

    only_in_files = ("classifier.",)

    def __init__(self, width: float, in_channels: int) -> None:
        super().__init__()
        multiple = 4 if width == 0.1 else 8
        channels = rounded(32 * width, multiple)
        layers: list[nn.Module] = [nn.Sequential(*conv(in_channels, channels, 3, stride=2))]
        for expansion, wide, blocks, stride in _STAGES:
            out = rounded(wide * width, multiple)
            for i in range(blocks):
                layers.append(Block(channels, out, stride=1 if i else stride, expansion=expansion))
                channels = out
        self.features = nn.Sequential(*layers)
        self.conv = nn.Sequential(*conv(channels, CHANNELS_OF_MAP, 1))
        self.num_features = CHANNELS_OF_MAP
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                size = module.kernel_size[0] * module.kernel_size[1] * module.out_channels
                nn.init.normal_(module.weight, std=math.sqrt(2 / size))

    def forward(self, x: Tensor) -> Tensor:
        """Images (B, C, H, W) to maps (B, 1280, H / 32, W / 32)."""
        maps: Tensor = self.conv(self.features(x))
        return maps


def conv(channels: int, out: int, kernel: int, *, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    """Convolution without bias, batch norm, ReLU up to 6."""
    convolution = nn.Conv2d(channels, out, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [convolution, nn.BatchNorm2d(out), nn.ReLU6(inplace=True)]


def rounded(channels: float, multiple: int) -> int:
    """To the nearest multiple, but not below nine tenths."""
    nearest = max(multiple, int(channels + multiple / 2) // multiple * multiple)
    return nearest + multiple if nearest < 0.9 * channels else nearest


def build_mobilenetv2(options: CN, *, channels: int, **_: object) -> MobileNetV2:
    """DEPTH 1.0x, 0.75x, 0.5x, 0.35x, 0.25x, 0.1x with NORM."""
    warn_of_unused(options, "WITH_IBN", "WITH_SE", "WITH_NL")
    net = MobileNetV2(WIDTHS[options.DEPTH], channels)
    replace_batch_norms(net, options.NORM)
    return net
