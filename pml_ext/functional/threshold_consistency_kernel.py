"""The threshold-consistent margin term of a batch with itself, in blocks: no (B, B) tensor is kept."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from pml_ext.functional.pairs import same_and_different
from pml_ext.functional.threshold_consistency import counted_negatives, counted_positives, shortfall_and_excess

BLOCK = 512
"""Samples on each side of one block of pairs."""


def fast_threshold_consistency(
    unit_embeddings: Tensor,
    labels: Tensor,
    lambda_plus: float = 1.0,
    lambda_minus: float = 1.0,
    margin_plus: float = 0.9,
    margin_minus: float = 0.5,
    *,
    indicator: bool = True,
) -> Tensor:
    """λ⁺ shortfall + λ⁻ excess (`shortfall_and_excess`) over all pairs of a batch, in O(B D) memory.

    The gradient is computed together with the value. A backward pass with create_graph=True goes through
    `shortfall_and_excess`, so that it can be differentiated again. To torch.compile it is one operator, without a
    break of the graph and with a first derivative only.

    Args:
        unit_embeddings: (B, D) of norm 1, float32 or float64.
        labels: (B,) class ids.
        lambda_plus, lambda_minus, margin_plus, margin_minus, indicator: see `shortfall_and_excess` and TCMLoss.
    Returns:
        a scalar.
    """
    options = (lambda_plus, lambda_minus, margin_plus, margin_minus, indicator)
    if torch.compiler.is_compiling():
        return _operator(unit_embeddings, labels, *options)[0]
    return _FastThresholdConsistency.apply(unit_embeddings, labels, options)


class _FastThresholdConsistency(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, embeddings: Tensor, labels: Tensor, options: tuple[float, float, float, float, bool]
    ) -> Tensor:
        value, gradient = _value_and_gradient(embeddings, labels, options, ctx.needs_input_grad[0])
        if gradient is not None:
            ctx.save_for_backward(embeddings, labels, gradient)
            ctx.options = options
        return value

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        embeddings, labels, gradient = ctx.saved_tensors
        if torch.is_grad_enabled():
            lambda_plus, lambda_minus, margin_plus, margin_minus, indicator = ctx.options
            cosines = embeddings @ embeddings.T
            same, different = same_and_different(labels)
            margins = (margin_plus, margin_minus)
            terms = shortfall_and_excess(cosines[same], cosines[different], *margins, indicator=indicator)
            loss = lambda_plus * terms[0] + lambda_minus * terms[1]
            (gradient,) = torch.autograd.grad(loss, embeddings, create_graph=True)
        return grad * gradient, None, None


def _value_and_gradient(
    embeddings: Tensor,
    labels: Tensor,
    options: tuple[float, float, float, float, bool],
    needs_gradient: bool = True,
) -> tuple[Tensor, Tensor | None]:
    lambda_plus, lambda_minus, margin_plus, margin_minus, _ = options
    shortfall = excess = embeddings.new_zeros(())
    count_plus = count_minus = torch.zeros((), dtype=torch.long, device=embeddings.device)
    relevant = []  # the places of the blocks with a pair that counts
    for place in _upper_blocks(len(labels)):
        cosines, positive, negative = _counted(embeddings, labels, place, options)
        weight = 1 if place[0] == place[1] else 2  # stands for its mirror image too
        in_block_plus, in_block_minus = positive.sum(), negative.sum()
        shortfall = shortfall + weight * (positive * (margin_plus - cosines)).sum()
        excess = excess + weight * (negative * (cosines - margin_minus)).sum()
        count_plus, count_minus = count_plus + weight * in_block_plus, count_minus + weight * in_block_minus
        if in_block_plus + in_block_minus > 0:
            relevant.append(place)
    by_positive = lambda_plus / count_plus.clamp(min=1).to(embeddings.dtype)
    by_negative = lambda_minus / count_minus.clamp(min=1).to(embeddings.dtype)
    value = by_positive * shortfall + by_negative * excess
    if not needs_gradient:
        return value, None
    gradient = torch.zeros_like(embeddings)
    for rows, columns in relevant:
        # Computing a block again costs less than a (B, D) sum for each of the two terms.
        if len(labels) > BLOCK:
            _, positive, negative = _counted(embeddings, labels, (rows, columns), options)
        by_cosine = 2 * (by_negative * negative - by_positive * positive)
        gradient[rows].addmm_(by_cosine, embeddings[columns])
        if rows != columns:
            gradient[columns].addmm_(by_cosine.T, embeddings[rows])
    return value, gradient


@torch.library.custom_op("pml_ext::threshold_consistency", mutates_args=())
def _operator(
    embeddings: Tensor,
    labels: Tensor,
    lambda_plus: float,
    lambda_minus: float,
    margin_plus: float,
    margin_minus: float,
    indicator: bool,
) -> tuple[Tensor, Tensor]:
    """Value and gradient, as torch.compile sees them: what the blocks hold is no matter of its graph."""
    options = (lambda_plus, lambda_minus, margin_plus, margin_minus, indicator)
    value, gradient = _value_and_gradient(embeddings, labels, options)
    assert gradient is not None
    return value, gradient


@_operator.register_fake
def _(embeddings: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return embeddings.new_empty(()), torch.empty_like(embeddings)


def _keep_gradient(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(output[1])


def _times_gradient(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    return grad * ctx.saved_tensors[0], None, None, None, None, None, None


_operator.register_autograd(_times_gradient, setup_context=_keep_gradient)


def _upper_blocks(count: int) -> Iterator[tuple[slice, slice]]:
    """Rows and columns of the blocks on and above the diagonal."""
    for first in range(0, count, BLOCK):
        for other in range(first, count, BLOCK):
            yield slice(first, first + BLOCK), slice(other, other + BLOCK)


def _counted(
    embeddings: Tensor, labels: Tensor, place: tuple[slice, slice], options: tuple[float, float, float, float, bool]
) -> tuple[Tensor, Tensor, Tensor]:
    """Cosines of a block, and where they are positive and negative pairs that count."""
    _, _, margin_plus, margin_minus, indicator = options
    rows, columns = place
    cosines = embeddings[rows] @ embeddings[columns].T
    same, different = same_and_different(labels[rows], None if rows == columns else labels[columns])
    same &= counted_positives(cosines, margin_plus, indicator)
    different &= counted_negatives(cosines, margin_minus, indicator)
    return cosines, same, different
