"""The concordance loss of a batch with itself, value and gradient in one pass over blocks of anchors."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from pml_ext._ops.normalize import through_sphere_, to_sphere, unit_and_inverse_norms
from pml_ext._ops.products import add_transpose_, gram
from pml_ext.functional.losses.cit import concordance_loss
from pml_ext.functional.tuples.pairs import ClassSpans, class_columns, class_spans, same_and_different

BLOCK = 2**18
"""Entries of one block, (anchors, positives, all samples): the few of that size in use stay in a processor's cache."""

LARGEST_CLASS = 64
"""Up to this class size comparing with every positive is faster than sorting."""

FACTORS = 16
"""Numbers below 15 whose product is sure to be a float32: one logarithm for all of them."""


def fast_concordance_loss(
    embeddings: Tensor,
    labels: Tensor,
    gamma: float = 1.0,
    similarity: str = "unit",
    hinge_partial_likelihood: bool = False,
    *,
    spans: ClassSpans | None = None,
) -> Tensor:
    """What `concordance_loss` gives for the cosines of a batch with itself, several times faster.

    The gradient is computed together with the value, through the normalisation too. A backward pass with
    create_graph=True goes through `concordance_loss`, so that it can be differentiated again. To torch.compile it is
    one operator, without a break of the graph and with a first derivative only.

    Args:
        embeddings: (B, D), need not be normalised, float32 or float64.
        labels: (B,) class ids; best where no class has more than LARGEST_CLASS samples.
        gamma: in [0, 1].
        similarity: "unit", (1 + cosine)/2, or "cosine".
        hinge_partial_likelihood: count no triplet below zero in L_p.
        spans: `class_spans(labels)`, where they are known.
    Returns:
        a scalar; 0 where there is no triplet.
    """
    # The constant of "unit" drops out: both terms read differences of similarities.
    scale = 0.5 if similarity == "unit" else 1.0
    if torch.compiler.is_compiling():
        return _operator(embeddings, labels, gamma, scale, hinge_partial_likelihood)[0]
    spans = class_spans(labels) if spans is None else spans
    return _FastConcordance.apply(embeddings, labels, spans, gamma, scale, hinge_partial_likelihood)


class _FastConcordance(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, embeddings: Tensor, labels: Tensor, spans: ClassSpans, gamma: float, scale: float, hinge: bool
    ) -> Tensor:
        value, gradient = _value_and_gradient(embeddings, spans, gamma, scale, hinge, ctx.needs_input_grad[0])
        if gradient is not None:
            ctx.save_for_backward(embeddings, labels, gradient)
            ctx.options = (gamma, scale, hinge)
        return value

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        embeddings, labels, gradient = ctx.saved_tensors
        if torch.is_grad_enabled():
            gamma, scale, hinge = ctx.options
            unit = to_sphere(embeddings)
            similarities = scale * unit @ unit.T
            loss = concordance_loss(similarities, similarities, *same_and_different(labels), gamma, hinge)
            (gradient,) = torch.autograd.grad(loss, embeddings, create_graph=True)
        return grad * gradient, None, None, None, None, None


def _value_and_gradient(
    embeddings: Tensor, spans: ClassSpans, gamma: float, scale: float, hinge: bool, needs_gradient: bool = True
) -> tuple[Tensor, Tensor | None]:
    same, is_positive = class_columns(spans)
    valid = is_positive.to(embeddings.dtype)
    negatives = len(embeddings) - spans.size
    triplets = ((spans.size - 1) * negatives).sum().clamp(min=1)

    unit, inverse_norms = unit_and_inverse_norms(embeddings)
    # From here on a similarity S is e^S, or e^−S where that alone is read: then the gradient may take its place.
    grown = gram(unit, scale if gamma < 1 else -scale).exp_()
    gradient = grown if gamma == 1 else torch.empty_like(grown)
    value = unit.new_zeros(())
    if gamma < 1:
        foremost = (spans.rank == 0).squeeze(1).nonzero().squeeze(1)  # one sample of each class
        members = same[foremost].roll(1, 1)
        there = pad(valid[foremost], (1, 0), value=1.0)
        classes = max(1, BLOCK // (spans.largest * len(unit)))
        for begin in range(0, len(members), classes):
            chosen = slice(begin, begin + classes)
            arguments = (negatives[foremost[chosen]], spans.smallest < spans.largest, 1 - gamma, hinge)
            value += _partial_likelihood(grown, members[chosen], there[chosen], *arguments, gradient)
    if gamma > 0:
        rows = max(1, BLOCK // max(1, valid.numel()))
        for first in range(0, len(unit), rows):
            block = slice(first, first + rows)
            decay = grown[block] if gamma == 1 else grown[block].reciprocal()
            value += _discordance(decay, valid[block], same[block], gamma, gradient[block], added=gamma < 1)
    if not needs_gradient:
        return value / triplets, None
    symmetric = add_transpose_(gradient)
    return value / triplets, through_sphere_(symmetric @ unit, unit, scale * inverse_norms / triplets)


@torch.library.custom_op("pml_ext::concordance", mutates_args=())
def _operator(embeddings: Tensor, labels: Tensor, gamma: float, scale: float, hinge: bool) -> tuple[Tensor, Tensor]:
    """Value and gradient, as torch.compile sees them: how many positives a sample has is no matter of its graph."""
    value, gradient = _value_and_gradient(embeddings, class_spans(labels), gamma, scale, hinge)
    assert gradient is not None
    return value, gradient


@_operator.register_fake
def _(embeddings: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return embeddings.new_empty(()), torch.empty_like(embeddings)


def _keep_gradient(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(output[1])


def _times_gradient(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    return grad * ctx.saved_tensors[0], None, None, None, None


_operator.register_autograd(_times_gradient, setup_context=_keep_gradient)


def _discordance(decay: Tensor, valid: Tensor, same: Tensor, weight: float, by_row: Tensor, *, added: bool) -> Tensor:
    """weight · Σ 1 − e^{S_ap − S_an} over the triplets of a block with S_an > S_ap.

    Args:
        decay: (anchors, B) of e^−S; is changed.
        valid: (anchors, P) of 1, and 0 on the padding.
        same: (anchors, P + 1) columns of the positives and of the anchor itself.
        by_row: (anchors, B), becomes the derivatives by the anchors' similarities; may be `decay`.
        added: the derivatives are added to what `by_row` holds.
    """
    positives = same[:, :-1]
    reach = decay.gather(1, positives)
    growth = (weight * valid).div_(reach)
    limits = reach.mul_(valid).unsqueeze(2)  # no e^−S lies below the 0 of the padding,
    candidates = decay.scatter_(1, same, 8).unsqueeze(1)  # nor an 8 below one: no sample of the class is a negative
    pull = torch.lt(candidates, limits, out=decay.new_empty(*valid.shape, decay.shape[1]))
    count = pull.sum()
    lost = pull.mul_(candidates).sum(2).mul_(growth)
    by_row.unsqueeze(1).baddbmm_(growth.unsqueeze(1), pull, beta=int(added))
    by_row.scatter_add_(1, positives, lost.neg())
    return weight * count - lost.sum()


def _partial_likelihood(
    grown: Tensor,
    members: Tensor,
    valid: Tensor,
    negatives: Tensor,
    padded: bool,
    weight: float,
    hinge: bool,
    by_row: Tensor,
) -> Tensor:
    """weight · Σ log(e^{S_an} + e^{S_pn}) − S_ap over the triplets whose positives are of a few classes.

    (a, p) and (p, a) share their logarithms, so every pair is taken once: members `step` places apart, step by step.

    Args:
        grown: (B, B) of e^S.
        members: (classes, K) indices of the samples of each class.
        valid: (classes, K) of 1, and 0 on the padding: the first member again, at the end.
        negatives: (classes, 1), how many a sample of the class has.
        padded: whether `valid` holds a 0.
        by_row: (B, B), the rows of the members become the derivatives by their similarities.
    """
    columns = members.unsqueeze(1).expand(-1, members.shape[1], -1)
    rows = grown.index_select(0, members.reshape(-1)).view(*members.shape, -1)
    within = rows.gather(2, columns)
    counted = (negatives * valid).unsqueeze(2) * valid.unsqueeze(1)  # triplets of each pair that have a derivative
    counted.diagonal(0, 1, 2).zero_()
    shares = torch.zeros_like(rows)
    factors = torch.ones_like(rows)
    value = grown.new_zeros(())
    for step in range(1, members.shape[1]):
        both = valid[:, step:]
        total = rows[:, :-step] + rows[:, step:]
        share = total.reciprocal()
        if hinge:
            reach = within.diagonal(step, 1, 2).unsqueeze(2)
            above = torch.gt(total, reach, out=torch.empty_like(total)).scatter_(2, columns[:, step:], 0)
            share.mul_(above)
            for side in (step, -step):
                counted.diagonal(side, 1, 2).copy_(above.sum(2).mul_(both))
            total.div_(reach).clamp_(min=1)
        if padded:  # a factor of 1
            share.mul_(both.unsqueeze(2))
            total.mul_(both.unsqueeze(2)).add_(1 - both.unsqueeze(2))
        shares[:, :-step].add_(share)
        shares[:, step:].add_(share)
        factors[:, :-step].mul_(total)
        if step % FACTORS == 0:
            value += factors.scatter_(2, columns, 1).log_().sum()
            factors.fill_(1)
    value += factors.scatter_(2, columns, 1).log_().sum()
    if not hinge:
        value -= (counted * within.log_()).sum() / 2
    derivatives = shares.mul_(rows).mul_(2 * weight).scatter_(2, columns, 0)
    derivatives.scatter_add_(2, columns, counted.mul_(-weight))
    if padded:  # whose index is the first member's: write what that gets
        derivatives += (1 - valid).unsqueeze(2) * derivatives[:, :1]
    by_row.index_copy_(0, members.reshape(-1), derivatives.view(-1, derivatives.shape[2]))
    return 2 * weight * value
