"""The threshold-consistent margin term of a batch with itself: a small one at once, others in blocks."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from pml_ext._ops.normalize import inverse_norms, to_sphere, unit_and_inverse_norms
from pml_ext.functional.losses.tcm import shortfall_and_excess
from pml_ext.functional.tuples.pairs import ClassSpans, class_columns, class_spans, same_and_different

BLOCK = 2**18
"""Pairs of one block, as far as MIN_ROWS allows: the few tensors of that size stay in a processor's cache."""

AT_ONCE = 128
"""Up to this batch size a few (B, B) tensors and two whole products are cheaper than the operators that avoid them."""

MIN_ROWS = 256
"""Anchors of one block, at least: with fewer the matrix product loses its speed."""

FEW = 16
"""Up to so many samples of a class adding their embeddings up is faster than a matrix product with zeros."""


def fast_threshold_consistency(
    embeddings: Tensor,
    labels: Tensor,
    lambda_plus: float = 1.0,
    lambda_minus: float = 1.0,
    margin_plus: float = 0.9,
    margin_minus: float = 0.5,
    *,
    indicator: bool = True,
    spans: ClassSpans | None = None,
) -> Tensor:
    """λ⁺ shortfall + λ⁻ excess (`shortfall_and_excess`) over all pairs of a batch, in O(B D) memory.

    The gradient is computed together with the value, through the normalisation too. A backward pass with
    create_graph=True goes through `shortfall_and_excess`, so that it can be differentiated again. To torch.compile it
    is one operator, without a break of the graph and with a first derivative only.

    Args:
        embeddings: (B, D), need not be normalised, float32 or float64.
        labels: (B,) class ids.
        lambda_plus, lambda_minus, margin_plus, margin_minus, indicator: see `shortfall_and_excess` and TCMLoss.
        spans: `class_spans(labels)`, where they are known.
    Returns:
        a scalar.
    """
    options = (lambda_plus, lambda_minus, margin_plus, margin_minus, indicator)
    if torch.compiler.is_compiling():
        return _operator(embeddings, labels, *options)[0]
    return _FastThresholdConsistency.apply(embeddings, labels, spans or class_spans(labels), options)


class _FastThresholdConsistency(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, embeddings: Tensor, labels: Tensor, spans: ClassSpans, options: "_Options") -> Tensor:
        value, gradient = _value_and_gradient(embeddings, spans, options, ctx.needs_input_grad[0])
        if gradient is not None:
            ctx.save_for_backward(embeddings, labels, gradient)
            ctx.options = options
        return value

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        embeddings, labels, gradient = ctx.saved_tensors
        if torch.is_grad_enabled():
            lambda_plus, lambda_minus, margin_plus, margin_minus, indicator = ctx.options
            unit = to_sphere(embeddings)
            cosines = unit @ unit.T
            same, different = same_and_different(labels)
            margins = (margin_plus, margin_minus)
            terms = shortfall_and_excess(cosines[same], cosines[different], *margins, indicator=indicator)
            loss = lambda_plus * terms[0] + lambda_minus * terms[1]
            (gradient,) = torch.autograd.grad(loss, embeddings, create_graph=True)
        return grad * gradient, None, None, None


_Options = tuple[float, float, float, float, bool]
"""lambda_plus, lambda_minus, margin_plus, margin_minus, indicator"""


def _value_and_gradient(
    embeddings: Tensor, spans: ClassSpans, options: _Options, needs_gradient: bool = True
) -> tuple[Tensor, Tensor | None]:
    if len(embeddings) <= AT_ONCE:
        return _at_once(embeddings, spans, options)
    return _in_blocks(embeddings, spans, options, needs_gradient)


def _at_once(embeddings: Tensor, spans: ClassSpans, options: _Options) -> tuple[Tensor, Tensor]:
    """With 0/1 masks P and Q of the pairs that count, W = λ⁻/#Q · Q − λ⁺/#P · P: the gradient by u is g = 2 W u, and
    the value λ⁺ m⁺ − λ⁻ m⁻ + Σ W cos (a margin only where its set is not empty), whose sum is Σ g·u / 2.
    """
    lambda_plus, lambda_minus, margin_plus, margin_minus, indicator = options
    unit, inverse_norms = unit_and_inverse_norms(embeddings)
    cosines = unit @ unit.T
    ids = spans.start.to(unit.dtype)  # floating masks of comparisons cost a fifth of boolean ones
    same = torch.eq(ids, ids.T, out=torch.empty_like(cosines))
    above = torch.ge(cosines, margin_minus if indicator else -torch.inf, out=torch.empty_like(cosines))
    above.addcmul_(above, same, value=-1)
    below = torch.le(cosines, margin_plus if indicator else torch.inf, out=cosines).mul_(same)
    below.diagonal().zero_()
    count_plus, count_minus = below.sum(), above.sum()
    weights = below.mul_(-2 * lambda_plus / count_plus.clamp(min=1))
    weights.addcmul_(above, 2 * lambda_minus / count_minus.clamp(min=1))
    gradient = weights @ unit
    along = torch.linalg.vecdot(gradient, unit)
    value = along.sum() / 2
    value += lambda_plus * margin_plus * count_plus.clamp(max=1)
    value -= lambda_minus * margin_minus * count_minus.clamp(max=1)
    return value, gradient.addcmul_(unit, along.unsqueeze(1), value=-1).mul_(inverse_norms)


def _in_blocks(
    embeddings: Tensor, spans: ClassSpans, options: _Options, needs_gradient: bool
) -> tuple[Tensor, Tensor | None]:
    """The gradient is a sum of embeddings over the pairs that count: few positives, and negatives only where some do.

    With x = n u, ∂cos(i, j)/∂x_i = (u_j − cos u_i) / n_i: weights 1/n_j on x_j, and −cos/n_i on x_i itself.
    """
    lambda_plus, lambda_minus, margin_plus, margin_minus, indicator = options
    inverse = inverse_norms(embeddings)
    totals = embeddings.new_zeros(4)
    toward, away = [], None
    rows = max(MIN_ROWS, BLOCK // len(embeddings))
    for first in range(0, len(embeddings), rows):
        block = slice(first, first + rows)
        own = inverse[block]
        cosines = (embeddings[block] @ embeddings.T).mul_(own).mul_(inverse.T)
        same, valid = class_columns(spans, block)
        positives = same[:, :-1]
        to_positives = cosines.gather(1, positives)
        below = to_positives <= margin_plus if indicator else torch.ones_like(valid)
        below = (below & valid).to(cosines.dtype)
        shortfall = (below * (margin_plus - to_positives)).sum()

        cosines.scatter_(1, same, -2)  # no negative
        above = torch.ge(cosines, margin_minus if indicator else -1.5, out=torch.empty_like(cosines))
        excess = cosines.sub_(margin_minus).mul_(above).sum(1)
        counts = above.sum(1)
        totals += torch.stack([shortfall, below.sum(), excess.sum(), counts.sum()])
        if not needs_gradient:
            continue
        itself = -own * (below * to_positives).sum(1, keepdim=True)
        weights = torch.cat([below * torch.take(inverse, positives), itself], 1)
        toward.append(_weighted_sums(embeddings, same, weights))
        # Reading which rows have a negative that counts is dear on a CUDA device, their product is not.
        found = torch.arange(len(own), device=own.device) if own.is_cuda else counts.nonzero().squeeze(1)
        if len(found):
            away = torch.zeros_like(embeddings) if away is None else away
            weights = above[found] * inverse.T
            itself = -own[found, 0] * (excess + margin_minus * counts)[found]
            weights[torch.arange(len(found), device=own.device), first + found] = itself
            away[first + found] = weights @ embeddings
    shortfall, count_plus, excess, count_minus = totals
    by_positive = lambda_plus / count_plus.clamp(min=1)
    by_negative = lambda_minus / count_minus.clamp(min=1)
    value = by_positive * shortfall + by_negative * excess
    if not needs_gradient:
        return value, None
    gradient = (torch.cat(toward) if len(toward) > 1 else toward[0]).mul_(inverse * (-2 * by_positive))
    return value, gradient if away is None else gradient.addcmul_(away, inverse * (2 * by_negative))


def _weighted_sums(x: Tensor, columns: Tensor, weights: Tensor) -> Tensor:
    """Σ_j weights_ij x[columns_ij]. (N, D), (M, K), (M, K) → (M, D); a column occurs again only with weight 0."""
    if columns.shape[1] <= FEW:
        return embedding_bag(columns, x, per_sample_weights=weights, mode="sum")
    return x.new_zeros(len(columns), len(x)).scatter_add_(1, columns, weights) @ x


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
    value, gradient = _value_and_gradient(embeddings, class_spans(labels), options)
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
