"""Architectures (MODEL.META_ARCHITECTURE), which connect a network's parts and compute its losses."""

from torch import nn
from yacs.config import CfgNode as CN

from pml_ext.runner.modeling.architectures.baseline import Baseline
from pml_ext.runner.modeling.architectures.mgn import MGN
from pml_ext.runner.registry import META_ARCH_REGISTRY

__all__ = ["MGN", "Baseline", "build_model", "overrides_forward"]

META_ARCH_REGISTRY.register("FaceBaseline")(Baseline)


def build_model(cfg: CN, *, num_classes: int | None = None, pretrained: bool = False) -> nn.Module:
    """Builds the architecture of MODEL.META_ARCHITECTURE.

    num_classes: replaces MODEL.HEADS.NUM_CLASSES, which the config.yaml of a run has; 0: no classifier.
    pretrained: whether to apply MODEL.BACKBONE.PRETRAIN; only at the start of training.
    """
    cfg = cfg.clone()
    pretrained = pretrained and cfg.MODEL.BACKBONE.PRETRAIN
    cfg.merge_from_list(["MODEL.BACKBONE.PRETRAIN", pretrained])
    if num_classes is not None:
        cfg.merge_from_list(["MODEL.HEADS.NUM_CLASSES", num_classes])
    model: nn.Module = META_ARCH_REGISTRY.get(cfg.MODEL.META_ARCHITECTURE)(cfg)
    return model


def overrides_forward(name: str) -> bool:
    """Returns whether an architecture replaces Baseline's `forward`, so that the trainer gets only its losses."""
    architecture = META_ARCH_REGISTRY.get(name)
    return not isinstance(architecture, type) or getattr(architecture, "forward", None) is not Baseline.forward
