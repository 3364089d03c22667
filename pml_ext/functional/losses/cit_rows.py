"""The concordance loss of some anchors of a batch: one rank's share of all ranks' triplets."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pml_ext._ops.normalize import through_sphere_, unit_and_inverse_norms
from pml_ext.functional.losses.cit_kernel import by_similarities
from pml_ext.functional.tuples.pairs import ClassSpans


def concordance_sum_of_rows(
    embeddings: Tensor,
    rows: slice,
    spans: ClassSpans,
    gamma: float = 1.0,
    similarity: str = "unit",
    hinge_partial_likelihood: bool = False,
    *,
    add_transpose: Callable[[Tensor], Tensor],
) -> Tensor:
    """The concordance loss summed over the triplets of some (or no) anchors: consecutive, all samples of their classes.

    The gradient is that of the sum over all anchors by these rows, and 0 for others: the ranks' gradients add up. It is
    computed together with the value; there is no second derivative.
    add_transpose: adds to (A, B) rows of a (B, B) matrix the same rows of its transpose; called only for a gradient.
    """
    scale = 0.5 if similarity == "unit" else 1.0
    options = (gamma, scale, hinge_partial_likelihood)
    total: Tensor = _ConcordanceOfRows.apply(embeddings, rows, spans, options, add_transpose, torch.is_grad_enabled())
    return total


class _ConcordanceOfRows(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        embeddings: Tensor,
        rows: slice,
        spans: ClassSpans,
        options: tuple[float, float, bool],
        add_transpose: Callable[[Tensor], Tensor],
        is_grad_on: bool,
    ) -> Tensor:
        unit, inverse_norms = unit_and_inverse_norms(embeddings)
        value, by_pair = by_similarities(unit, spans, *options, rows=rows)
        if is_grad_on and ctx.needs_input_grad[0]:
            gradient = torch.zeros_like(unit)
            torch.mm(add_transpose(by_pair), unit, out=gradient[rows])
            through_sphere_(gradient[rows], unit[rows], inverse_norms[rows].mul_(options[1]))
            ctx.save_for_backward(gradient)
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, weight: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return gradient.mul_(weight), None, None, None, None, None  # in place: backward runs once
