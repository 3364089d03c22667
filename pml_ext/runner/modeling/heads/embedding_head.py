"""FastReID's EmbeddingHead: feature map to embedding and class scores."""

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from yacs.config import CfgNode as CN

from pml_ext._errors import UserError
from pml_ext.runner.modeling.backbones.norms import build_norm
from pml_ext.runner.modeling.configurable import configurable
from pml_ext.runner.modeling.heads.layers import CLS_LAYERS, POOL_LAYERS
from pml_ext.runner.registry import REID_HEADS_REGISTRY


@REID_HEADS_REGISTRY.register()
class EmbeddingHead(nn.Module):
    """Pool, optional reduction to EMBEDDING_DIM (through HIDDEN_DIM or at once), optional BNNeck, optional classifier.

    Made from a config, or from arguments. `weight` (num_classes, D) are the class vectors, None without a classifier;
    `cls_layer` turns similarities into logits.

    Args:
        feat_dim: channels of the pooled map (Flatten: channels × height × width).
        embedding_dim, hidden_dim, num_classes: 0 leaves that layer out.
        scale, margin, filter_above: of the classification layer.
        partial_fc: the loss has the class vectors, and takes the neck's output as `cls_outputs`.
    """

    @configurable
    def __init__(
        self,
        *,
        feat_dim: int,
        embedding_dim: int,
        num_classes: int,
        hidden_dim: int = 0,
        pool_type: str,
        norm_type: str,
        with_bnneck: bool,
        neck_feat: str,
        cls_type: str = "Linear",
        scale: float = 1.0,
        margin: float = 0.0,
        filter_above: float = 0.0,
        partial_fc: bool = False,
    ) -> None:
        super().__init__()
        self.neck_feat, self.feat_dim, self.partial_fc = neck_feat, feat_dim, partial_fc
        self.pool_layer = POOL_LAYERS[pool_type]()
        embedding_size = embedding_dim or feat_dim
        neck: list[nn.Module] = []
        sizes = [feat_dim, *([hidden_dim] if hidden_dim else []), *([embedding_dim] if embedding_dim else [])]
        for before, after in pairwise(sizes):
            layer = nn.Conv2d(before, after, 1, bias=False)
            nn.init.kaiming_normal_(layer.weight, mode="fan_out")
            neck.append(layer)
        if with_bnneck:
            neck.append(build_norm(norm_type, embedding_size))
            if isinstance(neck[-1], nn.modules.batchnorm._BatchNorm):
                neck[-1].bias.requires_grad_(False)  # no shift (Luo et al. 2019)
        self.bottleneck = nn.Sequential(*neck)
        self.cls_layer = CLS_LAYERS[cls_type](scale=scale, margin=margin, filter_above=filter_above)
        self.weight: nn.Parameter | None = None
        if num_classes and not partial_fc:
            self.weight = nn.Parameter(torch.empty(num_classes, embedding_size))
            nn.init.normal_(self.weight, std=0.01)

    @classmethod
    def from_config(cls, cfg: CN) -> dict[str, Any]:
        """The arguments of a config; MODEL.BACKBONE.FEAT_DIM and MODEL.HEADS.NUM_CLASSES are filled in by then."""
        heads = cfg.MODEL.HEADS
        if not cfg.MODEL.BACKBONE.FEAT_DIM:
            raise UserError(f"MODEL.BACKBONE.FEAT_DIM must be the channels of the map that {cls.__name__} gets; got 0")
        return {
            "feat_dim": cfg.MODEL.BACKBONE.FEAT_DIM,
            "embedding_dim": heads.EMBEDDING_DIM,
            "num_classes": heads.NUM_CLASSES,
            "hidden_dim": heads.HIDDEN_DIM,
            "pool_type": heads.POOL_LAYER,
            "norm_type": heads.NORM,
            "with_bnneck": heads.WITH_BNNECK,
            "neck_feat": heads.NECK_FEAT,
            "cls_type": heads.CLS_LAYER,
            "scale": heads.SCALE,
            "margin": heads.MARGIN,
            "filter_above": heads.FILTER_COSINE,
            "partial_fc": heads.PFC.ENABLED,
        }

    def forward(self, features: Tensor, targets: Tensor | None = None) -> Tensor | dict[str, Tensor]:
        """Embeddings of maps in tests; in training what the losses see.

        Args:
            features: (B, C, h, w).
            targets: (B,) classes from 0, which a classification layer with a margin needs in training.
        Returns:
            In tests (B, D), the neck's output. In training a dict: `features` (B, D), before the reduction and the
            neck or after both (NECK_FEAT); with a classifier `cls_outputs`, the ID loss's logits (with the margin),
            and `pred_class_logits`, the class scores without a margin.
        Raises:
            UserError: maps of another size than the config says.
        """
        pool_feat = self.pool_layer(features)
        if pool_feat.shape[2:] != (1, 1):
            raise UserError(
                f"MODEL.HEADS.POOL_LAYER Identity needs a backbone with maps of 1×1; got {tuple(pool_feat.shape[2:])}"
            )
        if pool_feat.shape[1] != self.feat_dim:
            raise UserError(
                f"MODEL.BACKBONE.FEAT_DIM must be {pool_feat.shape[1]} for images of this size; got {self.feat_dim}"
            )
        neck_feat: Tensor = self.bottleneck(pool_feat).flatten(1)
        if not self.training:
            return neck_feat
        outputs = {"features": neck_feat if self.neck_feat == "after" else pool_feat.flatten(1)}
        if self.partial_fc:
            outputs["cls_outputs"] = neck_feat
        elif self.weight is not None:
            similarities = self.cls_layer.similarities(neck_feat, self.weight)
            outputs["cls_outputs"] = self.cls_layer(similarities, targets)
            outputs["pred_class_logits"] = self.cls_layer.s * similarities
        return outputs
