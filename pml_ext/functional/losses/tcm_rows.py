"""The threshold-consistent margin term of some anchors of a batch: one rank's share of all ranks' pairs."""

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
    rows: slice,
    spans: ClassSpans,
    margin_plus: float,
    margin_minus: float,
    *,
    indicator: bool = True,
) -> tuple[Tensor, Tensor]:
    """(2,) shortfall and excess, summed over the pairs of consecutive (or no) anchors, and (2,) numbers of hard pairs.

    A pair counts for both its samples. The gradient is that of the sum over all anchors by the given rows, and 0 for
    others: cosines are symmetric, so the ranks' gradients add up. There is no second derivative.
    """
    sums, counts = _SumsOfRows.apply(embeddings, rows, spans, margin_plus, margin_minus, indicator)
    return sums, counts


class _SumsOfRows(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        embeddings: Tensor,
        rows: slice,
        spans: ClassSpans,
        margin_plus: float,
        margin_minus: float,
        indicator: bool,
    ) -> tuple[Tensor, Tensor]:
        size = max(MIN_ROWS, rows_of_a_block(len(embeddings), embeddings.device))
        inverse = inverse_norms(embeddings)
        margins = (margin_plus, margin_minus, indicator)
        needs_gradient = ctx.needs_input_grad[0]
        blocks = [slice(first, min(first + size, rows.stop)) for first in range(rows.start, rows.stop, size)]
        totals, toward, away = sums_in_blocks(embeddings, inverse, spans, margins, blocks, needs_gradient, FEW)
        if needs_gradient:
            ctx.save_for_backward(inverse, toward, away)
            ctx.rows, ctx.shape = rows, embeddings.shape
        ctx.mark_non_differentiable(counts := totals[2:].clone())
        return totals[:2].clone(), counts

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_sums: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        inverse, toward, away = ctx.saved_tensors
        gradient = inverse.new_zeros(ctx.shape) if away is None else away.mul_(inverse * (2 * by_sums[1]))
        if toward is not None:
            gradient[ctx.rows].addcmul_(toward, inverse[ctx.rows] * (-2 * by_sums[0]))
        return gradient, None, None, None, None, None
