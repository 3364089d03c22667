"""MobileFaceNet (Chen et al., arXiv 1804.07573) as insightface has it: `mbf`, and four times as wide `mbf_large`."""

from torch import Tensor, nn
from yacs.config import CfgNode as CN

from pml_ext.runner.modeling.backbones.registration import built_in

_SHAPES = {"mbf": ((1, 4, 6, 2), 2), "mbf_large": ((2, 8, 12, 4), 4)}  # blocks of each stage, width


class Layers(nn.Module):
    """Layers in a row, under insightface's name; a residual one adds its input."""

    def __init__(self, *layers: nn.Module, residual: bool = False) -> None:
        super().__init__()
        self.layers, self.residual = nn.Sequential(*layers), residual

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x)
        return x + y if self.residual else y


def _conv(before: int, after: int, side: int = 1, *, stride: int = 1, groups: int = 1, prelu: bool = True) -> Layers:
    conv = nn.Conv2d(before, after, side, stride, 1 if side == 3 else 0, groups=groups, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    return Layers(conv, nn.BatchNorm2d(after), *([nn.PReLU(after)] if prelu else []))


def _depthwise(before: int, after: int, groups: int, *, stride: int = 2, residual: bool = False) -> Layers:
    return Layers(
        _conv(before, groups),
        _conv(groups, groups, 3, stride=stride, groups=groups),
        _conv(groups, after, prelu=False),
        residual=residual,
    )


def _stage(channels: int, blocks: int, groups: int) -> Layers:
    return Layers(*(_depthwise(channels, channels, groups, stride=1, residual=True) for _ in range(blocks)))


@built_in("build_mobilefacenet_backbone", depths=("mbf", "mbf_large"), note="ours: insightface's, for 112×112 images")
class MobileFaceNet(nn.Module):
    """Four halvings, and at last each channel's own weights for the 7×7 places of a 112×112 face."""

    only_in_files = ("features.layers.2.", "features.layers.3.")  # the embedding: MODEL.WEIGHTS loads it into HEADS
    num_features = 512

    def __init__(self, options: CN, *, channels: int, **_: object) -> None:
        super().__init__()
        blocks, scale = _SHAPES[options.DEPTH]
        narrow, wide = 64 * scale, 128 * scale
        first = _conv(narrow, narrow, 3, groups=64) if blocks[0] == 1 else _stage(narrow, blocks[0], 128)
        self.layers = nn.Sequential(
            _conv(channels, narrow, 3, stride=2),
            first,
            _depthwise(narrow, narrow, 128),
            _stage(narrow, blocks[1], 128),
            _depthwise(narrow, wide, 256),
            _stage(wide, blocks[2], 256),
            _depthwise(wide, wide, 512),
            _stage(wide, blocks[3], 256),
        )
        self.conv_sep = _conv(wide, 512)
        self.features = Layers(_conv(512, 512, 7, groups=512, prelu=False))

    def forward(self, x: Tensor) -> Tensor:
        """Images (B, C, 112, 112) to maps (B, 512, 1, 1)."""
        maps: Tensor = self.features(self.conv_sep(self.layers(x)))
        return maps
