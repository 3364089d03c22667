"""A small convolutional network for small images."""

from torch import Tensor, nn
from yacs.config import CfgNode as CN

from pml_ext.runner.modeling.backbones.registration import built_in


@built_in("build_convnet_backbone", depths=[f"{blocks}x" for blocks in range(1, 9)])
class ConvNet(nn.Sequential):
    """DEPTH blocks of 3×3 convolution to FEAT_DIM channels, batch norm, ReLU and 2×2 max-pool; no pretrained weights.

    A block does not pool if a side would fall below 2, so 8×8 images can pass through any number of blocks.
    """

    only_in_files: tuple[str, ...] = ()

    def __init__(self, options: CN, *, channels: int, **_: object) -> None:
        width, bias, layers = options.FEAT_DIM, options.NORM == "none", list[nn.Module]()
        for inputs in [channels] + [width] * (int(options.DEPTH.removesuffix("x")) - 1):
            layers += [nn.Conv2d(inputs, width, 3, padding=1, bias=bias), nn.BatchNorm2d(width)]
            layers += [nn.ReLU(inplace=True), _PoolWhileLarge()]
        super().__init__(*layers)
        self.num_features = width


class _PoolWhileLarge(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.max_pool2d(x, 2) if min(x.shape[-2:]) >= 4 else x
