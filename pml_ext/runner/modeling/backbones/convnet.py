"""A small convolutional network for small pictures."""

from torch import Tensor, nn
from yacs.config import CfgNode as CN

from pml_ext.runner.modeling.backbones.norms import build_norm


class ConvNet(nn.Sequential):
    """Blocks of convolution 3×3, norm, ReLU and 2×2 max-pool, trained from scratch.

    Pooling stops where a side would fall under 2, so even pictures of 8×8 pass through four blocks.
    """

    only_in_files: tuple[str, ...] = ()

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
        self.num_features = channels


class _PoolWhileLarge(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.max_pool2d(x, 2) if min(x.shape[-2:]) >= 4 else x


def build_convnet(options: CN, *, channels: int, **_: object) -> ConvNet:
    """DEPTH '1x' to '8x' blocks of FEAT_DIM channels."""
    depth = int(options.DEPTH.removesuffix("x"))
    return ConvNet(channels, options.FEAT_DIM, depth, options.NORM)
