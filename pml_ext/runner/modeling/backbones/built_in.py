"""The backbones that register without being asked."""

from pml_ext.runner.modeling.backbones import (  # noqa: F401
    convnet,
    insightface_vit,
    iresnet,
    mobilefacenet,
    mobilenet,
    osnet,
    regnet,
    repvgg,
    resnest,
    resnet,
    shufflenetv2,
    timm_backbone,
    torchvision_backbone,
    vit,
)
