"""META_ARCHITECTURE MGN: three branches that look at the whole person, at halves and at thirds."""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from yacs.config import CfgNode as CN

from pml_ext._errors import UserError
from pml_ext.runner.modeling.architectures.baseline import (
    Baseline,
    Batch,
    Outputs,
    columns_of,
    outputs_of_head,
    with_feature_size,
)
from pml_ext.runner.modeling.backbones import build_backbone
from pml_ext.runner.modeling.backbones.resnet import remove_stride
from pml_ext.runner.modeling.heads import build_heads
from pml_ext.runner.modeling.names import MGN_HEADS
from pml_ext.runner.registry import META_ARCH_REGISTRY


@META_ARCH_REGISTRY.register()
class MGN(Baseline):
    """FastReID's form of the Multiple Granularity Network, with its names of weights.

    The ResNet's first stages up to the first block of the third are shared. Each branch (b1, b2, b3) has the rest of
    the third stage and the fourth as its own, in b2 and b3 without the last stride. A head is on each branch's whole
    map, on b2's two horizontal stripes and on b3's three. An ID loss is the mean over the eight heads; a metric loss
    over five features: those of the three whole maps, of the two stripes joined, and of the three stripes joined. The
    embedding is all eight features joined.

    Paper: the triplet loss sees whole maps only, and the ID loss their features before the reduction; FastReID and
    here: as above. FastReID adds nothing for CircleLoss and Cosface; here they are added as TripletLoss is.

    Source: Wang et al., arXiv 1804.01438.
    """

    def __init__(self, cfg: CN) -> None:
        nn.Module.__init__(self)
        self._register_pixels(cfg.MODEL)
        net: Any = build_backbone(cfg)
        self.cfg = with_feature_size(cfg, net)
        whole, striped = net.layer4, copy.deepcopy(net.layer4)
        remove_stride(striped[0])
        rest = nn.Sequential(*net.layer3[1:])
        shared = (net.conv1, net.bn1, net.act1, net.maxpool, net.layer1, net.layer2, net.layer3[0])
        self.backbone = nn.Sequential(*shared)
        self.b1 = nn.Sequential(copy.deepcopy(rest), copy.deepcopy(whole))
        self.b2 = nn.Sequential(copy.deepcopy(rest), copy.deepcopy(striped))
        self.b3 = nn.Sequential(copy.deepcopy(rest), copy.deepcopy(striped))
        for name in MGN_HEADS:
            self.add_module(name, build_heads(self.cfg))

    def compute_outputs(self, batch: Batch) -> Outputs:
        """As Baseline's, with five features and eight `cls_outputs` in training."""
        shared = self.backbone(self.preprocess_image(batch))
        b1, b2, b3 = self.b1(shared), self.b2(shared), self.b3(shared)
        # in the order of MGN_HEADS
        maps = (b1, b2, b3, *_stripes(b2, 2), *_stripes(b3, 3))
        heads = [getattr(self, name) for name in MGN_HEADS]
        targets = batch.get("targets")
        outputs = [outputs_of_head(head, part, targets) for head, part in zip(heads, maps, strict=True)]
        features = [output["features"] for output in outputs]
        if not self.training:
            return columns_of(batch) | {"features": torch.cat(features, dim=1)}
        joined = (torch.cat(features[3:5], dim=1), torch.cat(features[5:], dim=1))
        found: Outputs = columns_of(batch) | {"features": (*features[:3], *joined)}
        if "cls_outputs" in outputs[0]:
            found["cls_outputs"] = tuple(output["cls_outputs"] for output in outputs)
            found["pred_class_logits"] = outputs[0]["pred_class_logits"]
        return found


def _stripes(feature_map: Tensor, count: int) -> tuple[Tensor, ...]:
    """The map cut into horizontal stripes of equal height, the last may be lower."""
    found = feature_map.chunk(count, dim=2)
    if len(found) < count:
        raise UserError(
            f"MODEL.META_ARCHITECTURE MGN cuts its maps into {count} stripes of equal height; they are "
            f"{feature_map.shape[2]} high for images of this size: set INPUT.SIZE_TRAIN and SIZE_TEST to a height of "
            "48 to 63, or 80 or more"
        )
    return found
