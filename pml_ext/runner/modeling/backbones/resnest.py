"""FastReID's ResNeSt (Zhang et al., 2020): timm's network and the original's parameter names."""

from typing import Any

from timm.models.resnest import ResNestBottleneck
from timm.models.resnet import ResNet
from torch import Tensor, nn
from yacs.config import CfgNode as CN

from pml_ext.runner.modeling.backbones.norms import replace_batch_norms
from pml_ext.runner.modeling.backbones.resnet import warn_of_unused

# blocks of the four stages, width of the stem
SIZES = {
    "50x": ((3, 4, 6, 3), 32),
    "101x": ((3, 4, 23, 3), 64),
    "200x": ((3, 24, 36, 3), 64),
    "269x": ((3, 30, 48, 8), 64),
}


class ResNeSt(ResNet):
    """A ResNeSt's last feature map.

    Args:
        depth: a key of SIZES.
        in_channels: of the images.
        last_stride: of the last stage; 1 dilates the stage instead, as FastReID does for this net only.
    """

    layer4: nn.Sequential
    only_in_files = ("fc.",)

    def __init__(self, depth: str, in_channels: int, *, last_stride: int) -> None:
        layers, stem_width = SIZES[depth]
        block: Any = ResNestBottleneck
        super().__init__(
            block,
            layers,
            num_classes=0,
            in_chans=in_channels,
            output_stride=32 if last_stride == 2 else 16,
            stem_type="deep",
            stem_width=stem_width,
            avg_down=True,
            zero_init_last=False,
            block_args={"radix": 2, "avd": True, "avd_first": False},
        )
        if last_stride == 1:
            # The original averages 3×3 in the first block of a stage even where that block keeps the size.
            first: Any = self.layer4[0]
            first.avd_last = nn.AvgPool2d(3, stride=1, padding=1)
            # … and its shortcut stays as it is where the size does; timm averages 2×2 there.
            first.downsample[0] = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Images (B, C, H, W) to maps (B, 2048, h, w)."""
        features: Tensor = self.forward_features(x)
        return features


def build_resnest(options: CN, *, channels: int, **_: object) -> ResNeSt:
    """DEPTH 50x, 101x, 200x, 269x with LAST_STRIDE and NORM."""
    warn_of_unused(options, "WITH_IBN", "WITH_SE", "WITH_NL")
    net = ResNeSt(options.DEPTH, channels, last_stride=options.LAST_STRIDE)
    replace_batch_norms(net, options.NORM)
    return net
