"""FastReID's ResNet and ResNeXt: timm's blocks, FastReID's options and parameter names."""

import logging
from typing import Any

from timm.models import resnet
from torch import Tensor, nn
from yacs.config import CfgNode as CN

from pml_ext.runner.modeling.backbones.attention import NonLocal, SqueezeExcitation
from pml_ext.runner.modeling.backbones.norms import IBN, replace_batch_norms

log = logging.getLogger("pml_ext")

STAGES = {"18x": (2, 2, 2, 2), "34x": (3, 4, 6, 3), "50x": (3, 4, 6, 3), "101x": (3, 4, 23, 3), "152x": (3, 8, 36, 3)}
# how many of the last blocks of a stage a non-local block follows
RESNET_NON_LOCAL: dict[str, tuple[int, ...]] = {
    "18x": (0, 0, 0, 0),
    "34x": (0, 0, 0, 0),
    "50x": (0, 2, 3, 0),
    "101x": (0, 2, 9, 0),
}
RESNEXT_NON_LOCAL: dict[str, tuple[int, ...]] = {"50x": (0, 2, 3, 0), "101x": (0, 2, 3, 0)}


class ResNet(resnet.ResNet):
    """A ResNet's last feature map.

    Args:
        depth: a key of STAGES; 18x and 34x have basic blocks.
        in_channels: of the images.
        last_stride: of the last stage, 1 or 2; 1 changes the stride only, without dilation.
        non_local: per stage, the number of last blocks that a NonLocal block follows.
        norm: of the non-local blocks; the net itself is built with batch norms.
        width: channels a group of a bottleneck's 3×3 convolution at 64 channels; with `cardinality` groups.
        ceil_mode: the stem's max-pool is without padding but rounds the size up (FastReID's ResNet).
    """

    layer1: nn.Sequential
    layer2: nn.Sequential
    layer3: nn.Sequential
    layer4: nn.Sequential
    NL_1: nn.ModuleList
    NL_2: nn.ModuleList
    NL_3: nn.ModuleList
    NL_4: nn.ModuleList
    # Of a file against this net: ImageNet's classifier, torchreid's, our non-local blocks.
    only_in_files = ("fc.", "classifier.", "NL_")

    def __init__(
        self,
        depth: str,
        in_channels: int,
        *,
        last_stride: int,
        non_local: tuple[int, ...] = (0, 0, 0, 0),
        norm: str = "BN",
        cardinality: int = 1,
        width: int = 64,
        ceil_mode: bool = True,
    ) -> None:
        block: Any = resnet.BasicBlock if depth in ("18x", "34x") else resnet.Bottleneck
        super().__init__(
            block,
            STAGES[depth],
            num_classes=0,
            in_chans=in_channels,
            cardinality=cardinality,
            base_width=width,
            zero_init_last=False,
        )
        if ceil_mode:
            pool: Any = nn.MaxPool2d(kernel_size=3, stride=2, ceil_mode=True)
            self.maxpool = pool
        if last_stride == 1:
            remove_stride(self.layer4[0])
        for i, count in enumerate(non_local, start=1):
            setattr(self, f"NL_{i}", nn.ModuleList(NonLocal(128 * 2**i, norm) for _ in range(count)))

    @property
    def stages(self) -> tuple[nn.Sequential, ...]:
        return self.layer1, self.layer2, self.layer3, self.layer4

    def forward(self, x: Tensor) -> Tensor:
        """Images (B, C, H, W) to maps (B, num_features, h, w)."""
        x = self.maxpool(self.act1(self.bn1(self.conv1(x))))
        for stage, attention in zip(self.stages, (self.NL_1, self.NL_2, self.NL_3, self.NL_4), strict=True):
            first = len(stage) - len(attention)
            for i, block in enumerate(stage):
                x = block(x)
                if i >= first:
                    x = attention[i - first](x)
        return x


def build_resnet(options: CN, *, channels: int, **_: object) -> ResNet:
    """DEPTH 18x, 34x, 50x, 101x with LAST_STRIDE, WITH_IBN (stages 1 to 3), WITH_SE, WITH_NL, NORM."""
    return _build(options, channels, RESNET_NON_LOCAL, ibn_stages=3)


def build_resnet_distill(options: CN, *, channels: int, **_: object) -> ResNet:
    """FastDistill's name for it, without WITH_NL: its blocks begin with the ReLU that others end with."""
    warn_of_unused(options, "WITH_NL")
    return _build(options, channels, dict.fromkeys(RESNET_NON_LOCAL, (0, 0, 0, 0)), ibn_stages=3)


def build_resnext(options: CN, *, channels: int, **_: object) -> ResNet:
    """ResNeXt 32×4d of DEPTH 50x, 101x, 152x with LAST_STRIDE, WITH_IBN (all stages), WITH_NL, NORM."""
    warn_of_unused(options, "WITH_SE")
    return _build(options, channels, RESNEXT_NON_LOCAL, ibn_stages=4, cardinality=32, width=4, ceil_mode=False)


def _build(
    options: CN,
    channels: int,
    non_local: dict[str, tuple[int, ...]],
    *,
    ibn_stages: int,
    cardinality: int = 1,
    width: int = 64,
    ceil_mode: bool = True,
) -> ResNet:
    net = ResNet(
        options.DEPTH,
        channels,
        last_stride=options.LAST_STRIDE,
        non_local=non_local[options.DEPTH] if options.WITH_NL else (0, 0, 0, 0),
        norm=options.NORM,
        cardinality=cardinality,
        width=width,
        ceil_mode=ceil_mode,
    )
    if options.WITH_NL and non_local is RESNET_NON_LOCAL and not any(non_local[options.DEPTH]):
        log.warning("MODEL.BACKBONE.WITH_NL: FastReID has no non-local blocks at depth %s; none here", options.DEPTH)
    for i, stage in enumerate(net.stages):
        block: Any
        for block in stage:
            if options.WITH_IBN and i < ibn_stages:
                block.bn1 = IBN(block.bn1.num_features)
            if options.WITH_SE and cardinality == 1:
                last: Any = block.bn3 if isinstance(block, resnet.Bottleneck) else block.bn2
                block.se = SqueezeExcitation(last.num_features)
    replace_batch_norms(net, options.NORM)
    return net


def warn_of_unused(options: CN, *keys: str, on: str = "") -> None:
    """Warns of switches that FastReID's YAMLs inherit and that the backbone, or its use (`on`), does not have."""
    for key in keys:
        if options[key]:
            log.warning("MODEL.BACKBONE.%s has no effect on %s, as in FastReID", key, on or options.NAME)


def remove_stride(block: nn.Module) -> None:
    """Change strides of 2 into 1, without dilation."""
    for module in block.modules():
        if isinstance(module, nn.Conv2d) and module.stride == (2, 2):
            module.stride = (1, 1)
