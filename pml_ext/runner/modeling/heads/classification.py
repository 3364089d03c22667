"""Classification layers (CLS_LAYER): class scores of the ID loss, with a margin or without."""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn


class ClassScores(NamedTuple):
    """(B, classes) each: what the ID loss takes, and the scaled scores without a margin, for accuracy."""

    logits: Tensor
    scores: Tensor


class Linear(nn.Module):
    """scale · ⟨x, w_c⟩, no bias; the margin is for the layers below."""

    def __init__(self, embedding_size: int, num_classes: int, *, scale: float, margin: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_classes, embedding_size))
        nn.init.normal_(self.weight, std=0.01)
        self.scale, self.margin = scale, margin

    def forward(self, embeddings: Tensor, labels: Tensor | None) -> ClassScores:
        """embeddings (B, D), labels (B,) from 0 (not needed here)."""
        scores = self.scale * nn.functional.linear(embeddings, self.weight)
        return ClassScores(scores, scores)


class _CosineMargin(Linear):
    """scale · cosine, the own class's and the others' each changed; in 32 bits at least."""

    def forward(self, embeddings: Tensor, labels: Tensor | None) -> ClassScores:
        if labels is None:
            raise ValueError(f"{type(self).__name__} needs labels of shape ({len(embeddings)},) in training; got None")
        with torch.autocast(embeddings.device.type, enabled=False):
            x = embeddings.to(torch.promote_types(embeddings.dtype, torch.float32))
            cosines = nn.functional.linear(nn.functional.normalize(x), nn.functional.normalize(self.weight))
            own = labels[:, None]
            logits = self.of_others(cosines).scatter(1, own, self.of_own(cosines.gather(1, own)))
            return ClassScores(self.scale * logits, self.scale * cosines)

    def of_own(self, cosines: Tensor) -> Tensor:
        """Cosines to the own classes, with the margin."""
        raise NotImplementedError

    def of_others(self, cosines: Tensor) -> Tensor:
        """Cosines to the other classes."""
        return cosines


class CosSoftmax(_CosineMargin):
    """Own class: cos θ − margin (CosFace; Wang et al., CVPR 2018, eq. 4)."""

    def of_own(self, cosines: Tensor) -> Tensor:
        return cosines - self.margin


class ArcSoftmax(_CosineMargin):
    """Own class: cos(θ + margin), margin in radians (ArcFace; Deng et al., CVPR 2019, eq. 3).

    As in FastReID, nothing keeps θ + margin under π. In FastReID the arc cosine is nan for a cosine that
    rounding put over 1, and its gradient infinite at ±1; here both are finite.
    """

    def of_own(self, cosines: Tensor) -> Tensor:
        sines = ((1 - cosines) * (1 + cosines)).clamp_min(1e-12).sqrt()
        return cosines * math.cos(self.margin) - sines * math.sin(self.margin)


class CircleSoftmax(_CosineMargin):
    """Own class: α⁺ (cos θ − 1 + margin); others: α⁻ (cos θ − margin) (Sun et al., CVPR 2020, eq. 5 and 6).

    α⁺ = [1 + margin − cos θ]₊ and α⁻ = [cos θ + margin]₊ carry no gradient.
    """

    def of_own(self, cosines: Tensor) -> Tensor:
        return (1 + self.margin - cosines.detach()).clamp_min(0) * (cosines - 1 + self.margin)

    def of_others(self, cosines: Tensor) -> Tensor:
        return (cosines.detach() + self.margin).clamp_min(0) * (cosines - self.margin)


CLS_LAYERS = {layer.__name__: layer for layer in (Linear, CosSoftmax, ArcSoftmax, CircleSoftmax)}
