"""timm's networks as backbones, and FastReID's RegNet, RepVGG and ResNeSt, built from timm's."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import timm
import torch
from timm.models.byobnet import model_cfgs
from torch import Tensor, nn
from yacs.config import CfgNode as CN

from pml_ext._shared.errors import UserError
from pml_ext._shared.names import hint
from pml_ext.runner.modeling.backbones.registration import ImageSizes, built_in
from pml_ext.runner.modeling.backbones.resnet import remove_stride
from pml_ext.runner.modeling.weights.imagenet import TIMM


class TimmBackbone(nn.Module):
    """A timm network up to its feature map before pooling; for one with tokens or several maps, up to their pooling.

    other_names: regular expression of names in other projects' files -> replacement.
    only_in_files: prefixes of names that only such files contain.
    """

    def __init__(
        self,
        name: str,
        in_channels: int,
        *,
        other_names: Mapping[str, str] | None = None,
        only_in_files: tuple[str, ...] = (),
        **options: Any,
    ) -> None:
        super().__init__()
        self.net: Any
        if not timm.is_model(name):
            raise UserError(
                f"MODEL.BACKBONE.NAME: timm {timm.__version__} has no model {name!r}{hint(name, timm.list_models())}"
            )
        # build_backbone loads the weights.
        try:
            net: Any = timm.create_model(name, pretrained=False, in_chans=in_channels, num_classes=0, **options)
        except RuntimeError as error:  # a tag after the dot that timm does not know
            raise UserError(f"MODEL.BACKBONE.NAME: timm {timm.__version__}: {error}") from error
        self.name, self.net, self.other_names = name, net, other_names or {}
        self.num_features = int(net.num_features)
        self.is_channels_last = getattr(net, "output_fmt", None) == "NHWC"
        patches: Any = getattr(net, "patch_embed", None)
        self.image_size: tuple[int, int] | None = getattr(patches, "img_size", None)
        classifier = net.default_cfg["classifier"]
        classifiers = [classifier] if isinstance(classifier, str) else classifier
        self.only_in_files = (*(f"{name}." for name in classifiers), *only_in_files)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images (B, C, H, W) to maps (B, num_features, h, w); h and w are 1 if the network pools by itself."""
        try:
            features = self.net.forward_features(x)
        except (AssertionError, RuntimeError, TypeError, ValueError) as error:  # timm's checks of the size
            if x.is_meta or isinstance(error, torch.OutOfMemoryError):  # a dry run goes on on the CPU
                raise
            size = "×".join(map(str, x.shape[2:]))
            reason = " ".join(str(error).split()) or type(error).__name__
            raise UserError(f"MODEL.BACKBONE.NAME: timm's {self.name} rejects images of {size}: {reason}") from error
        if isinstance(features, Tensor) and features.ndim == 4:
            maps = features.permute(0, 3, 1, 2) if self.is_channels_last else features
        else:  # the class token, the mean of tokens (B, tokens, C), or what the network makes of several outputs
            maps = self.net.forward_head(features, pre_logits=True)[:, :, None, None]
        if maps.shape[1] != self.num_features:
            raise UserError(
                f"MODEL.BACKBONE.NAME: timm's {self.name} gives {maps.shape[1]} features where timm states "
                f"{self.num_features}, so no head fits; choose another network"
            )
        return maps


@built_in("timm:<model>")
def build_timm(options: CN, *, channels: int, sizes: ImageSizes) -> TimmBackbone:
    """Builds any timm network, convolutional or vision transformer (ours)."""
    backbone = TimmBackbone(options.NAME.removeprefix(TIMM), channels)
    size = backbone.image_size
    if size is not None and not list(size) == list(sizes.train) == list(sizes.test):
        raise UserError(
            f"{options.NAME} needs images of {size[0]}×{size[1]} in training and tests (INPUT.CROP.SIZE, or SIZE_TRAIN "
            f"and SIZE_TEST); got {sizes.train} and {sizes.test}. build_vit_backbone takes other sizes"
        )
    return backbone


def reset_parameters(net: nn.Module) -> None:
    """Initialises every layer with torch's defaults instead of timm's."""
    module: Any
    for module in net.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()


# FastReID has the names of the authors' files.
_REGNET_NAMES = {
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


_REGNET_SIZES = (200, 400, 800, 1600, 3200, 4000, 6400)


@built_in(
    "build_regnet_backbone",
    depths=[*(f"{size}x" for size in _REGNET_SIZES), *(f"{size}y" for size in _REGNET_SIZES)],
)
def build_regnet(options: CN, *, channels: int, **_: object) -> TimmBackbone:
    """Builds a RegNet. DEPTH is millions of multiplications, and x or y (with squeeze-and-excitation)."""
    size, kind = int(options.DEPTH[:-1]), options.DEPTH[-1]
    backbone = TimmBackbone(f"regnet{kind}_{size // 100:03}", channels, other_names=_REGNET_NAMES)
    net = backbone.net
    if options.LAST_STRIDE == 1:
        remove_stride(net.s4)
    reset_parameters(net)
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.normal_(module.weight, std=math.sqrt(2 / (module.kernel_size[0] ** 2 * module.out_channels)))
    return backbone


_REPVGG_NAMES = {
    r"^stage0\.": "stem.",
    **{rf"^stage{number}\.": f"stages.{number - 1}." for number in range(1, 5)},
    r"\.rbr_dense\.": ".conv_kxk.",
    r"\.rbr_1x1\.": ".conv_1x1.",
    r"\.rbr_identity\.": ".identity.",
}


@built_in(
    "build_repvgg_backbone",
    depths=("A0", "A1", "A2", "B0", "B1", "B1g2", "B1g4", "B2", "B2g2", "B2g4", "B3", "B3g2", "B3g4"),
)
def build_repvgg(options: CN, *, channels: int, **_: object) -> TimmBackbone:
    """Builds a RepVGG. DEPTH is the paper's name of the network; g2, g4: convolution groups in every second block."""
    name, groups = f"repvgg_{options.DEPTH[:2].lower()}", int(options.DEPTH[3:] or 0)
    blocks: Any = model_cfgs[name].blocks
    if groups:  # timm has no g2
        blocks = [replace(block, gs=lambda width, i: width // groups if i % 2 else 0) for block in blocks]
    backbone = TimmBackbone(name, channels, other_names=_REPVGG_NAMES, only_in_files=("linear.",), blocks=blocks)
    if options.LAST_STRIDE == 1:
        remove_stride(backbone.net.stages[3])
    reset_parameters(backbone.net)
    return backbone


@built_in("build_resnest_backbone", depths=("50x", "101x", "200x", "269x"))
def build_resnest(options: CN, *, channels: int, **_: object) -> TimmBackbone:
    """Builds a ResNeSt. LAST_STRIDE 1 dilates the last stage, as FastReID does only for this network."""
    name = "resnest50d" if options.DEPTH == "50x" else f"resnest{options.DEPTH[:-1]}e"
    stride = 32 if options.LAST_STRIDE == 2 else 16
    backbone = TimmBackbone(name, channels, output_stride=stride, zero_init_last=False)
    if options.LAST_STRIDE == 1:
        # The original averages 3×3 in the first block of a stage even if that block keeps the size, …
        first: Any = backbone.net.layer4[0]
        first.avd_last = nn.AvgPool2d(3, stride=1, padding=1)
        # … and does not pool in its shortcut, where timm averages 2×2.
        first.downsample[0] = nn.Identity()
    return backbone
