"""FastReID's ResNeSt (Zhang et al., 2020): timm's networks, whose parameter names are the original's."""

from typing import Any

from torch import nn
from yacs.config import CfgNode as CN

from pml_ext.runner.modeling.backbones.registration import built_in
from pml_ext.runner.modeling.backbones.timm_backbone import TimmBackbone


@built_in("build_resnest_backbone", depths=("50x", "101x", "200x", "269x"), options=("LAST_STRIDE", "NORM"))
def build_resnest(options: CN, *, channels: int, **_: object) -> TimmBackbone:
    """LAST_STRIDE 1 dilates the last stage, as FastReID does for this network only."""
    name = "resnest50d" if options.DEPTH == "50x" else f"resnest{options.DEPTH[:-1]}e"
    stride = 32 if options.LAST_STRIDE == 2 else 16
    backbone = TimmBackbone(name, channels, output_stride=stride, zero_init_last=False)
    if options.LAST_STRIDE == 1:
        # The original averages 3×3 in the first block of a stage even where that block keeps the size, …
        first: Any = backbone.net.layer4[0]
        first.avd_last = nn.AvgPool2d(3, stride=1, padding=1)
        # … and does not pool in its shortcut, where timm averages 2×2.
        first.downsample[0] = nn.Identity()
    return backbone
