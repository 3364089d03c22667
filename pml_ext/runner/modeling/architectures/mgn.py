"""META_ARCHITECTURE MGN: three branches for the complete person, halves and thirds."""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from yacs.config import CfgNode as CN

from pml_ext._shared.errors import UserError
from pml_ext.runner.modeling.architectures.baseline import Baseline
from pml_ext.runner.modeling.backbones import build_backbone
from pml_ext.runner.modeling.backbones.resnet import remove_stride
from pml_ext.runner.modeling.heads import MGN_HEADS, build_heads
from pml_ext.runner.modeling.interfaces import Batch, Outputs, columns_of, outputs_of_head, with_feature_size
from pml_ext.runner.registry import META_ARCH_REGISTRY


@META_ARCH_REGISTRY.register()
class MGN(Baseline):
    """FastReID's Multiple Granularity Network, with its parameter names.

    The branches share the ResNet up to the first block of the third stage. Each branch (b1, b2, b3) has a copy of
    the rest of the third stage and of the fourth; b2 and b3 omit the last stride. There is a head for each branch's
    complete map, for b2's two horizontal stripes and for b3's three. An ID loss is the mean over the eight heads. A
    metric loss is the mean over five features: the three complete maps, the two stripes concatenated, and the three
    stripes concatenated. The embedding is all eight features concatenated.

    Paper: the triplet loss uses complete maps only, and the ID loss their features before the reduction; FastReID and
    here: as above. FastReID ignores CircleLoss and Cosface here; this class treats them like TripletLoss.

    Source: Wang et al., arXiv 1804.01438.
    """

    def __init__(self, cfg: CN) -> None:
        nn.Module.__init__(self)
        self._register_pixels(cfg.MODEL.PIXEL_MEAN, cfg.MODEL.PIXEL_STD)
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
        """Like Baseline's, with five features and eight `cls_outputs` in training."""
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
        combined: Outputs = columns_of(batch) | {"features": (*features[:3], *joined)}
        if "cls_outputs" in outputs[0]:
            combined["cls_outputs"] = tuple(output["cls_outputs"] for output in outputs)
            combined["pred_class_logits"] = outputs[0]["pred_class_logits"]
        return combined


def _stripes(feature_map: Tensor, count: int) -> tuple[Tensor, ...]:
    """Splits the map into horizontal stripes of equal height; the last may be lower."""
    stripes = feature_map.chunk(count, dim=2)
    if len(stripes) < count:
        raise UserError(
            f"MODEL.META_ARCHITECTURE MGN cuts its maps into {count} stripes of equal height; they are "
            f"{feature_map.shape[2]} high for images of this size: set INPUT.SIZE_TRAIN and SIZE_TEST to a height of "
            "48 to 63, or 80 or more"
        )
    return stripes
