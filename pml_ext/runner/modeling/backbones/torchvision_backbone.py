"""Any convolutional network of torchvision as a backbone: GoogLeNet among them, which timm does not have."""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torchvision import __version__, models
from torchvision.models.feature_extraction import create_feature_extractor, get_graph_node_names
from yacs.config import CfgNode as CN

from pml_ext._errors import UserError
from pml_ext._names import hint
from pml_ext.runner.modeling.backbones.registration import built_in
from pml_ext.runner.modeling.names import TORCHVISION

# Their published weights expect images at half the usual contrast, which transform_input provides; the auxiliary
# classifiers are for training only.
_OF_INCEPTIONS = {"aux_logits": False, "transform_input": True, "init_weights": True}
_INCEPTIONS = ("googlenet", "inception_v3")
_POOLING = ("avgpool", "adaptive_avg_pool2d", "mean")  # what torchvision's networks call the step after their last map


class TorchvisionBackbone(nn.Module):
    """The feature map that the network pools."""

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
        """RGB images (B, 3, H, W) to maps (B, num_features, h, w)."""
        feature_map: Tensor = self.net(x)["map"]
        return feature_map


@built_in("torchvision:<model>", note="ours: any convolutional network of torchvision, for RGB images")
def build_torchvision(options: CN, *, channels: int, **_: object) -> TorchvisionBackbone:
    if channels != 3:
        raise UserError(
            f"MODEL.BACKBONE.NAME: {options.NAME} is for RGB images, and MODEL.PIXEL_MEAN has {channels} value; give "
            "PIXEL_MEAN and PIXEL_STD three (grey images are read as RGB then)"
        )
    return TorchvisionBackbone(options.NAME.removeprefix(TORCHVISION))
