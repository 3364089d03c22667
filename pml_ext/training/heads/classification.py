"""Classification layers (CLS_LAYER): class scores of the ID loss, with a margin or without."""

from typing import NamedTuple

import torch
from torch import Tensor, nn


class ClassScores(NamedTuple):
    """(B, classes) each: what the ID loss takes, and the scaled scores without a margin, for accuracy."""

    logits: Tensor
    scores: Tensor


class Linear(nn.Module):
    """scale · ⟨x, w_c⟩, no bias.

    Args:
        embedding_size: of x.
        num_classes: rows of w.
        scale: FastReID's SCALE.
        margin: FastReID's MARGIN; no part here.
    """

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
    """scale · cosine with something else in the own class's place or in all; in 32 bits at least."""

    def forward(self, embeddings: Tensor, labels: Tensor | None) -> ClassScores:
        """embeddings (B, D), labels (B,) from 0."""
        if labels is None:
            raise ValueError(f"{type(self).__name__} needs labels of shape ({len(embeddings)},) in training; got None")
        with torch.autocast(embeddings.device.type, enabled=False):
            x = embeddings.to(torch.promote_types(embeddings.dtype, torch.float32))
            cosines = nn.functional.linear(nn.functional.normalize(x), nn.functional.normalize(self.weight))
            own = nn.functional.one_hot(labels, cosines.shape[1]).bool()
            return ClassScores(self.scale * self.with_margin(cosines, own), self.scale * cosines)

    def with_margin(self, cosines: Tensor, own: Tensor) -> Tensor:
        """cosines and own (B, classes), own true at each row's label."""
        raise NotImplementedError


class CosSoftmax(_CosineMargin):
    """Own class: cos θ − margin (CosFace; Wang et al., CVPR 2018, eq. 4)."""

    def with_margin(self, cosines: Tensor, own: Tensor) -> Tensor:
        return torch.where(own, cosines - self.margin, cosines)


class ArcSoftmax(_CosineMargin):
    """Own class: cos(θ + margin), margin in radians (ArcFace; Deng et al., CVPR 2019, eq. 3).

    As in FastReID, nothing keeps θ + margin under π. Its arc cosine gives no number for a cosine that rounding put
    over 1, and an endless gradient at ±1; here both are finite.
    """

    def with_margin(self, cosines: Tensor, own: Tensor) -> Tensor:
        margin = cosines.new_tensor(self.margin)
        sines = ((1 - cosines) * (1 + cosines)).clamp_min(1e-12).sqrt()
        return torch.where(own, cosines * margin.cos() - sines * margin.sin(), cosines)


class CircleSoftmax(_CosineMargin):
    """Own class: α⁺ (cos θ − 1 + margin); others: α⁻ (cos θ − margin) (Sun et al., CVPR 2020, eq. 6 and 8).

    α⁺ = [1 + margin − cos θ]₊ and α⁻ = [cos θ + margin]₊ carry no gradient.
    """

    def with_margin(self, cosines: Tensor, own: Tensor) -> Tensor:
        fixed = cosines.detach()
        own_scores = (1 + self.margin - fixed).clamp_min(0) * (cosines - 1 + self.margin)
        other_scores = (fixed + self.margin).clamp_min(0) * (cosines - self.margin)
        return torch.where(own, own_scores, other_scores)


CLS_LAYERS: dict[str, type[Linear]] = {
    "Linear": Linear,
    "CosSoftmax": CosSoftmax,
    "ArcSoftmax": ArcSoftmax,
    "CircleSoftmax": CircleSoftmax,
}
