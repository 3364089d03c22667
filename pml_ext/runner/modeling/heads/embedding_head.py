"""FastReID's EmbeddingHead: feature map to embedding and class scores."""

from itertools import pairwise
from typing import NamedTuple

from torch import Tensor, nn

from pml_ext._errors import UserError
from pml_ext.runner.modeling.backbones.norms import build_norm
from pml_ext.runner.modeling.heads.classification import CLS_LAYERS, ToTheLoss
from pml_ext.runner.modeling.heads.pooling import POOL_LAYERS


class HeadOutput(NamedTuple):
    """What the losses see: the metric losses' feature (NECK_FEAT), the ID loss's logits, class scores for accuracy.

    `logits` have CLS_LAYER's margin in them, `scores` not. Both are None without a classifier and in evaluation.
    """

    features: Tensor
    logits: Tensor | None
    scores: Tensor | None = None


class EmbeddingHead(nn.Module):
    """Pool, optional reduction to EMBEDDING_DIM (through HIDDEN_DIM or at once), optional BNNeck, optional classifier.

    Training gives the feature before the reduction and the neck or after both (NECK_FEAT), and class scores of the
    neck's output; evaluation gives the neck's output, as FastReID does.

    `feat_dim` counts the pooled map's channels (Flatten: channels × height × width). 0 for embedding_dim, hidden_dim or
    num_classes leaves that layer out. Scale, margin and filter_above are the classifier's. partial_fc: the loss has
    the class vectors, and takes the neck's output as `logits`.
    """

    def __init__(
        self,
        feat_dim: int,
        embedding_dim: int,
        num_classes: int,
        *,
        hidden_dim: int = 0,
        pool: str,
        norm: str,
        bnneck: bool,
        neck_feat: str,
        classifier: str = "Linear",
        scale: float = 1.0,
        margin: float = 0.0,
        filter_above: float = 0.0,
        partial_fc: bool = False,
    ) -> None:
        super().__init__()
        self.neck_feat, self.feat_dim = neck_feat, feat_dim
        self.pool_layer = POOL_LAYERS[pool]()
        self.embedding_size = embedding_dim or feat_dim
        # The size of what NECK_FEAT hands to the metric losses.
        self.feature_size = self.embedding_size if neck_feat == "after" else feat_dim
        neck: list[nn.Module] = []
        sizes = [feat_dim, *([hidden_dim] if hidden_dim else []), *([embedding_dim] if embedding_dim else [])]
        for before, after in pairwise(sizes):
            layer = nn.Conv2d(before, after, 1, bias=False)
            nn.init.kaiming_normal_(layer.weight, mode="fan_out")
            neck.append(layer)
        if bnneck:
            neck.append(build_norm(norm, self.embedding_size))
            if isinstance(neck[-1], nn.modules.batchnorm._BatchNorm):
                neck[-1].bias.requires_grad_(False)  # no shift (Luo et al. 2019)
        self.bottleneck = nn.Sequential(*neck)
        self.classifier: nn.Module | None = None
        if num_classes and partial_fc:
            self.classifier = ToTheLoss()
        elif num_classes:
            options = {"scale": scale, "margin": margin, "filter_above": filter_above}
            self.classifier = CLS_LAYERS[classifier](self.embedding_size, num_classes, **options)

    def forward(self, feature_map: Tensor, labels: Tensor | None = None) -> HeadOutput:
        """feature_map (B, C, h, w); labels (B,) from 0, which a CLS_LAYER with a margin needs in training."""
        pooled = self.pool_layer(feature_map)
        if pooled.shape[2:] != (1, 1):
            raise UserError(
                f"MODEL.HEADS.POOL_LAYER Identity needs a backbone with maps of 1×1; got {tuple(pooled.shape[2:])}"
            )
        if pooled.shape[1] != self.feat_dim:
            raise UserError(
                f"MODEL.BACKBONE.FEAT_DIM must be {pooled.shape[1]} for images of this size; got {self.feat_dim}"
            )
        neck = self.bottleneck(pooled).flatten(1)
        if not self.training:
            return HeadOutput(neck, None)
        features = neck if self.neck_feat == "after" else pooled.flatten(1)
        if self.classifier is None:
            return HeadOutput(features, None)
        return HeadOutput(features, *self.classifier(neck, labels))
