"""Architectures (MODEL.META_ARCHITECTURE): the parts of a network, how they work together, and its losses."""

from torch import nn
from yacs.config import CfgNode as CN

from pml_ext.runner.modeling.architectures.baseline import Baseline
from pml_ext.runner.modeling.architectures.mgn import MGN
from pml_ext.runner.registry import META_ARCH_REGISTRY, REID_HEADS_REGISTRY

__all__ = ["MGN", "Baseline", "build_model", "has_own_forward", "has_own_parts"]

META_ARCH_REGISTRY.register("FaceBaseline")(Baseline)


def build_model(cfg: CN, *, num_classes: int | None = None, pretrained: bool = False) -> nn.Module:
    """The architecture of MODEL.META_ARCHITECTURE.

    num_classes: MODEL.HEADS.NUM_CLASSES for it; None: that of the config for parts of a user, else no classifier.
    pretrained: whether MODEL.BACKBONE.PRETRAIN counts, as only where training begins.
    """
    if num_classes is None:
        num_classes = cfg.MODEL.HEADS.NUM_CLASSES if has_own_parts(cfg) else 0
    cfg = cfg.clone()
    pretrained = pretrained and cfg.MODEL.BACKBONE.PRETRAIN
    cfg.merge_from_list(["MODEL.HEADS.NUM_CLASSES", num_classes, "MODEL.BACKBONE.PRETRAIN", pretrained])
    model: nn.Module = META_ARCH_REGISTRY.get(cfg.MODEL.META_ARCHITECTURE)(cfg)
    return model


def has_own_forward(name: str) -> bool:
    """Whether an architecture does without Baseline's `forward`, so that the trainer sees its losses only."""
    architecture = META_ARCH_REGISTRY.get(name)
    return not isinstance(architecture, type) or getattr(architecture, "forward", None) is not Baseline.forward


def has_own_parts(cfg: CN) -> bool:
    """Whether the architecture or the head is a user's, which may want NUM_CLASSES for losses of its own."""
    model = cfg.MODEL
    entries = [META_ARCH_REGISTRY.entry(model.META_ARCHITECTURE), REID_HEADS_REGISTRY.entry(model.HEADS.NAME)]
    return any(not entry.is_ours for entry in entries)
