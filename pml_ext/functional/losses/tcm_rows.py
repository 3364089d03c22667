"""The threshold-consistent margin term of some anchors of a batch: what one rank computes of all ranks' pairs."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pml_ext._ops.blocks import rows_of_a_block
from pml_ext._ops.normalize import inverse_norms
from pml_ext.functional.losses.tcm_kernel import FEW, MIN_ROWS, sums_in_blocks
from pml_ext.functional.tuples.pairs import ClassSpans


def threshold_consistency_sums_of_rows(
    embeddings: Tensor,
    rows: Tensor,
    spans: ClassSpans,
    margin_plus: float,
    margin_minus: float,
    *,
    indicator: bool = True,
) -> tuple[Tensor, Tensor]:
    """Shortfall and excess, summed over the pairs of some anchors, and how many of these are hard.

    A pair stands in the sums of both its samples. The gradient is that of all anchors' sums by the given rows, and 0
    elsewhere: the cosines are symmetric, so the sums of the ranks that share out the anchors add up to the gradient.
    There is no second derivative.

    Args:
        embeddings: (B, D), need not be normalised, float32 or float64.
        rows: (A,) indices of the anchors, A >= 1.
        spans: `class_spans` of the B labels.
        margin_plus, margin_minus, indicator: see `shortfall_and_excess`.
    Returns:
        two sums and two numbers of hard pairs, (2,) each.
    """
    sums, counts = _SumsOfRows.apply(embeddings, rows, spans, margin_plus, margin_minus, indicator)
    return sums, counts


class _SumsOfRows(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        embeddings: Tensor,
        rows: Tensor,
        spans: ClassSpans,
        margin_plus: float,
        margin_minus: float,
        indicator: bool,
    ) -> tuple[Tensor, Tensor]:
        size = max(MIN_ROWS, rows_of_a_block(len(embeddings), embeddings.device))
        inverse = inverse_norms(embeddings)
        margins = (margin_plus, margin_minus, indicator)
        needs_gradient = ctx.needs_input_grad[0]
        totals, toward, away = sums_in_blocks(
            embeddings, inverse, spans, margins, rows.split(size), needs_gradient, FEW
        )
        if needs_gradient:
            ctx.save_for_backward(rows, inverse, toward, away)
            ctx.size = len(embeddings)
        ctx.mark_non_differentiable(counts := totals[2:].clone())
        return totals[:2].clone(), counts

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_sums: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        rows, inverse, toward, away = ctx.saved_tensors
        own = toward * (inverse[rows] * (-2 * by_sums[0]))
        gradient = own.new_zeros(ctx.size, own.shape[1]).index_copy_(0, rows, own)
        if away is not None:
            gradient.addcmul_(away, inverse * (2 * by_sums[1]))
        return gradient, None, None, None, None, None
