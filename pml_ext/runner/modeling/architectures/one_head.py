"""META_ARCHITECTURE Baseline: a backbone and a head on it."""

from typing import Any, NamedTuple

from torch import Tensor, nn
from yacs.config import CfgNode as CN

from pml_ext.runner.modeling.network import build_network


class NetworkOutput(NamedTuple):
    """What the losses see: features (B, D) and logits (B, classes), each loss a mean over them; scores for accuracy.

    In evaluation there is one feature, the embedding, and no logits. scores are without CLS_LAYER's margin. With
    Partial FC the logits are embeddings, and there are no scores.
    """

    features: tuple[Tensor, ...]
    logits: tuple[Tensor, ...] = ()
    scores: Tensor | None = None


class OneHead:
    """One feature for the metric losses, the logits of one classifier for the ID losses.

    An architecture builds the parts of a network, and sends images through a module that has them as children. The
    module's weights then have the names that they have in FastReID's checkpoints.
    """

    def parts(self, options: CN, images: CN, *, num_classes: int) -> dict[str, nn.Module]:
        """The parts by name; the arguments are build_network's."""
        backbone, heads = build_network(options, images, num_classes=num_classes)
        return {"backbone": backbone, "heads": heads}

    def feature_size(self, module: Any) -> int:
        """Size of the first feature that the metric losses see."""
        return int(module.heads.feature_size)

    def output(self, module: Any, images: Tensor, labels: Tensor | None = None) -> NetworkOutput:
        """Standardised images (B, C, H, W), and labels (B,) in training, through the module's parts."""
        output = module.heads(module.backbone(images), labels)
        return NetworkOutput((output.features,), () if output.logits is None else (output.logits,), output.scores)

    def require_size(self, module: Any, images: Tensor) -> None:
        """Raise a UserError if the network, in evaluation mode, cannot take images of this size."""
        if isinstance(module.heads.pool_layer, nn.Identity):
            module.heads(module.backbone(images))
