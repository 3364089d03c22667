"""Heads: feature map to embedding (and class scores), FastReID's EmbeddingHead."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from yacs.config import CfgNode as CN

from pml_ext.training.backbones import build_norm
from pml_ext.training.config import ConfigError, require

HEADS = {
    "EmbeddingHead": "pooling, reduction to EMBEDDING_DIM, BNNeck, classifier",
    "FaceHead": "FastFace's name of the same without PFC",
}
CLS_LAYERS = {"Linear": "class scores as they are"}
POOL_LAYERS = {
    "GlobalAvgPool": lambda: nn.AdaptiveAvgPool2d(1),
    "GlobalMaxPool": lambda: nn.AdaptiveMaxPool2d(1),
    "Flatten": lambda: nn.Sequential(nn.Flatten(), nn.Unflatten(1, (-1, 1, 1))),
}


class HeadOutput(NamedTuple):
    """What the losses see: the metric losses' feature (NECK_FEAT) and the ID loss's class scores."""

    features: Tensor
    logits: Tensor | None


class EmbeddingHead(nn.Module):
    """Pool, optional reduction to EMBEDDING_DIM, optional BNNeck, optional classifier.

    Training gives the feature before or after the neck (NECK_FEAT) and class scores of the neck's output;
    evaluation gives the neck's output, as FastReID does.

    Args:
        feat_dim: channels of the pooled feature map (Flatten: channels × height × width).
        embedding_dim: size after the reduction; 0 for none.
        num_classes: classes of the ID loss; 0 builds no classifier.
    """

    def __init__(
        self, feat_dim: int, embedding_dim: int, num_classes: int, *, pool: str, norm: str, bnneck: bool, neck_feat: str
    ) -> None:
        super().__init__()
        self.neck_feat = neck_feat
        self.pool = POOL_LAYERS[pool]()
        self.embedding_size = embedding_dim or feat_dim
        # The size of what NECK_FEAT hands to the metric losses.
        self.feature_size = self.embedding_size if neck_feat == "after" else feat_dim
        neck: list[nn.Module] = []
        if embedding_dim:
            neck.append(nn.Conv2d(feat_dim, embedding_dim, 1, bias=False))
        if bnneck:
            neck.append(build_norm(norm, self.embedding_size))
            for name, parameter in neck[-1].named_parameters():
                parameter.requires_grad_(name != "bias")  # no shift (Luo et al. 2019)
        self.bottleneck = nn.Sequential(*neck)
        self.classifier = nn.Linear(self.embedding_size, num_classes, bias=False) if num_classes else None
        if self.classifier is not None:
            nn.init.normal_(self.classifier.weight, std=0.01)

    def forward(self, feature_map: Tensor) -> HeadOutput:
        pooled = self.pool(feature_map)
        neck = self.bottleneck(pooled).flatten(1)
        if not self.training:
            return HeadOutput(neck, None)
        logits = None if self.classifier is None else self.classifier(neck)
        return HeadOutput(neck if self.neck_feat == "after" else pooled.flatten(1), logits)


def build_head(cfg: CN, backbone: nn.Module, num_classes: int) -> EmbeddingHead:
    """The head named by MODEL.HEADS on top of a backbone; `num_classes` 0 where no loss needs class scores."""
    options = cfg.MODEL.HEADS
    require(options.NAME, HEADS, "MODEL.HEADS.NAME")
    require(options.POOL_LAYER, POOL_LAYERS, "MODEL.HEADS.POOL_LAYER")
    require(options.CLS_LAYER, CLS_LAYERS, "MODEL.HEADS.CLS_LAYER")
    require(options.NECK_FEAT, ["before", "after"], "MODEL.HEADS.NECK_FEAT")
    if options.EMBEDDING_DIM < 0:
        raise ConfigError(f"MODEL.HEADS.EMBEDDING_DIM must be 0 (no reduction) or more; got {options.EMBEDDING_DIM}")
    return EmbeddingHead(
        _flat_size(cfg, backbone) if options.POOL_LAYER == "Flatten" else cfg.MODEL.BACKBONE.FEAT_DIM,
        options.EMBEDDING_DIM,
        num_classes,
        pool=options.POOL_LAYER,
        norm=options.NORM,
        bnneck=options.WITH_BNNECK,
        neck_feat=options.NECK_FEAT,
    )


def _flat_size(cfg: CN, backbone: nn.Module) -> int:
    """Channels × height × width of the feature map at the config's image size."""
    size = list(cfg.INPUT.SIZE_TRAIN)
    if size[0] <= 0 or size != list(cfg.INPUT.SIZE_TEST):
        raise ConfigError(
            f"MODEL.HEADS.POOL_LAYER Flatten needs one fixed image size: INPUT.SIZE_TRAIN is {size}, "
            f"SIZE_TEST is {list(cfg.INPUT.SIZE_TEST)}"
        )
    was_training = backbone.training
    with torch.no_grad():
        feature_map = backbone.eval()(torch.zeros(1, len(cfg.MODEL.PIXEL_MEAN), size[0], size[-1]))
    backbone.train(was_training)
    return int(feature_map.numel())
