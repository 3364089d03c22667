"""Heads: feature map to embedding and class scores."""

from yacs.config import CfgNode as CN

from pml_ext.training.config.load import ConfigError, require
from pml_ext.training.modeling.backbones import NORMS
from pml_ext.training.modeling.heads.classification import CLS_LAYERS
from pml_ext.training.modeling.heads.embedding_head import EmbeddingHead, HeadOutput
from pml_ext.training.modeling.heads.pooling import POOL_LAYERS

__all__ = ["CLS_LAYERS", "HEADS", "POOL_LAYERS", "REFUSED_HEADS", "EmbeddingHead", "HeadOutput", "build_head"]

HEADS: dict[str, type[EmbeddingHead]] = {
    "EmbeddingHead": EmbeddingHead,
    "FaceHead": EmbeddingHead,  # FastFace's name of the same without PFC
}
# FastReID's other heads -> why not
REFUSED_HEADS = {
    "ClasHead": "it tests class scores, not embeddings",
    "AttrHead": "attribute recognition is not built",
    "DSRHead": "partial ReID's spatial reconstruction is not built",
}


def build_head(options: CN, *, feat_dim: int, num_classes: int) -> EmbeddingHead:
    """A head.

    Args:
        options: the config's MODEL.HEADS.
        feat_dim: channels of the pooled feature map (Flatten: channels × height × width).
        num_classes: 0 where no loss needs class scores.
    Raises:
        ConfigError: an option that is unknown or not built.
    """
    if options.NAME in REFUSED_HEADS:
        raise ConfigError(f"MODEL.HEADS.NAME {options.NAME} is not built: {REFUSED_HEADS[options.NAME]}")
    require(options.NAME, HEADS, "MODEL.HEADS.NAME")
    require(options.POOL_LAYER, POOL_LAYERS, "MODEL.HEADS.POOL_LAYER")
    require(options.CLS_LAYER, CLS_LAYERS, "MODEL.HEADS.CLS_LAYER")
    require(options.NECK_FEAT, ["before", "after"], "MODEL.HEADS.NECK_FEAT")
    if options.WITH_BNNECK:
        require(options.NORM, NORMS, "MODEL.HEADS.NORM")
    if options.PFC.ENABLED:
        raise ConfigError(
            "MODEL.HEADS.PFC.ENABLED: FastFace's class-sharded classifier (Partial FC) is not built, every process "
            "holds all classes; set it to False"
        )
    if options.EMBEDDING_DIM < 0:
        raise ConfigError(f"MODEL.HEADS.EMBEDDING_DIM must be 0 (no reduction) or more; got {options.EMBEDDING_DIM}")
    return HEADS[options.NAME](
        feat_dim,
        options.EMBEDDING_DIM,
        num_classes,
        pool=options.POOL_LAYER,
        norm=options.NORM,
        bnneck=options.WITH_BNNECK,
        neck_feat=options.NECK_FEAT,
        classifier=options.CLS_LAYER,
        scale=options.SCALE,
        margin=options.MARGIN,
    )
