"""Heads, which map feature maps to embeddings and class scores, with FastReID's pooling and classification layers."""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from yacs.config import CfgNode as CN

from pml_ext._ops.custom_gradient import no_autocast
from pml_ext._shared.checks import check_above_zero, check_choice, check_whole
from pml_ext._shared.errors import ArgumentError, UserError
from pml_ext.functional.losses.class_softmax import MARGINS
from pml_ext.losses import PartialFC
from pml_ext.runner.modeling.layers import build_norm, configurable
from pml_ext.runner.registry import REID_HEADS_REGISTRY

__all__ = ["CLS_LAYERS", "POOL_LAYERS", "EmbeddingHead", "build_heads", "build_partial_fc"]


class GeneralizedMean(nn.Module):
    """GeM pooling, (mean over positions of x^p)^(1/p), x ≥ 1e-6 (Radenović et al., TPAMI 2019); p may be trained."""

    def __init__(self, p: float = 3.0, *, trained: bool = False) -> None:
        super().__init__()
        self.p = nn.Parameter(torch.tensor([p])) if trained else p

    def forward(self, x: Tensor) -> Tensor:
        """Pools in 32 bits or more, because the cube of an activation overflows 16 bits."""
        with no_autocast(x.device):
            x = x.to(torch.promote_types(x.dtype, torch.float32)).clamp(min=1e-6)
            return x.pow(self.p).mean(dim=(2, 3), keepdim=True).pow(1 / self.p)


class AvgPlusMax(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(dim=(2, 3), keepdim=True) + x.amax(dim=(2, 3), keepdim=True)


class ClippedAvg(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(dim=(2, 3), keepdim=True).clamp(0.0, 1.0)


class Flatten(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1)[..., None, None]


POOL_LAYERS: dict[str, Callable[[], nn.Module]] = {
    "GlobalAvgPool": partial(nn.AdaptiveAvgPool2d, 1),
    "FastGlobalAvgPool": partial(nn.AdaptiveAvgPool2d, 1),
    "GlobalMaxPool": partial(nn.AdaptiveMaxPool2d, 1),
    "GeneralizedMeanPooling": GeneralizedMean,
    "GeneralizedMeanPoolingP": partial(GeneralizedMean, trained=True),
    "AdaptiveAvgMaxPool": AvgPlusMax,
    "ClipGlobalAvgPool": ClippedAvg,
    "Identity": nn.Identity,
    "Flatten": Flatten,
}


class Linear(nn.Module):
    """Logits scale · ⟨x, w_c⟩ without a bias; only subclasses use the margin."""

    margin_name = "softmax"
    """Key in MARGINS, and PartialFC's margin."""

    def __init__(self, *, scale: float, margin: float, filter_above: float = 0.0) -> None:
        super().__init__()
        check_above_zero(scale, "scale")
        self.s, self.m, self.filter_above = scale, margin, filter_above

    def similarities(self, embeddings: Tensor, weight: Tensor) -> Tensor:
        """Returns (B, C) inner products of embeddings (B, D) and class vectors (C, D)."""
        return nn.functional.linear(embeddings, weight)

    def forward(self, similarities: Tensor, targets: Tensor | None) -> Tensor:
        """Returns the ID loss's logits (B, C) for similarities (B, C); targets (B,) from 0 are not needed here."""
        return self.s * similarities


class _CosineMargin(Linear):
    """Logits scale · cosine, with a margin on the cosines of the true and of other classes; in 32 bits or more.

    With filter_above, other classes with a larger cosine have a logit of 0, as with PartialFC.
    """

    def similarities(self, embeddings: Tensor, weight: Tensor) -> Tensor:
        """Returns (B, C) cosines of embeddings (B, D) and class vectors (C, D)."""
        with no_autocast(embeddings.device):
            x = embeddings.to(torch.promote_types(embeddings.dtype, torch.float32))
            return nn.functional.linear(nn.functional.normalize(x), nn.functional.normalize(weight))

    def forward(self, similarities: Tensor, targets: Tensor | None) -> Tensor:
        if targets is None:
            raise ValueError(
                f"{type(self).__name__} needs labels of shape ({len(similarities)},) in training; got None"
            )
        cosines, true_class, rule = similarities, targets[:, None], MARGINS[self.margin_name]
        with no_autocast(cosines.device):
            logits = cosines if rule.others is None else rule.others(cosines, self.m)
            if self.filter_above:
                logits = logits.masked_fill(cosines > self.filter_above, 0)
            logits = logits.scatter(1, true_class, rule.target(cosines.gather(1, true_class), self.m))
            return self.s * logits


class CosSoftmax(_CosineMargin):
    """Own class: cos θ − margin (CosFace; Wang et al., CVPR 2018, eq. 4)."""

    margin_name = "cosface"


class ArcSoftmax(_CosineMargin):
    """Own class: cos(θ + margin), margin in radians (ArcFace; Deng et al., CVPR 2019, eq. 3).

    As in FastReID, θ + margin is not limited to π. In FastReID the arc cosine is nan for a cosine that is rounded to
    above 1, and its gradient is infinite at ±1; here both are finite.
    """

    margin_name = "arcface"


class CircleSoftmax(_CosineMargin):
    """Own class: α⁺ (cos θ − 1 + margin); others: α⁻ (cos θ − margin) (Sun et al., CVPR 2020, eq. 5 and 6).

    α⁺ = [1 + margin − cos θ]₊ and α⁻ = [cos θ + margin]₊ carry no gradient.
    """

    margin_name = "circle"


CLS_LAYERS = {layer.__name__: layer for layer in (Linear, CosSoftmax, ArcSoftmax, CircleSoftmax)}


@REID_HEADS_REGISTRY.register()
class EmbeddingHead(nn.Module):
    """Pooling, optional reduction to EMBEDDING_DIM (optionally through HIDDEN_DIM), optional BNNeck and classifier.

    Built from a config or from arguments. `weight` (num_classes, D) contains the class vectors, None without a
    classifier; `cls_layer` converts similarities to logits.

    Args:
        feat_dim: channels of the pooled map (Flatten: channels × height × width).
        embedding_dim, hidden_dim, num_classes: 0 omits that layer.
        scale, margin, filter_above: options of the classification layer.
        partial_fc: True if the loss has the class vectors; it then receives the neck's output as `cls_outputs`.
    """

    @configurable
    def __init__(
        self,
        *,
        feat_dim: int,
        embedding_dim: int,
        num_classes: int,
        hidden_dim: int = 0,
        pool_type: str,
        norm_type: str,
        with_bnneck: bool,
        neck_feat: str,
        cls_type: str = "Linear",
        scale: float = 1.0,
        margin: float = 0.0,
        filter_above: float = 0.0,
        partial_fc: bool = False,
    ) -> None:
        super().__init__()
        check_whole(embedding_dim, "embedding_dim", 0)
        check_whole(hidden_dim, "hidden_dim", 0)
        check_choice(neck_feat, ("before", "after"), "neck_feat")
        self.neck_feat, self.feat_dim, self.partial_fc = neck_feat, feat_dim, partial_fc
        self.pool_layer = POOL_LAYERS[pool_type]()
        neck: list[nn.Module] = []
        sizes = [size for size in (feat_dim, hidden_dim, embedding_dim) if size]
        for before, after in pairwise(sizes):
            layer = nn.Conv2d(before, after, 1, bias=False)
            nn.init.kaiming_normal_(layer.weight, mode="fan_out")
            neck.append(layer)
        if with_bnneck:
            neck.append(build_norm(norm_type, sizes[-1]))
            if isinstance(neck[-1], nn.modules.batchnorm._BatchNorm):
                neck[-1].bias.requires_grad_(False)  # no shift (Luo et al. 2019)
        self.bottleneck = nn.Sequential(*neck)
        self.cls_layer = CLS_LAYERS[cls_type](scale=scale, margin=margin, filter_above=filter_above)
        self.weight: nn.Parameter | None = None
        if num_classes and not partial_fc:
            self.weight = nn.Parameter(torch.empty(num_classes, sizes[-1]))
            nn.init.normal_(self.weight, std=0.01)

    @classmethod
    def from_config(cls, cfg: CN) -> dict[str, Any]:
        """Returns a config's arguments; MODEL.BACKBONE.FEAT_DIM and MODEL.HEADS.NUM_CLASSES must be set."""
        heads = cfg.MODEL.HEADS
        if not cfg.MODEL.BACKBONE.FEAT_DIM:
            raise UserError(f"MODEL.BACKBONE.FEAT_DIM must be the channels of the map that {cls.__name__} gets; got 0")
        arguments = {
            "feat_dim": cfg.MODEL.BACKBONE.FEAT_DIM,
            "embedding_dim": heads.EMBEDDING_DIM,
            "num_classes": heads.NUM_CLASSES,
            "hidden_dim": heads.HIDDEN_DIM,
            "pool_type": heads.POOL_LAYER,
            "norm_type": heads.NORM,
            "with_bnneck": heads.WITH_BNNECK,
            "neck_feat": heads.NECK_FEAT,
            "cls_type": heads.CLS_LAYER,
            "scale": heads.SCALE,
            "margin": heads.MARGIN,
            "filter_above": heads.FILTER_COSINE,
            "partial_fc": heads.PFC.ENABLED,
        }
        return arguments

    def forward(self, features: Tensor, targets: Tensor | None = None) -> Tensor | dict[str, Tensor]:
        """Returns embeddings of maps in tests, and the inputs of the losses in training.

        Args:
            features: (B, C, h, w).
            targets: (B,) classes from 0, which a classification layer with a margin needs in training.
        Returns:
            In tests (B, D), the neck's output. In training a dict: `features` (B, D), before the reduction and the
            neck or after both (NECK_FEAT); with a classifier `cls_outputs`, the ID loss's logits (with the margin),
            and `pred_class_logits`, the class scores without a margin.
        Raises:
            UserError: the maps' size differs from the config's.
        """
        pool_feat = self.pool_layer(features)
        if pool_feat.shape[2:] != (1, 1):
            raise UserError(
                f"MODEL.HEADS.POOL_LAYER Identity needs a backbone with maps of 1×1; got {tuple(pool_feat.shape[2:])}"
            )
        if pool_feat.shape[1] != self.feat_dim:
            raise UserError(
                f"MODEL.BACKBONE.FEAT_DIM must be {pool_feat.shape[1]} for images of this size; got {self.feat_dim}. "
                "With MODEL.HEADS.POOL_LAYER Flatten all images must have one size: INPUT.SIZE_TRAIN and SIZE_TEST"
            )
        neck_feat: Tensor = self.bottleneck(pool_feat).flatten(1)
        if not self.training:
            return neck_feat
        outputs = {"features": neck_feat if self.neck_feat == "after" else pool_feat.flatten(1)}
        if self.partial_fc:
            outputs["cls_outputs"] = neck_feat
        elif self.weight is not None:
            similarities = self.cls_layer.similarities(neck_feat, self.weight)
            outputs["cls_outputs"] = self.cls_layer(similarities, targets)
            outputs["pred_class_logits"] = self.cls_layer.s * similarities
        return outputs


REID_HEADS_REGISTRY.register("FaceHead")(EmbeddingHead)

MGN_HEADS = ("b1_head", "b2_head", "b3_head", "b21_head", "b22_head", "b31_head", "b32_head", "b33_head")
"""MGN's heads, in the order of the embedding."""


def build_heads(cfg: CN) -> nn.Module:
    """Builds the head of MODEL.HEADS.NAME; for several heads, call it with a clone of the config for each."""
    try:
        head: nn.Module = REID_HEADS_REGISTRY.get(cfg.MODEL.HEADS.NAME)(cfg)
    except ArgumentError as error:
        raise UserError(f"MODEL.HEADS.{error.name.upper()} {error.problem}") from error
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
    """Builds the loss whose classes are sharded over ranks, from the config's MODEL.HEADS.

    part: (rank, ranks).
    margin: PartialFC's margin for a loss that does not use CLS_LAYER. Empty: cross-entropy of that layer's scores.
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
