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
    options: CN,
    *,
    embedding_size: int,
    num_classes: int,
    seed: int,
    part: tuple[int, int],
    margin: str = "",
    epsilon: float = 0.0,
) -> PartialFC:
    """The loss whose classes ranks divide by the config's MODEL.HEADS, for a rank of so many.

    margin: PartialFC's, of a loss that does without CLS_LAYER; else it is the cross-entropy of that layer's scores.
    """
    of_layer = {}
    if not margin:
        margin = CLS_LAYERS[options.CLS_LAYER].margin_name
        m = None if margin == "softmax" else options.MARGIN
        of_layer = {"scale": options.SCALE, "m": m, "epsilon": epsilon, "filter_above": options.FILTER_COSINE}
    return PartialFC(
        embedding_size, num_classes, margin=margin, sample_rate=options.PFC.SAMPLE_RATE, seed=seed, part=part,
        **of_layer,
    )  # fmt: skip
