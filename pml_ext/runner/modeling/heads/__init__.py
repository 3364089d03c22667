"""Heads: feature map to embedding and class scores."""

from typing import Any

from torch import nn
from yacs.config import CfgNode as CN

from pml_ext.distributed import PartialFC
from pml_ext.runner.modeling.heads.embedding_head import EmbeddingHead
from pml_ext.runner.modeling.heads.layers import CLS_LAYERS, POOL_LAYERS
from pml_ext.runner.registry import REID_HEADS_REGISTRY

__all__ = ["CLS_LAYERS", "POOL_LAYERS", "EmbeddingHead", "build_heads", "build_partial_fc"]

REID_HEADS_REGISTRY.register("FaceHead")(EmbeddingHead)


def build_heads(cfg: CN) -> nn.Module:
    """The head of MODEL.HEADS.NAME; for several heads, call it with a clone of the config for each."""
    head: nn.Module = REID_HEADS_REGISTRY.get(cfg.MODEL.HEADS.NAME)(cfg)
    return head


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
    of_layer: dict[str, Any] = {}
    if not margin:
        margin = CLS_LAYERS[options.CLS_LAYER].margin_name
        m = None if margin == "softmax" else options.MARGIN
        of_layer = {"scale": options.SCALE, "m": m, "epsilon": epsilon, "filter_above": options.FILTER_COSINE}
    return PartialFC(
        embedding_size, num_classes, margin=margin, sample_rate=options.PFC.SAMPLE_RATE, seed=seed, part=part,
        **of_layer,
    )  # fmt: skip
