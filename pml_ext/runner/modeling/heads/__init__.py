"""Heads: feature map to embedding and class scores."""

from yacs.config import CfgNode as CN

from pml_ext.distributed import PartialFC
from pml_ext.runner.modeling.heads.classification import CLS_LAYERS
from pml_ext.runner.modeling.heads.embedding_head import EmbeddingHead, HeadOutput
from pml_ext.runner.modeling.heads.pooling import POOL_LAYERS

__all__ = ["CLS_LAYERS", "POOL_LAYERS", "EmbeddingHead", "HeadOutput", "build_head", "build_partial_fc"]


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
        filter_above=options.FILTER_COSINE,
        partial_fc=options.PFC.ENABLED,
    )


def build_partial_fc(
    options: CN, epsilon: float, *, embedding_size: int, num_classes: int, seed: int, part: tuple[int, int]
) -> PartialFC:
    """The classifier and cross-entropy of the config's MODEL.HEADS with PFC.ENABLED, for a rank of so many."""
    margin = CLS_LAYERS[options.CLS_LAYER].margin_name
    return PartialFC(
        embedding_size,
        num_classes,
        margin=margin,
        scale=options.SCALE,
        m=None if margin == "softmax" else options.MARGIN,
        sample_rate=options.PFC.SAMPLE_RATE,
        epsilon=epsilon,
        seed=seed,
        part=part,
        filter_above=options.FILTER_COSINE,
    )
