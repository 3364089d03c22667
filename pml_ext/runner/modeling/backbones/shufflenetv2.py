"""ShuffleNetV2 with the parameter names of FastReID and of its authors; torchvision's differ."""

import torch
from torch import Tensor, nn
from yacs.config import CfgNode as CN

from pml_ext.runner.modeling.backbones.registration import built_in

# DEPTH -> channels of the three stages and of the last map
STAGES = {
    "0.5x": (48, 96, 192, 1024),
    "1.0x": (116, 232, 464, 1024),
    "1.5x": (176, 352, 704, 1024),
    "2.0x": (244, 488, 976, 2048),
}
_STEM, _BLOCKS = 24, (4, 8, 4)


class Block(nn.Module):
    """Two branches: one computes, the other passes its channels on; with stride 2 both compute on all channels.

    channels: inputs of a branch; out: outputs of both branches together.
    """

    def __init__(self, channels: int, out: int, *, stride: int) -> None:
        super().__init__()
        middle, own = out // 2, out - channels
        self.branch_main = nn.Sequential(
            *_conv(channels, middle), nn.ReLU(inplace=True), *_depthwise(middle, stride), *_conv(middle, own),
            nn.ReLU(inplace=True),
        )  # fmt: skip
        self.branch_proj = None
        if stride == 2:
            layers = [*_depthwise(channels, stride), *_conv(channels, channels), nn.ReLU(inplace=True)]
            self.branch_proj = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        if self.branch_proj is None:  # every second channel to each branch, which mixes the outputs of the block before
            passed, x = x[:, ::2], x[:, 1::2]
        else:
            passed = self.branch_proj(x)
        return torch.cat((passed, self.branch_main(x)), dim=1)


@built_in("build_shufflenetv2_backbone", depths=("0.5x", "1.0x", "1.5x", "2.0x"))
class ShuffleNetV2(nn.Module):
    """ShuffleNetV2 (Ma et al., ECCV 2018) up to its last map; DEPTH is the width."""

    only_in_files = ("classifier.",)

    def __init__(self, options: CN, *, channels: int, **_: object) -> None:
        super().__init__()
        *stages, self.num_features = STAGES[options.DEPTH]
        self.first_conv = nn.Sequential(*_conv(channels, _STEM, 3, stride=2), nn.ReLU(inplace=True))
        self.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        blocks, channels = list[Block](), _STEM
        for out, count in zip(stages, _BLOCKS, strict=True):
            blocks.append(Block(channels, out, stride=2))
            blocks += [Block(out // 2, out, stride=1) for _ in range(count - 1)]
            channels = out
        self.features = nn.Sequential(*blocks)
        self.conv_last = nn.Sequential(*_conv(channels, self.num_features), nn.ReLU(inplace=True))
        for name, module in self.named_modules():
            if isinstance(module, nn.Conv2d):
                nn.init.normal_(module.weight, std=0.01 if name.startswith("first") else 1 / module.weight.shape[1])
            elif isinstance(module, nn.BatchNorm2d):
                nn.init.constant_(module.bias, 0.0001)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images (B, C, H, W) to maps (B, num_features, H / 32, W / 32)."""
        maps: Tensor = self.conv_last(self.features(self.maxpool(self.first_conv(x))))
        return maps


def _conv(channels: int, out: int, kernel: int = 1, *, stride: int = 1) -> list[nn.Module]:
    return [nn.Conv2d(channels, out, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(out)]


def _depthwise(channels: int, stride: int) -> list[nn.Module]:
    return [nn.Conv2d(channels, channels, 3, stride, 1, groups=channels, bias=False), nn.BatchNorm2d(channels)]
