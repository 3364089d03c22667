"""FastReID's MobileNetV3: torchvision's layers and names, with a 1×1 convolution behind them."""

from torch import Tensor, nn
from torchvision import models
from yacs.config import CfgNode as CN

from pml_ext.runner.modeling.backbones.mobilenetv2 import conv
from pml_ext.runner.modeling.backbones.norms import replace_batch_norms
from pml_ext.runner.modeling.backbones.resnet import warn_of_unused

# DEPTH -> torchvision's network, channels of the last map
NETS = {"Large": (models.mobilenet_v3_large, 1280), "Small": (models.mobilenet_v3_small, 1024)}


class MobileNetV3(nn.Module):
    """MobileNetV3 (Howard et al., ICCV 2019) up to its last map.

    Args:
        depth: a key of NETS.
        in_channels: of the images.
    """

    only_in_files = ("classifier.", "conv.")  # an ImageNet file has a classifier and no last convolution

    def __init__(self, depth: str, in_channels: int) -> None:
        super().__init__()
        build, self.num_features = NETS[depth]
        # FastReID's batch norms have torch's defaults, torchvision's have not.
        self.features = build(weights=None, norm_layer=nn.BatchNorm2d).features
        stem, last = self.features[0][0], self.features[-1][0]
        if in_channels != 3:
            stem = self.features[0][0] = nn.Conv2d(in_channels, stem.out_channels, 3, 2, 1, bias=False)
            nn.init.kaiming_normal_(stem.weight, mode="fan_out")
        behind = conv(last.out_channels, self.num_features, 1)
        nn.init.kaiming_normal_(behind[0].weight, mode="fan_out")  # type: ignore[arg-type]
        self.conv = nn.Sequential(*behind)

    def forward(self, x: Tensor) -> Tensor:
        """Images (B, C, H, W) to maps (B, num_features, H / 32, W / 32)."""
        maps: Tensor = self.conv(self.features(x))
        return maps


def build_mobilenetv3(options: CN, *, channels: int, **_: object) -> MobileNetV3:
    """DEPTH Large or Small with NORM."""
    warn_of_unused(options, "WITH_IBN", "WITH_SE", "WITH_NL")
    net = MobileNetV3(options.DEPTH, channels)
    replace_batch_norms(net, options.NORM)
    return net
