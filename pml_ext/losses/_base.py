"""What the losses of this package share: checked input, float32 arithmetic, named arguments only."""

import inspect
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from pml_ext._checks import check_embeddings, check_labels
from pml_ext._pml import BaseMetricLossFunction

PML_ARGUMENTS = ("distance", "reducer", "embedding_regularizer", "embedding_reg_weight", "collect_stats")
OF_THE_WRAPPED = f"; {', '.join(PML_ARGUMENTS)} are those of the wrapped loss"


class EmbeddingLoss(BaseMetricLossFunction):
    """A PML loss that checks its input before any work and computes in float32 or better.

    Half-precision embeddings are converted to float32 and autocast is switched off inside: sums over
    thousands of pairs lose all digits in 16 bits. The loss then is float32, gradients keep the input's type.

    Raises:
        TypeError: an argument that neither the loss nor PML knows.
        ValueError: embeddings that are not (N, D) floating, an empty batch, labels of another length or of
            floating type.
    """

    def __init__(self, **pml: Any) -> None:
        refuse_unknown(type(self), set(pml) - set(PML_ARGUMENTS), f", {', '.join(PML_ARGUMENTS)}")
        super().__init__(**pml)

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor | None = None,
        indices_tuple: tuple[Tensor, ...] | None = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
    ) -> Tensor:
        """The loss of a batch.

        Args:
            embeddings: (B, D), need not be normalised.
            labels: (B,) integer class ids; may be None where indices_tuple says everything.
            indices_tuple: a miner's (anchor, positive, negative) or (anchor, positive, anchor, negative) indices.
            ref_emb, ref_labels: (R, D) and (R,): positives and negatives are taken from here instead.
        Returns:
            what the reducer makes of it: a scalar by default.
        """
        check_embeddings(embeddings)
        if labels is not None:
            check_labels(labels, len(embeddings))
        if ref_emb is not None:
            check_embeddings(ref_emb, "ref_emb")
            if ref_labels is not None:
                check_labels(ref_labels, len(ref_emb), "ref_labels")
            ref_emb = at_least_float32(ref_emb)
        embeddings = at_least_float32(embeddings)
        with torch.autocast(embeddings.device.type, enabled=False):
            if labels is not None and indices_tuple is None and ref_emb is None:
                value = self._direct(embeddings, labels.to(embeddings.device))
                if value is not None:
                    return value
            return super().forward(embeddings, labels, indices_tuple, ref_emb, ref_labels)

    def _direct(self, embeddings: Tensor, labels: Tensor) -> Tensor | None:
        """The loss of a batch with itself where it needs neither PML's dict of terms nor its reducer, else None."""
        return None


def refuse_unknown(kind: type, unknown: Iterable[str], beside: str = "") -> None:
    """A TypeError that lists the constructor's own arguments, and what is said beside them, if any is unknown."""
    names = sorted(unknown)
    if names:
        parameters = inspect.signature(kind).parameters.items()
        own = ", ".join(name for name, parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD)
        raise TypeError(f"{kind.__name__} got unknown argument {', '.join(map(repr, names))}; known: {own}{beside}")


def at_least_float32(x: Tensor) -> Tensor:
    """16-bit floats as float32, others as they are."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def given_labels(labels: Tensor | None, ref_labels: Tensor | None, why: str) -> tuple[Tensor, Tensor]:
    """Both labels, or a ValueError: `why` an indices_tuple alone does not do, or what to give."""
    if labels is None or ref_labels is None:
        raise ValueError(
            f"labels (and ref_labels where ref_emb is given) must be tensors of class ids; got None. {why}"
        )
    return labels, ref_labels
