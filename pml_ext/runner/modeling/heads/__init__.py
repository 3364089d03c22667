"""Heads: feature map to embedding and class scores."""

from yacs.config import CfgNode as CN

from pml_ext.runner.modeling.heads.classification import CLS_LAYERS
from pml_ext.runner.modeling.heads.embedding_head import EmbeddingHead, HeadOutput
from pml_ext.runner.modeling.heads.pooling import POOL_LAYERS

__all__ = ["CLS_LAYERS", "POOL_LAYERS", "EmbeddingHead", "HeadOutput", "build_head"]


def build_head(options: CN, *, feat_dim: int, num_classes: int) -> EmbeddingHead:
    """The head of the config's MODEL.HEADS, by EmbeddingHead's arguments."""
    return EmbeddingHead(
        feat_dim,
        options.EMBEDDING_DIM,
        num_classes,
        hidden_dim=options.HIDDEN_DIM,
        pool=options.POOL_LAYER,
        norm=options.NORM,
        bnneck=options.WITH_BNNECK,
        neck_feat=options.NECK_FEAT,
        classifier=options.CLS_LAYER,
        scale=options.SCALE,
        margin=options.MARGIN,
    )
