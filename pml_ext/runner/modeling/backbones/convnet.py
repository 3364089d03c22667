"""A small convolutional network for small pictures."""

from torch import Tensor, nn
from yacs.config import CfgNode as CN


class ConvNet(nn.Sequential):
    """Blocks of convolution 3×3, batch norm, ReLU and 2×2 max-pool, trained from scratch.

    Pooling stops where a side would fall under 2, so even pictures of 8×8 pass through four blocks.
    """

    only_in_files: tuple[str, ...] = ()

    def __init__(self, in_channels: int, channels: int, depth: int, *, bias: bool) -> None:
        layers: list[nn.Module] = []
        for inputs in [in_channels, *[channels] * (depth - 1)]:
            layers += [nn.Conv2d(inputs, channels, 3, padding=1, bias=bias), nn.BatchNorm2d(channels)]
            layers += [nn.ReLU(inplace=True), _PoolWhileLarge()]
        super().__init__(*layers)
        self.num_features = channels


class _PoolWhileLarge(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.max_pool2d(x, 2) if min(x.shape[-2:]) >= 4 else x


def build_convnet(options: CN, *, channels: int, **_: object) -> ConvNet:
    """DEPTH is the number of blocks."""
    return ConvNet(channels, options.FEAT_DIM, int(options.DEPTH.removesuffix("x")), bias=options.NORM == "none")
