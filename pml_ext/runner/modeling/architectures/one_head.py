"""META_ARCHITECTURE Baseline: a backbone and a head on it."""

from typing import Any

from torch import Tensor, nn
from yacs.config import CfgNode as CN

from pml_ext.runner.modeling.architectures.parts import NetworkOutput
from pml_ext.runner.modeling.network import build_network


class OneHead:
    """One feature for the metric losses, the logits of one classifier for the ID losses."""

    def parts(self, options: CN, images: CN, *, num_classes: int) -> dict[str, nn.Module]:
        backbone, heads = build_network(options, images, num_classes=num_classes)
        return {"backbone": backbone, "heads": heads}

    def feature_size(self, module: Any) -> int:
        return int(module.heads.feature_size)

    def output(self, module: Any, images: Tensor, labels: Tensor | None = None) -> NetworkOutput:
        output = module.heads(module.backbone(images), labels)
        return NetworkOutput((output.features,), () if output.logits is None else (output.logits,), output.scores)

    def require_size(self, module: Any, images: Tensor) -> None:
        if isinstance(module.heads.pool_layer, nn.Identity):
            module.heads(module.backbone(images))
