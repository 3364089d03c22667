"""The concordance loss of some anchors of a batch: what one rank computes of all ranks' triplets."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pml_ext._ops.normalize import through_sphere_, unit_and_inverse_norms
from pml_ext.functional.losses.cit_kernel import by_similarities
from pml_ext.functional.tuples.pairs import ClassSpans


def concordance_sum_of_rows(
    embeddings: Tensor,
    rows: Tensor,
    spans: ClassSpans,
    gamma: float = 1.0,
    similarity: str = "unit",
    hinge_partial_likelihood: bool = False,
) -> Tensor:
    """The sum, over the triplets of some anchors, whose mean over all anchors is `fast_concordance_loss`.

    The gradient is computed together with the value; there is no second derivative.

    Args:
        embeddings: (B, D), need not be normalised, float32 or float64.
        rows: (A,) indices of the anchors: all samples of some classes, A >= 1.
        spans: `class_spans` of the B labels.
        gamma, similarity, hinge_partial_likelihood: as there.
    Returns:
        a scalar.
    """
    scale = 0.5 if similarity == "unit" else 1.0
    total: Tensor = _ConcordanceOfRows.apply(embeddings, rows, spans, gamma, scale, hinge_partial_likelihood)
    return total


class _ConcordanceOfRows(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, embeddings: Tensor, rows: Tensor, spans: ClassSpans, gamma: float, scale: float, hinge: bool
    ) -> Tensor:
        unit, inverse_norms = unit_and_inverse_norms(embeddings)
        own = unit[rows]
        value, by_pair = by_similarities(unit, spans, gamma, scale, hinge, rows=rows)
        if ctx.needs_input_grad[0]:
            gradient = by_pair.T @ own
            gradient.index_add_(0, rows, by_pair @ unit)
            ctx.save_for_backward(through_sphere_(gradient, unit, inverse_norms.mul_(scale)))
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, weight: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return weight * gradient, None, None, None, None, None
