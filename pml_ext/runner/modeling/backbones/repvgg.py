"""FastReID's RepVGG (Ding et al., CVPR 2021) as it is trained, with three branches in each block: timm's networks."""

from dataclasses import replace
from typing import Any

from timm.models.byobnet import model_cfgs
from yacs.config import CfgNode as CN

from pml_ext.runner.modeling.backbones.registration import built_in
from pml_ext.runner.modeling.backbones.resnet import remove_stride
from pml_ext.runner.modeling.backbones.timm_backbone import TimmBackbone, reset_parameters

_NAMES = {
    r"^stage0\.": "stem.",
    **{rf"^stage{number}\.": f"stages.{number - 1}." for number in range(1, 5)},
    r"\.rbr_dense\.": ".conv_kxk.",
    r"\.rbr_1x1\.": ".conv_1x1.",
    r"\.rbr_identity\.": ".identity.",
}


@built_in(
    "build_repvgg_backbone",
    depths=("A0", "A1", "A2", "B0", "B1", "B1g2", "B1g4", "B2", "B2g2", "B2g4", "B3", "B3g2", "B3g4"),
    options=("LAST_STRIDE", "NORM"),
)
def build_repvgg(options: CN, *, channels: int, **_: object) -> TimmBackbone:
    """DEPTH is the paper's name of the network; g2 and g4 are groups of the convolutions of every second block."""
    name, groups = f"repvgg_{options.DEPTH[:2].lower()}", int(options.DEPTH[3:] or 0)
    blocks: Any = model_cfgs[name].blocks
    if groups:  # timm has no g2
        blocks = [replace(block, gs=lambda width, i: width // groups if i % 2 else 0) for block in blocks]
    backbone = TimmBackbone(name, channels, other_names=_NAMES, only_in_files=("linear.",), blocks=blocks)
    if options.LAST_STRIDE == 1:
        remove_stride(backbone.net.stages[3])
    reset_parameters(backbone.net)
    return backbone
