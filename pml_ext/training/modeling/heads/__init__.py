"""Heads: feature map to embedding and class scores."""

import torch
from torch import nn
from yacs.config import CfgNode as CN

from pml_ext.training.config.load import ConfigError, require
from pml_ext.training.modeling.backbones import NORMS, check_norm_device
from pml_ext.training.modeling.backbones.convnet import ConvNet
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


def build_head(cfg: CN, backbone: nn.Module, num_classes: int) -> EmbeddingHead:
    """The head named by MODEL.HEADS on top of a backbone; `num_classes` 0 where no loss needs class scores.

    Raises:
        ConfigError: an option that is unknown, not built, or does not fit the backbone.
    """
    options = cfg.MODEL.HEADS
    if options.NAME in REFUSED_HEADS:
        raise ConfigError(f"MODEL.HEADS.NAME {options.NAME} is not built: {REFUSED_HEADS[options.NAME]}")
    require(options.NAME, HEADS, "MODEL.HEADS.NAME")
    require(options.POOL_LAYER, POOL_LAYERS, "MODEL.HEADS.POOL_LAYER")
    require(options.CLS_LAYER, CLS_LAYERS, "MODEL.HEADS.CLS_LAYER")
    require(options.NECK_FEAT, ["before", "after"], "MODEL.HEADS.NECK_FEAT")
    if options.WITH_BNNECK:
        require(options.NORM, NORMS, "MODEL.HEADS.NORM")
        check_norm_device(options.NORM, cfg.MODEL.DEVICE, "MODEL.HEADS.NORM")
    if options.PFC.ENABLED:
        raise ConfigError(
            "MODEL.HEADS.PFC.ENABLED: FastFace's class-sharded classifier (Partial FC) is not built, every process "
            "holds all classes; set it to False"
        )
    if options.EMBEDDING_DIM < 0:
        raise ConfigError(f"MODEL.HEADS.EMBEDDING_DIM must be 0 (no reduction) or more; got {options.EMBEDDING_DIM}")
    return HEADS[options.NAME](
        _flat_size(cfg, backbone) if options.POOL_LAYER == "Flatten" else cfg.MODEL.BACKBONE.FEAT_DIM,
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


def _flat_size(cfg: CN, backbone: nn.Module) -> int:
    """Channels × height × width of the feature map: FastReID's FEAT_DIM, checked where the image size is given.

    ConvNet's FEAT_DIM is its channels, so its map's size is only measured.
    """
    size, feat_dim = list(cfg.INPUT.SIZE_TRAIN), cfg.MODEL.BACKBONE.FEAT_DIM
    fixed = size[0] > 0 and size == list(cfg.INPUT.SIZE_TEST)
    if not fixed and (isinstance(backbone, ConvNet) or size != list(cfg.INPUT.SIZE_TEST)):
        raise ConfigError(
            f"MODEL.HEADS.POOL_LAYER Flatten needs one fixed image size: INPUT.SIZE_TRAIN is {size}, "
            f"SIZE_TEST is {list(cfg.INPUT.SIZE_TEST)}"
        )
    if not fixed:
        return int(feat_dim)  # images come as they are (SIZE_TRAIN [0]): the config knows their size
    was_training = backbone.training
    with torch.no_grad():
        feature_map = backbone.eval()(torch.zeros(1, len(cfg.MODEL.PIXEL_MEAN), size[0], size[-1]))
    backbone.train(was_training)
    measured = feature_map.numel()
    if not isinstance(backbone, ConvNet) and feat_dim != measured:
        raise ConfigError(
            f"MODEL.BACKBONE.FEAT_DIM must be {measured} ({'×'.join(map(str, feature_map.shape[1:]))}) for "
            f"{cfg.MODEL.BACKBONE.NAME} at {size} with Flatten; got {feat_dim}"
        )
    return measured
