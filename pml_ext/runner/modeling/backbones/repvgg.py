"""RepVGG as it is trained, with three branches in each block, and FastReID's parameter names; timm's differ."""

from torch import Tensor, nn
from yacs.config import CfgNode as CN

from pml_ext.runner.modeling.backbones.norms import replace_batch_norms
from pml_ext.runner.modeling.backbones.resnet import warn_of_unused

# first letter of DEPTH -> blocks of the four stages (Ding et al., CVPR 2021, table 2)
_BLOCKS = {"A": (2, 4, 14, 1), "B": (4, 6, 16, 1)}
# first two letters -> factors of the channels of the first three stages and of the last; a g2 or g4 behind them is the
# number of groups of every second block
_WIDTHS = {
    "A0": (0.75, 2.5), "A1": (1, 2.5), "A2": (1.5, 2.75), "B0": (1, 2.5), "B1": (2, 4), "B2": (2.5, 5), "B3": (3, 5),
}  # fmt: skip
_CHANNELS = (64, 128, 256, 512)


class Block(nn.Module):
    """3×3 convolution, 1×1 convolution and, where the shapes agree, the map itself, each with a norm, added."""

    def __init__(self, channels: int, out: int, *, stride: int, groups: int) -> None:
        super().__init__()
        self.rbr_identity = nn.BatchNorm2d(channels) if channels == out and stride == 1 else None
        self.rbr_dense = _conv(channels, out, 3, stride, groups)
        self.rbr_1x1 = _conv(channels, out, 1, stride, groups)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.rbr_dense(x) + self.rbr_1x1(x)
        if self.rbr_identity is not None:
            out = out + self.rbr_identity(x)
        return out.relu()


class RepVGG(nn.Sequential):
    """Images (B, C, H, W) to maps (B, num_features, h, w).

    Args:
        depth: A0 to A2, B0 to B3, B1g2 and so on.
        in_channels: of the images.
        last_stride: of the last stage, 1 or 2.
    """

    only_in_files = ("linear.",)

    def __init__(self, depth: str, in_channels: int, *, last_stride: int) -> None:
        super().__init__()
        factor, last_factor = _WIDTHS[depth[:2]]
        widths = [int(c * f) for c, f in zip(_CHANNELS, (factor, factor, factor, last_factor), strict=True)]
        channels, number = min(_CHANNELS[0], widths[0]), 0
        self.stage0 = Block(in_channels, channels, stride=2, groups=1)
        for stage, (width, count) in enumerate(zip(widths, _BLOCKS[depth[0]], strict=True), start=1):
            blocks = list[Block]()
            for i in range(count):
                number += 1
                groups = int(depth[3:] or 1) if number % 2 == 0 else 1
                stride = 1 if i else last_stride if stage == len(widths) else 2
                blocks.append(Block(channels, width, stride=stride, groups=groups))
                channels = width
            self.add_module(f"stage{stage}", nn.Sequential(*blocks))
        self.num_features = channels


def _conv(channels: int, out: int, kernel: int, stride: int, groups: int) -> nn.Sequential:
    layers = nn.Sequential()
    layers.add_module("conv", nn.Conv2d(channels, out, kernel, stride, kernel // 2, groups=groups, bias=False))
    layers.add_module("bn", nn.BatchNorm2d(out))
    return layers


def build_repvgg(options: CN, *, channels: int, **_: object) -> RepVGG:
    """DEPTH A0, A1, A2, B0, B1, B1g2, B1g4, B2, B2g2, B2g4, B3, B3g2, B3g4 with LAST_STRIDE and NORM."""
    warn_of_unused(options, "WITH_IBN", "WITH_SE", "WITH_NL")
    net = RepVGG(options.DEPTH, channels, last_stride=options.LAST_STRIDE)
    replace_batch_norms(net, options.NORM)
    return net
