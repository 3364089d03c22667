"""FastReID's ResNet and ResNeXt: timm's blocks, FastReID's options, attention blocks and parameter names."""

import itertools
from collections.abc import Mapping
from typing import Any

from timm.models import resnet
from torch import Tensor, nn
from yacs.config import CfgNode as CN

from pml_ext.runner.modeling.backbones.registration import built_in
from pml_ext.runner.modeling.layers import IBN, build_norm


class SqueezeExcitation(nn.Module):
    """Channels scaled by a sigmoid of two linear layers without biases over their means (Hu et al., CVPR 2018)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        hidden = channels // 16
        self.fc = nn.Sequential(
            nn.Linear(channels, hidden, bias=False),
            nn.ReLU(inplace=True),
            nn.Linear(hidden, channels, bias=False),
            nn.Sigmoid(),
        )

    def forward(self, x: Tensor) -> Tensor:
        """(B, channels, h, w) of the same shape."""
        weights: Tensor = self.fc(x.mean(dim=(2, 3)))
        return x * weights[..., None, None]


class NonLocal(nn.Module):
    """x + W(softmax-free attention over all positions), Wang et al. (CVPR 2018), "dot product" with division by N.

    FastReID's version embeds a position in one number (its reduction divides 2 by 2). W's norm starts at 0, so the
    block is initially the identity.
    """

    def __init__(self, channels: int, norm: str) -> None:
        super().__init__()
        self.g = nn.Conv2d(channels, 1, 1)
        convolution, after = nn.Conv2d(1, channels, 1), build_norm(norm, channels)
        last: Any = convolution if norm == "none" else after
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        self.W = nn.Sequential(convolution, after)
        self.theta = nn.Conv2d(channels, 1, 1)
        self.phi = nn.Conv2d(channels, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(B, channels, h, w) of the same shape."""
        # (θ φᵀ / N) g = θ (φᵀ g) / N: one mean instead of an N × N matrix.
        mixed: Tensor = x + self.W(self.theta(x) * (self.phi(x) * self.g(x)).mean(dim=(2, 3), keepdim=True))
        return mixed


STAGES = {"18x": (2, 2, 2, 2), "34x": (3, 4, 6, 3), "50x": (3, 4, 6, 3), "101x": (3, 4, 23, 3), "152x": (3, 8, 36, 3)}
# DEPTH -> how many of the last blocks of each stage a non-local block follows
RESNET_NON_LOCAL = {"50x": (0, 2, 3, 0), "101x": (0, 2, 9, 0)}
RESNEXT_NON_LOCAL = {"50x": (0, 2, 3, 0), "101x": (0, 2, 3, 0)}


class ResNet(resnet.ResNet):
    """ResNet up to its last feature map; `ibn_stages`: number of first stages with IBN if WITH_IBN is set."""

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
        self, options: CN, in_channels: int, *, non_local: Mapping[str, tuple[int, ...]], ibn_stages: int, **groups: Any
    ) -> None:
        block: Any = resnet.BasicBlock if options.DEPTH in ("18x", "34x") else resnet.Bottleneck
        stages = STAGES[options.DEPTH]
        super().__init__(block, stages, num_classes=0, in_chans=in_channels, zero_init_last=False, **groups)
        if options.LAST_STRIDE == 1:
            remove_stride(self.layer4[0])
        counts = non_local.get(options.DEPTH, (0, 0, 0, 0)) if options.WITH_NL else (0, 0, 0, 0)
        for i, (stage, count) in enumerate(zip(self.stages, counts, strict=True)):
            setattr(self, f"NL_{i + 1}", nn.ModuleList(NonLocal(256 * 2**i, options.NORM) for _ in range(count)))
            for block in stage if options.WITH_IBN and i < ibn_stages else ():
                block.bn1 = IBN(block.bn1.num_features)

    @property
    def stages(self) -> tuple[nn.Sequential, ...]:
        return self.layer1, self.layer2, self.layer3, self.layer4

    @property
    def relu(self) -> nn.Module:
        """FastReID's name for the activation after `bn1`."""
        return self.act1

    def forward(self, x: Tensor) -> Tensor:
        """Maps images (B, C, H, W) to maps (B, num_features, h, w)."""
        x = self.maxpool(self.act1(self.bn1(self.conv1(x))))
        for stage, attention in zip(self.stages, (self.NL_1, self.NL_2, self.NL_3, self.NL_4), strict=True):
            first = len(stage) - len(attention)
            for i, block in enumerate(stage):
                x = block(x)
                if i >= first:
                    x = attention[i - first](x)
        return x


@built_in("build_resnet_backbone_distill", depths=("18x", "34x", "50x", "101x"))
@built_in("build_resnet_backbone", depths=("18x", "34x", "50x", "101x"))
def build_resnet(options: CN, *, channels: int, **_: object) -> ResNet:
    """Builds a ResNet, with IBN in stages 1 to 3.

    FastDistill's ResNet ignores WITH_NL: its blocks start with the ReLU with which other blocks end.
    """
    non_local = {} if options.NAME == "build_resnet_backbone_distill" else RESNET_NON_LOCAL
    net = ResNet(options, channels, non_local=non_local, ibn_stages=3)
    for block in itertools.chain(*net.stages) if options.WITH_SE else ():
        last: Any = block.bn3 if isinstance(block, resnet.Bottleneck) else block.bn2
        block.se = SqueezeExcitation(last.num_features)
    # FastReID's max-pool is without padding but rounds the size up.
    pool: Any = nn.MaxPool2d(kernel_size=3, stride=2, ceil_mode=True)
    net.maxpool = pool
    return net


@built_in("build_resnext_backbone", depths=("50x", "101x", "152x"))
def build_resnext(options: CN, *, channels: int, **_: object) -> ResNet:
    """Builds a ResNeXt 32×4d, with IBN in all stages."""
    return ResNet(options, channels, non_local=RESNEXT_NON_LOCAL, ibn_stages=4, cardinality=32, base_width=4)


def remove_stride(block: nn.Module) -> None:
    """Changes strides of 2 to 1, without dilation."""
    for module in block.modules():
        if isinstance(module, nn.Conv2d) and module.stride == (2, 2):
            module.stride = (1, 1)
