"""The network of a config: its backbone, and its head on top of that."""

import torch
from torch import nn
from yacs.config import CfgNode as CN

from pml_ext._errors import UserError
from pml_ext.runner.modeling.backbones import build_backbone
from pml_ext.runner.modeling.backbones.convnet import ConvNet
from pml_ext.runner.modeling.heads import EmbeddingHead, build_head
from pml_ext.runner.modeling.image_sizes import ImageSizes
from pml_ext.runner.modeling.names import BACKBONES


def build_network(options: CN, images: CN, *, num_classes: int) -> tuple[nn.Module, EmbeddingHead]:
    """Backbone and head of the config's MODEL and INPUT; num_classes is 0 where no loss needs class scores.

    MODEL.WEIGHTS replace every weight afterwards, so BACKBONE.PRETRAIN has no effect beside them.
    """
    channels, sizes = len(options.PIXEL_MEAN), ImageSizes.of(images)
    pretrained = options.BACKBONE.PRETRAIN and not options.WEIGHTS
    backbone = build_backbone(options.BACKBONE, channels=channels, sizes=sizes, pretrained=pretrained)
    if options.HEADS.POOL_LAYER == "Flatten":
        features = _flat_size(options.BACKBONE, backbone, channels, sizes)
    else:
        features = int(backbone.num_features)  # type: ignore[arg-type]
        if options.BACKBONE.FEAT_DIM not in (0, features):
            depth = f" of DEPTH {options.BACKBONE.DEPTH}" if options.BACKBONE.NAME in BACKBONES else ""
            raise UserError(
                f"MODEL.BACKBONE.FEAT_DIM must be {features} for {options.BACKBONE.NAME}{depth}; "
                f"got {options.BACKBONE.FEAT_DIM}"
            )
    return backbone, build_head(options.HEADS, feat_dim=features, num_classes=num_classes)


def _flat_size(options: CN, backbone: nn.Module, channels: int, sizes: ImageSizes) -> int:
    """Channels × height × width of the feature map: FastReID's FEAT_DIM, checked where the image size is given.

    ConvNet's FEAT_DIM is its channels, so its map's size is only measured.
    """
    size = list(sizes.train)
    fixed = size[0] > 0 and size == sizes.test
    if not fixed and (isinstance(backbone, ConvNet) or size != sizes.test):
        raise UserError(
            f"MODEL.HEADS.POOL_LAYER Flatten needs one fixed image size: INPUT.SIZE_TRAIN is {size}, "
            f"SIZE_TEST is {sizes.test}"
        )
    if not fixed and not options.FEAT_DIM:
        raise UserError(
            "MODEL.BACKBONE.FEAT_DIM must be the channels × height × width of the feature map for Flatten and images "
            "without a fixed size (INPUT.SIZE_TRAIN [0])"
        )
    if not fixed:
        return int(options.FEAT_DIM)
    was_training = backbone.training
    with torch.no_grad():
        feature_map = backbone.eval()(torch.zeros(1, channels, size[0], size[-1]))
    backbone.train(was_training)
    measured: int = feature_map.numel()
    if not isinstance(backbone, ConvNet) and options.FEAT_DIM not in (0, measured):
        raise UserError(
            f"MODEL.BACKBONE.FEAT_DIM must be {measured} ({'×'.join(map(str, feature_map.shape[1:]))}) for "
            f"{options.NAME} at {size} with Flatten; got {options.FEAT_DIM}"
        )
    return measured
