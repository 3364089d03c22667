"""The backbones that register without being asked."""

from pml_ext.runner.modeling.backbones import (  # noqa: F401
    convnet,
    insightface,
    osnet,
    resnet,
    shufflenetv2,
    timm_networks,
    torchvision_networks,
    vit,
)
