"""OSNet with FastReID's and torchreid's parameter names."""

from collections import OrderedDict

import torch
from torch import Tensor, nn
from yacs.config import CfgNode as CN

from pml_ext.runner.modeling.backbones.registration import built_in

_STREAMS = {"conv2a": 1, "conv2b": 2, "conv2c": 3, "conv2d": 4}


def conv_norm(
    channels: int, out: int, kernel: int = 1, *, stride: int = 1, instance_norm: bool = False, linear: bool = False
) -> nn.Sequential:
    """Convolution without bias, norm, and a ReLU unless `linear`."""
    layers: dict[str, nn.Module] = {"conv": nn.Conv2d(channels, out, kernel, stride, kernel // 2, bias=False)}
    layers["bn"] = nn.InstanceNorm2d(out, affine=True) if instance_norm else nn.BatchNorm2d(out)
    if not linear:
        layers["relu"] = nn.ReLU(inplace=True)
    return nn.Sequential(OrderedDict(layers))


def light_conv(channels: int) -> nn.Sequential:
    """1×1 convolution, depthwise 3×3 convolution, norm and ReLU."""
    layers: dict[str, nn.Module] = {
        "conv1": nn.Conv2d(channels, channels, 1, bias=False),
        "conv2": nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False),
        "bn": nn.BatchNorm2d(channels),
        "relu": nn.ReLU(inplace=True),
    }
    return nn.Sequential(OrderedDict(layers))


class Gate(nn.Module):
    """Channels weighted by a small network applied to their means."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.fc1 = nn.Conv2d(channels, channels // 16, 1)
        self.fc2 = nn.Conv2d(channels // 16, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        means = x.mean(dim=(2, 3), keepdim=True)
        weights: Tensor = self.fc2(self.fc1(means).relu())
        return x * weights.sigmoid()


class Block(nn.Module):
    """Streams of one to four light convolutions on one map, gated by one Gate and added; with a shortcut."""

    def __init__(self, channels: int, out: int, *, instance_norm: bool) -> None:
        super().__init__()
        middle = out // 4
        self.conv1 = conv_norm(channels, middle)
        for name, depth in _STREAMS.items():
            stream = [light_conv(middle) for _ in range(depth)]
            setattr(self, name, stream[0] if depth == 1 else nn.Sequential(*stream))
        self.gate = Gate(middle)
        self.conv3 = conv_norm(middle, out, linear=True)
        self.downsample = conv_norm(channels, out, linear=True) if channels != out else None
        self.IN = nn.InstanceNorm2d(out, affine=True) if instance_norm else None

    def forward(self, x: Tensor) -> Tensor:
        middle = self.conv1(x)
        gated = torch.stack([self.gate(getattr(self, name)(middle)) for name in _STREAMS]).sum(dim=0)
        x = self.conv3(gated) + (x if self.downsample is None else self.downsample(x))
        return (x if self.IN is None else self.IN(x)).relu()


@built_in("build_osnet_backbone", depths=("x1_0", "x0_75", "x0_5", "x0_25"))
class OSNet(nn.Module):
    """Omni-Scale Network (Zhou et al., ICCV 2019), up to its last map.

    DEPTH is the width: x0_75 has three quarters of x1_0's channels. WITH_IBN: instance norms in stem and first stage.
    """

    only_in_files = ("fc.", "classifier.")

    def __init__(self, options: CN, *, channels: int, **_: object) -> None:
        super().__init__()
        width, ibn = float(options.DEPTH.removeprefix("x").replace("_", ".")), options.WITH_IBN
        stem, first, second, third = (int(size * width) for size in (64, 256, 384, 512))
        self.conv1 = conv_norm(channels, stem, 7, stride=2, instance_norm=ibn)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.conv2 = _stage(stem, first, instance_norm=ibn, shrink=True)
        self.conv3 = _stage(first, second, shrink=True)
        self.conv4 = _stage(second, third)
        self.conv5 = conv_norm(third, third)
        self.num_features = third
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images (B, C, H, W) to maps (B, num_features, H / 16, W / 16)."""
        x = self.maxpool(self.conv1(x))
        maps: Tensor = self.conv5(self.conv4(self.conv3(self.conv2(x))))
        return maps


def _stage(channels: int, out: int, *, instance_norm: bool = False, shrink: bool = False) -> nn.Sequential:
    """Builds a stage of two blocks; shrink: then halves height and width."""
    blocks = [Block(c, out, instance_norm=instance_norm) for c in (channels, out)]
    return nn.Sequential(*blocks, *([nn.Sequential(conv_norm(out, out), nn.AvgPool2d(2))] if shrink else []))
