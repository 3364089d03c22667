"""Pooling and classification layers of heads, by FastReID's names (modeling/names.py describes them)."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from pml_ext._ops.numerics import no_autocast
from pml_ext.functional.losses.class_softmax import MARGINS


class GeneralizedMean(nn.Module):
    """(mean over places of x^p)^(1/p), x at least 1e-6 (GeM; Radenović et al., TPAMI 2019); p may be trained."""

    def __init__(self, p: float = 3.0, *, trained: bool = False) -> None:
        super().__init__()
        self.p = nn.Parameter(torch.tensor([p])) if trained else p

    def forward(self, x: Tensor) -> Tensor:
        """Computed in 32 bits or more: the cube of an activation overflows 16 bits."""
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
    """scale · ⟨x, w_c⟩, no bias; the margin is for the layers below."""

    margin_name = "softmax"
    """In MARGINS, and PartialFC's."""

    def __init__(self, *, scale: float, margin: float, filter_above: float = 0.0) -> None:
        super().__init__()
        self.s, self.m, self.filter_above = scale, margin, filter_above

    def similarities(self, embeddings: Tensor, weight: Tensor) -> Tensor:
        """(B, C) products of embeddings (B, D) and class vectors (C, D)."""
        return nn.functional.linear(embeddings, weight)

    def forward(self, similarities: Tensor, targets: Tensor | None) -> Tensor:
        """The ID loss's logits (B, C) of similarities (B, C); targets (B,) from 0 are not needed here."""
        return self.s * similarities


class _CosineMargin(Linear):
    """scale · cosine, the own class's and the others' each changed; in 32 bits at least.

    With filter_above, others of a larger cosine have a logit of 0, as with PartialFC.
    """

    def similarities(self, embeddings: Tensor, weight: Tensor) -> Tensor:
        """(B, C) cosines of embeddings (B, D) and class vectors (C, D)."""
        with no_autocast(embeddings.device):
            x = embeddings.to(torch.promote_types(embeddings.dtype, torch.float32))
            return nn.functional.linear(nn.functional.normalize(x), nn.functional.normalize(weight))

    def forward(self, similarities: Tensor, targets: Tensor | None) -> Tensor:
        if targets is None:
            raise ValueError(
                f"{type(self).__name__} needs labels of shape ({len(similarities)},) in training; got None"
            )
        cosines, own, rule = similarities, targets[:, None], MARGINS[self.margin_name]
        with no_autocast(cosines.device):
            logits = cosines if rule.others is None else rule.others(cosines, self.m)
            if self.filter_above:
                logits = logits.masked_fill(cosines > self.filter_above, 0)
            logits = logits.scatter(1, own, rule.own(cosines.gather(1, own), self.m))
            return self.s * logits


class CosSoftmax(_CosineMargin):
    """Own class: cos θ − margin (CosFace; Wang et al., CVPR 2018, eq. 4)."""

    margin_name = "cosface"


class ArcSoftmax(_CosineMargin):
    """Own class: cos(θ + margin), margin in radians (ArcFace; Deng et al., CVPR 2019, eq. 3).

    As in FastReID, nothing keeps θ + margin under π. In FastReID the arc cosine is nan for a cosine that
    rounding put over 1, and its gradient infinite at ±1; here both are finite.
    """

    margin_name = "arcface"


class CircleSoftmax(_CosineMargin):
    """Own class: α⁺ (cos θ − 1 + margin); others: α⁻ (cos θ − margin) (Sun et al., CVPR 2020, eq. 5 and 6).

    α⁺ = [1 + margin − cos θ]₊ and α⁻ = [cos θ + margin]₊ carry no gradient.
    """

    margin_name = "circle"


CLS_LAYERS = {layer.__name__: layer for layer in (Linear, CosSoftmax, ArcSoftmax, CircleSoftmax)}
