"""META_ARCHITECTURE MGN: three branches that look at the whole person, at halves and at thirds."""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from yacs.config import CfgNode as CN

from pml_ext._errors import UserError
from pml_ext.runner.modeling.architectures.one_head import NetworkOutput, OneHead
from pml_ext.runner.modeling.backbones import warn_of_unused
from pml_ext.runner.modeling.backbones.resnet import remove_stride
from pml_ext.runner.modeling.heads import HeadOutput, build_head
from pml_ext.runner.modeling.names import MGN_HEADS
from pml_ext.runner.modeling.network import build_network


class MGN(OneHead):
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

    def parts(self, options: CN, images: CN, *, num_classes: int) -> dict[str, nn.Module]:
        warn_of_unused(options.BACKBONE, "WITH_NL", on="MGN")
        net: Any = build_network(options, images, num_classes=0)[0]
        whole, striped = net.layer4, copy.deepcopy(net.layer4)
        remove_stride(striped[0])
        rest = nn.Sequential(*net.layer3[1:])
        shared = (net.conv1, net.bn1, net.act1, net.maxpool, net.layer1, net.layer2, net.layer3[0])
        branches = {
            name: nn.Sequential(copy.deepcopy(rest), copy.deepcopy(last))
            for name, last in (("b1", whole), ("b2", striped), ("b3", striped))
        }
        channels = int(net.num_features)
        heads = {name: build_head(options.HEADS, feat_dim=channels, num_classes=num_classes) for name in MGN_HEADS}
        return {"backbone": nn.Sequential(*shared), **branches, **heads}

    def feature_size(self, module: Any) -> int:
        return int(module.b1_head.feature_size)

    def output(self, module: Any, images: Tensor, labels: Tensor | None = None) -> NetworkOutput:
        shared = module.backbone(images)
        b1, b2, b3 = module.b1(shared), module.b2(shared), module.b3(shared)
        # in the order of MGN_HEADS
        maps = (b1, b2, b3, *_stripes(b2, 2), *_stripes(b3, 3))
        outputs: list[HeadOutput] = [
            getattr(module, name)(part, labels) for name, part in zip(MGN_HEADS, maps, strict=True)
        ]
        features = [output.features for output in outputs]
        if not module.training:
            return NetworkOutput((torch.cat(features, dim=1),))
        joined = (torch.cat(features[3:5], dim=1), torch.cat(features[5:], dim=1))
        logits = tuple(output.logits for output in outputs if output.logits is not None)
        return NetworkOutput((*features[:3], *joined), logits, outputs[0].scores)

    def require_size(self, module: Any, images: Tensor) -> None:
        _stripes(module.b3(module.backbone(images)), 3)


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
