"""insightface's iresnet, for 112×112 faces."""

from torch import Tensor, nn
from yacs.config import CfgNode as CN

from pml_ext.runner.modeling.backbones.registration import built_in

_STAGES = {
    "18x": (2, 2, 2, 2),
    "34x": (3, 4, 6, 3),
    "50x": (3, 4, 14, 3),
    "100x": (3, 13, 30, 3),
    "200x": (6, 26, 60, 6),
}


class IResNetBlock(nn.Module):
    """Residual block: norm, 3×3 conv, norm, PReLU, 3×3 conv with the stride, norm; plus the input."""

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(in_channels)
        self.conv1 = nn.Conv2d(in_channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.prelu = nn.PReLU(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, stride=stride, padding=1, bias=False)
        self.bn3 = nn.BatchNorm2d(channels)
        self.downsample = None
        if stride != 1 or in_channels != channels:
            shortcut = nn.Conv2d(in_channels, channels, 1, stride=stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        branch: Tensor = self.bn3(self.conv2(self.prelu(self.bn2(self.conv1(self.bn1(x))))))
        return branch + (x if self.downsample is None else self.downsample(x))


@built_in("build_iresnet_backbone", depths=_STAGES)
class IResNet(nn.Module):
    """iresnet whose stages halve the size but not its stem: 112×112 faces give 7×7 maps. Dropout is on the last map."""

    only_in_files = ("fc.", "features.")  # insightface's head: MODEL.WEIGHTS loads it into MODEL.HEADS
    num_features = 512

    def __init__(self, options: CN, *, channels: int, **_: object) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 64, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.prelu = nn.PReLU(64)
        channels = 64
        for i, blocks in enumerate(_STAGES[options.DEPTH]):
            width = 64 * 2**i
            stage = [IResNetBlock(channels if j == 0 else width, width, 2 if j == 0 else 1) for j in range(blocks)]
            setattr(self, f"layer{i + 1}", nn.Sequential(*stage))
            channels = width
        self.bn2 = nn.BatchNorm2d(channels)
        self.dropout = nn.Dropout(options.DROPOUT)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.normal_(module.weight, std=0.1)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images (B, C, H, W) to maps (B, 512, H / 16, W / 16), rounded up."""
        x = self.prelu(self.bn1(self.conv1(x)))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))  # type: ignore[operator]
        maps: Tensor = self.dropout(self.bn2(x))
        return maps
