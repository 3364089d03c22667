"""torchvision's convolutional networks as backbones, and FastReID's MobileNets, which have torchvision's layers."""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torchvision import __version__, models
from torchvision.models.feature_extraction import create_feature_extractor, get_graph_node_names
from torchvision.ops import Conv2dNormActivation
from yacs.config import CfgNode as CN

from pml_ext._shared.errors import UserError
from pml_ext._shared.names import hint
from pml_ext.runner.modeling.backbones.registration import built_in
from pml_ext.runner.modeling.weights.imagenet import TORCHVISION

# Their published weights expect images at half the usual contrast, which transform_input provides; the auxiliary
# classifiers are for training only.
_OF_INCEPTIONS = {"aux_logits": False, "transform_input": True, "init_weights": True}
_INCEPTIONS = ("googlenet", "inception_v3")
_POOLING = ("avgpool", "adaptive_avg_pool2d", "mean")  # names of the step after the last map in torchvision


class TorchvisionBackbone(nn.Module):
    """A torchvision network up to the feature map that it pools."""

    def __init__(self, name: str) -> None:
        super().__init__()
        known = models.list_models(module=models)
        if name not in known:
            raise UserError(f"MODEL.BACKBONE.NAME: torchvision {__version__} has no model {name!r}{hint(name, known)}")
        net = models.get_model(name, weights=None, **(_OF_INCEPTIONS if name in _INCEPTIONS else {}))
        steps = get_graph_node_names(net, suppress_diff_warning=True)[1]
        pooling = next((i for i, step in enumerate(steps) if step in _POOLING), 0)
        if pooling == 0:
            raise UserError(
                f"MODEL.BACKBONE.NAME: {name} of torchvision pools no feature map; take a convolutional network, such "
                "as torchvision:googlenet"
            )
        self.net: nn.Module = create_feature_extractor(net, {steps[pooling - 1]: "map"}, suppress_diff_warning=True)
        left_out = net.state_dict().keys() - self.net.state_dict().keys()
        of_training = {"aux1.", "aux2.", "AuxLogits.", "classifier."}  # torchreid's is the last
        self.only_in_files = tuple(sorted({f"{n.split('.')[0]}." for n in left_out} | of_training))
        without_numbers: Any = copy.deepcopy(self.net).to("meta").eval()
        self.num_features = int(without_numbers(torch.empty(1, 3, 224, 224, device="meta"))["map"].shape[1])

    def forward(self, x: Tensor) -> Tensor:
        """Maps RGB images (B, 3, H, W) to maps (B, num_features, h, w)."""
        feature_map: Tensor = self.net(x)["map"]
        return feature_map


@built_in("torchvision:<model>")
def build_torchvision(options: CN, *, channels: int, **_: object) -> TorchvisionBackbone:
    """Builds any convolutional network of torchvision, for RGB images (ours)."""
    if channels != 3:
        raise UserError(
            f"MODEL.BACKBONE.NAME: {options.NAME} needs RGB images, but MODEL.PIXEL_MEAN has {channels} value; set "
            "three values of PIXEL_MEAN and PIXEL_STD (grey images are then read as RGB)"
        )
    return TorchvisionBackbone(options.NAME.removeprefix(TORCHVISION))


# DEPTH -> torchvision's network, channels of the last map
_MOBILENET_V3 = {"Large": (models.mobilenet_v3_large, 1280), "Small": (models.mobilenet_v3_small, 1024)}


class MobileNet(nn.Module):
    """MobileNet from torchvision's blocks (the first is the stem), then a 1×1 convolution, its norm and activation."""

    def __init__(self, features: nn.Sequential, last: Any, in_channels: int, *, only_in_files: tuple[str, ...]) -> None:
        super().__init__()
        self.features, self.conv, self.only_in_files = features, nn.Sequential(*last), only_in_files
        self.num_features = last.out_channels
        if in_channels != 3:
            stem: Any = features[0]
            stem[0] = nn.Conv2d(in_channels, stem[0].out_channels, 3, 2, 1, bias=False)
            nn.init.kaiming_normal_(stem[0].weight, mode="fan_out")

    def forward(self, x: Tensor) -> Tensor:
        """Maps images (B, C, H, W) to maps (B, num_features, H / 32, W / 32)."""
        maps: Tensor = self.conv(self.features(x))
        return maps


@built_in("build_mobilenetv2_backbone", depths=("1.0x", "0.75x", "0.5x", "0.35x", "0.25x", "0.1x"))
def build_mobilenetv2(options: CN, *, channels: int, **_: object) -> MobileNet:
    """Builds a MobileNetV2. DEPTH is the width: the factor of all channels except the last map's."""
    width = float(options.DEPTH.removesuffix("x"))
    *features, last = models.MobileNetV2(width_mult=width, round_nearest=4 if width == 0.1 else 8).features
    for block in features[1:]:  # FastReID's blocks are flat
        block.conv = nn.Sequential(
            *(layer for part in block.conv for layer in (part if isinstance(part, nn.Sequential) else [part]))
        )
    return MobileNet(nn.Sequential(*features), last, channels, only_in_files=("classifier.",))


@built_in("build_mobilenetv3_backbone", depths=("Large", "Small"))
def build_mobilenetv3(options: CN, *, channels: int, **_: object) -> MobileNet:
    build, num_features = _MOBILENET_V3[options.DEPTH]
    # FastReID's batch norms have torch's defaults, torchvision's do not.
    features = build(weights=None, norm_layer=nn.BatchNorm2d).features
    last = Conv2dNormActivation(features[-1].out_channels, num_features, 1, activation_layer=nn.ReLU6)
    nn.init.kaiming_normal_(last[0].weight, mode="fan_out")
    # An ImageNet file has a classifier and no last convolution.
    return MobileNet(features, last, channels, only_in_files=("classifier.", "conv."))
