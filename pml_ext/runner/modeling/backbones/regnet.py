"""RegNetX and RegNetY with FastReID's parameter names, those of its authors' files."""

import math
from typing import NamedTuple

from torch import Tensor, nn
from yacs.config import CfgNode as CN

from pml_ext.runner.modeling.backbones.norms import replace_batch_norms
from pml_ext.runner.modeling.backbones.resnet import warn_of_unused

_STEM, _MULTIPLE = 32, 8


class Design(NamedTuple):
    """Depth, first width, slope and quantisation of the widths, channels a group (Radosavovic et al., CVPR 2020)."""

    depth: int
    first: int
    slope: float
    factor: float
    group: int


# DEPTH: millions of multiplications, and x, or y with squeeze-and-excitation
DESIGNS = {
    "200x": Design(13, 24, 36.44, 2.49, 8),
    "400x": Design(22, 24, 24.48, 2.54, 16),
    "800x": Design(16, 56, 35.73, 2.28, 16),
    "1600x": Design(18, 80, 34.01, 2.25, 24),
    "3200x": Design(25, 88, 26.31, 2.25, 48),
    "4000x": Design(23, 96, 38.65, 2.43, 40),
    "6400x": Design(17, 184, 60.83, 2.07, 56),
    "200y": Design(13, 24, 36.44, 2.49, 8),
    "400y": Design(16, 48, 27.89, 2.09, 8),
    "800y": Design(14, 56, 38.84, 2.4, 16),
    "1600y": Design(27, 48, 20.71, 2.65, 24),
    "3200y": Design(21, 80, 42.63, 2.66, 24),
    "4000y": Design(22, 96, 31.41, 2.24, 64),
    "6400y": Design(25, 112, 33.22, 2.27, 72),
}


def stages(design: Design) -> list[tuple[int, int]]:
    """Width and number of blocks of each stage.

    Block i has the width first + i · slope, rounded to first · factor^k for a whole k, then to a multiple of 8. Blocks
    of one width are a stage, whose width is then made a multiple of its groups'.
    """
    blocks: dict[int, int] = {}
    for i in range(design.depth):
        power = round(math.log(1 + i * design.slope / design.first) / math.log(design.factor))
        width = round(design.first * design.factor**power / _MULTIPLE) * _MULTIPLE
        blocks[width] = blocks.get(width, 0) + 1
    grouped = ((width, min(design.group, width), count) for width, count in blocks.items())
    return [(round(width / group) * group, count) for width, group, count in grouped]


class SqueezeExcitation(nn.Module):
    """Channels weighted by a small network of their means."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        layers = (
            nn.Conv2d(channels, squeezed, 1),
            nn.ReLU(inplace=True),
            nn.Conv2d(squeezed, channels, 1),
            nn.Sigmoid(),
        )
        self.f_ex = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        weights: Tensor = self.f_ex(x.mean(dim=(2, 3), keepdim=True))
        return x * weights


class Block(nn.Module):
    """1×1, grouped 3×3 and 1×1 convolution without a bottleneck, and a shortcut around them."""

    def __init__(self, channels: int, out: int, *, stride: int, group: int, squeeze: bool) -> None:
        super().__init__()
        self.proj = self.bn = None
        if channels != out or stride != 1:
            self.proj, self.bn = nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out)
        self.f = nn.Sequential()
        self.f.add_module("a", nn.Conv2d(channels, out, 1, bias=False))
        self.f.add_module("a_bn", nn.BatchNorm2d(out))
        self.f.add_module("a_relu", nn.ReLU(inplace=True))
        self.f.add_module("b", nn.Conv2d(out, out, 3, stride, 1, groups=out // min(group, out), bias=False))
        self.f.add_module("b_bn", nn.BatchNorm2d(out))
        self.f.add_module("b_relu", nn.ReLU(inplace=True))
        if squeeze:
            self.f.add_module("se", SqueezeExcitation(out, round(channels / 4)))
        self.f.add_module("c", nn.Conv2d(out, out, 1, bias=False))
        self.f.add_module("c_bn", nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.proj is None or self.bn is None else self.bn(self.proj(x))
        out: Tensor = shortcut + self.f(x)
        return out.relu()


class RegNet(nn.Sequential):
    """Stem and stages: images (B, C, H, W) to maps (B, num_features, h, w).

    Args:
        depth: a key of DESIGNS.
        in_channels: of the images.
        last_stride: of the last stage, 1 or 2.
    """

    only_in_files = ("head.",)

    def __init__(self, depth: str, in_channels: int, *, last_stride: int) -> None:
        super().__init__()
        design, channels = DESIGNS[depth], _STEM
        self.stem = nn.Sequential()
        self.stem.add_module("conv", nn.Conv2d(in_channels, _STEM, 3, 2, 1, bias=False))
        self.stem.add_module("bn", nn.BatchNorm2d(_STEM))
        self.stem.add_module("relu", nn.ReLU(inplace=True))
        of_stages = stages(design)
        for number, (width, count) in enumerate(of_stages, start=1):
            stage, first = nn.Sequential(), last_stride if number == len(of_stages) else 2
            for i in range(count):
                stride, squeeze = 1 if i else first, depth.endswith("y")
                block = Block(channels, width, stride=stride, group=design.group, squeeze=squeeze)
                stage.add_module(f"b{i + 1}", block)
                channels = width
            self.add_module(f"s{number}", stage)
        self.num_features = channels
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.normal_(module.weight, std=math.sqrt(2 / (module.kernel_size[0] ** 2 * module.out_channels)))


def build_regnet(options: CN, *, channels: int, **_: object) -> RegNet:
    """DEPTH 200x to 6400x and 200y to 6400y with LAST_STRIDE and NORM."""
    warn_of_unused(options, "WITH_IBN", "WITH_SE", "WITH_NL")
    net = RegNet(options.DEPTH, channels, last_stride=options.LAST_STRIDE)
    replace_batch_norms(net, options.NORM)
    return net
