"""Classification layers (CLS_LAYER): class scores of the ID loss, with a margin or without."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from pml_ext.functional.losses.class_softmax import MARGINS


class ClassScores(NamedTuple):
    """(B, classes) each: what the ID loss takes, and the scaled scores without a margin, for accuracy.

    With Partial FC the ID loss takes embeddings (B, D), and no process has all scores.
    """

    logits: Tensor
    scores: Tensor | None


class Linear(nn.Module):
    """scale · ⟨x, w_c⟩, no bias; the margin is for the layers below."""

    margin_name = "softmax"
    """In MARGINS, and PartialFC's."""

    def __init__(
        self, embedding_size: int, num_classes: int, *, scale: float, margin: float, filter_above: float = 0.0
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_classes, embedding_size))
        nn.init.normal_(self.weight, std=0.01)
        self.scale, self.margin, self.filter_above = scale, margin, filter_above

    def forward(self, embeddings: Tensor, labels: Tensor | None) -> ClassScores:
        """embeddings (B, D), labels (B,) from 0 (not needed here)."""
        scores = self.scale * nn.functional.linear(embeddings, self.weight)
        return ClassScores(scores, scores)


class _CosineMargin(Linear):
    """scale · cosine, the own class's and the others' each changed; in 32 bits at least.

    With filter_above, others of a larger cosine have a logit of 0, as with PartialFC.
    """

    def forward(self, embeddings: Tensor, labels: Tensor | None) -> ClassScores:
        if labels is None:
            raise ValueError(f"{type(self).__name__} needs labels of shape ({len(embeddings)},) in training; got None")
        with torch.autocast(embeddings.device.type, enabled=False):
            x = embeddings.to(torch.promote_types(embeddings.dtype, torch.float32))
            cosines = nn.functional.linear(nn.functional.normalize(x), nn.functional.normalize(self.weight))
            own = labels[:, None]
            rule = MARGINS[self.margin_name]
            logits = cosines if rule.others is None else rule.others(cosines, self.margin)
            if self.filter_above:
                logits = logits.masked_fill(cosines > self.filter_above, 0)
            logits = logits.scatter(1, own, rule.own(cosines.gather(1, own), self.margin))
            return ClassScores(self.scale * logits, self.scale * cosines)


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


class ToTheLoss(nn.Module):
    """With Partial FC the loss has the class vectors, and takes the embeddings."""

    def forward(self, embeddings: Tensor, labels: Tensor | None) -> ClassScores:
        return ClassScores(embeddings, None)


CLS_LAYERS = {layer.__name__: layer for layer in (Linear, CosSoftmax, ArcSoftmax, CircleSoftmax)}
