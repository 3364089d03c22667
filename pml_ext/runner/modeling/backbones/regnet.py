"""FastReID's RegNetX and RegNetY: timm's networks."""

import math

from torch import nn
from yacs.config import CfgNode as CN

from pml_ext.runner.modeling.backbones.registration import built_in
from pml_ext.runner.modeling.backbones.resnet import remove_stride
from pml_ext.runner.modeling.backbones.timm_backbone import TimmBackbone, reset_parameters

# FastReID has the names of the authors' files.
_NAMES = {
    r"\.f\.a\.": ".conv1.conv.",
    r"\.f\.a_bn\.": ".conv1.bn.",
    r"\.f\.b\.": ".conv2.conv.",
    r"\.f\.b_bn\.": ".conv2.bn.",
    r"\.f\.c\.": ".conv3.conv.",
    r"\.f\.c_bn\.": ".conv3.bn.",
    r"\.f\.se\.f_ex\.0\.": ".se.fc1.",
    r"\.f\.se\.f_ex\.2\.": ".se.fc2.",
    r"^(s\d\.b\d+)\.proj\.": r"\1.downsample.conv.",
    r"^(s\d\.b\d+)\.bn\.": r"\1.downsample.bn.",
}


_SIZES = (200, 400, 800, 1600, 3200, 4000, 6400)


@built_in(
    "build_regnet_backbone",
    depths=(*(f"{size}x" for size in _SIZES), *(f"{size}y" for size in _SIZES)),
    options=("LAST_STRIDE", "NORM"),
)
def build_regnet(options: CN, *, channels: int, **_: object) -> TimmBackbone:
    """DEPTH is millions of multiplications, and x or y (with squeeze-and-excitation)."""
    size, kind = int(options.DEPTH[:-1]), options.DEPTH[-1]
    backbone = TimmBackbone(f"regnet{kind}_{size // 100:03}", channels, other_names=_NAMES)
    net = backbone.net
    if options.LAST_STRIDE == 1:
        remove_stride(net.s4)
    reset_parameters(net)
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.normal_(module.weight, std=math.sqrt(2 / (module.kernel_size[0] ** 2 * module.out_channels)))
    return backbone
