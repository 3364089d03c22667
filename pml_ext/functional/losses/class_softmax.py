"""Classification losses: margin softmax, and cross-entropy over classes that are sharded over ranks."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, distributed

from pml_ext._ops.custom_gradient import inverse_norms, through_sphere_
from pml_ext._ops.distributed import sum_over_ranks
from pml_ext._ops.numerics import row_blocks
from pml_ext.functional.losses.discriminative import OneHotSums

Rule = Callable[[Tensor, float], Tensor]
"""(scores, margin) -> scores of the same shape."""


class Margin(NamedTuple):
    """A margin softmax: cross-entropy of scale · target(score of the target) and scale · others(the other scores).

    usual: default margin and scale. others: None leaves the other scores unchanged. factor_of_others: the
    derivative of `others`. of_cosines: scores are cosines, else inner products.
    """

    usual: tuple[float, float]
    target: Rule
    others: Rule | None = None
    factor_of_others: Rule | None = None
    of_cosines: bool = True


def _arcface(cosines: Tensor, margin: float) -> Tensor:
    """Returns cos(θ + margin), with a finite gradient at cosines of ±1."""
    sines = ((1 - cosines) * (1 + cosines)).clamp_min(1e-12).sqrt()
    return cosines * math.cos(margin) - sines * math.sin(margin)


def _circle_target(cosines: Tensor, margin: float) -> Tensor:
    return (1 + margin - cosines.detach()).clamp_min(0) * (cosines - 1 + margin)


def _circle_factor(cosines: Tensor, margin: float) -> Tensor:
    return (cosines.detach() + margin).clamp_min(0)


def _circle_others(cosines: Tensor, margin: float) -> Tensor:
    return _circle_factor(cosines, margin) * (cosines - margin)


MARGINS = {
    "softmax": Margin((0.0, 1.0), lambda scores, margin: scores, of_cosines=False),
    "cosface": Margin((0.4, 64.0), lambda cosines, margin: cosines - margin),
    "arcface": Margin((0.5, 64.0), _arcface),
    "circle": Margin((0.25, 64.0), _circle_target, _circle_others, _circle_factor),
}
"""Margins by name. cosface: Wang et al., CVPR 2018, eq. 4. arcface: Deng et al., CVPR 2019, eq. 3, margin in radians.
circle: Sun et al., CVPR 2020, eq. 5 and 6, whose weights carry no gradient."""


class ShardedLoss(NamedTuple):
    """The loss of N samples over sharded classes, with the terms of a rank's gradients by samples and K class vectors.

    losses: (N,), the same on every rank. is_right: (N,) bool, True if the target has the largest score (no margin).
    by_score: (K, N), the gradient of the mean loss by the scores (cosines or inner products) of this rank's classes.
    unit, inverse_x, inverse_w: normalised samples and the inverse norms of both, for cosines; else samples and None.
    """

    losses: Tensor
    is_right: Tensor
    by_score: Tensor
    unit: Tensor
    inverse_x: Tensor | None
    inverse_w: Tensor | None


def sharded_softmax(
    x: Tensor,
    weight: Tensor,
    target: Tensor,
    *,
    margin: Margin,
    m: float,
    scale: float,
    epsilon: float = 0.0,
    filter_above: float = 0.0,
    group: distributed.ProcessGroup | None = None,
) -> ShardedLoss:
    """Returns the cross-entropy of all samples over the classes of all ranks; no rank stores all scores.

    Seven numbers per sample are reduced, among them the largest score, the sum of exponentials, and the target's score.

    Args:
        x: (N, D) samples of all ranks, the same everywhere; float32 or float64.
        weight: (K, D) vectors of this rank's classes, K ≥ 1.
        target: (N,) row of the sample's target class in `weight`; −1 if another rank has it.
        margin, m, scale: map scores to logits.
        epsilon: total target of all other classes (label smoothing), distributed evenly.
        filter_above: cosine above which another class's logit is 0, without a gradient. 0: no filter.
        group: None for one process.
    Source: An et al., arXiv 2203.15565, eq. 1 and 2.
    """
    inverse_x, inverse_w = (inverse_norms(x), inverse_norms(weight)) if margin.of_cosines else (None, None)
    unit = x if inverse_x is None else x * inverse_x
    scores = weight @ unit.T  # one row per class, so that a block of classes is contiguous
    if inverse_w is not None:
        scores *= inverse_w

    at = (target >= 0).nonzero().squeeze(1)
    here = (target[at], at)
    target_score = scores[here]
    with torch.inference_mode(False):  # turns gradients on, too
        leaf = target_score.clone().requires_grad_()
        target_logit = scale * margin.target(leaf, m)
        (slope,) = torch.autograd.grad(target_logit.sum(), leaf)
    scores[here] = -torch.inf
    largest_of_others = scores.amax(dim=0)
    factor = large = None
    if filter_above:
        large = scores > filter_above
    if margin.others is not None and margin.factor_of_others is not None:
        scores[here] = 0  # −inf × 0 would be nan
        factor = torch.empty_like(scores)
        for block in row_blocks(len(weight), len(x), x.device):
            factor[block] = margin.factor_of_others(scores[block], m)
            scores[block] = margin.others(scores[block], m)
    # In place from here on, because a rank's classes times all samples is the largest tensor.
    logits = scores.mul_(scale)
    if large is not None:
        logits.masked_fill_(large, 0)
        factor = (torch.ones_like(logits) if factor is None else factor).masked_fill_(large, 0)
    logits[here] = target_logit.detach()

    tops = torch.stack([logits.amax(dim=0), largest_of_others])
    if group is not None:
        distributed.all_reduce(tops, distributed.ReduceOp.MAX, group=group)
    top, largest_of_others = tops
    sums = x.new_zeros(5, len(x))
    sums[0], sums[1, at], sums[2, at] = len(weight), target_score, target_logit.detach()
    if epsilon:
        torch.sum(logits, dim=0, out=sums[3])
    exponentials = logits.sub_(top).exp_()
    torch.sum(exponentials, dim=0, out=sums[4])
    classes, target_scores, target_logits, sum_of_logits, normalizer = sum_over_ranks(sums, group)

    log_sum = normalizer.log() + top
    losses = (1 - epsilon) * (log_sum - target_logits)
    by_score = exponentials.div_(normalizer)  # the probabilities, from which the targets are subtracted
    if epsilon:
        each = epsilon / (classes - 1)
        losses += epsilon * log_sum - each * (sum_of_logits - target_logits)
        by_score -= each
        slope = slope * (by_score[here] + each[at] - (1 - epsilon))
    else:
        slope = slope * (by_score[here] - 1)
    by_score *= scale if factor is None else factor.mul_(scale)
    by_score[here] = slope
    by_score /= len(x)
    return ShardedLoss(losses, target_scores > largest_of_others, by_score, unit, inverse_x, inverse_w)


def gradient_by_samples(loss: ShardedLoss, weight: Tensor) -> Tensor:
    """Returns this rank's (N, D) summand of the gradient of the mean loss by the samples."""
    gradient = torch.zeros_like(loss.unit)
    for block in row_blocks(len(weight), weight.shape[1], weight.device):
        part = loss.by_score[block]
        gradient.addmm_((part if loss.inverse_w is None else part * loss.inverse_w[block]).T, weight[block])
    return gradient if loss.inverse_x is None else through_sphere_(gradient, loss.unit, loss.inverse_x)


def gradient_by_classes(loss: ShardedLoss, weight: Tensor, factor: Tensor) -> Tensor:
    """Returns the (K, D) gradient of factor × the mean loss by this rank's class vectors."""
    gradient, unit = torch.empty_like(weight), factor * loss.unit
    for block in row_blocks(len(weight), weight.shape[1], weight.device):
        part = torch.mm(loss.by_score[block], unit, out=gradient[block])
        if loss.inverse_w is not None:
            through_sphere_(part, weight[block] * loss.inverse_w[block], loss.inverse_w[block])
    return gradient


def sharded_discriminative(
    x: Tensor, weight: Tensor, target: Tensor, *, group: distributed.ProcessGroup | None = None
) -> ShardedLoss:
    """Compute `one_hot_discriminative_loss(x @ W.T, labels)` with the rows of W sharded over ranks.

    Six numbers per sample are reduced; no rank stores all scores. For the formulas see that function.

    Args:
        x: (N, D) samples of all ranks, the same everywhere; float32 or float64.
        weight: (K, D) rows of this rank's classes, K ≥ 1; at least two over all ranks.
        target: (N,) row of the sample's target class in `weight`; −1 if another rank has it.
        group: None for one process.
    """
    scores = weight @ x.T
    at = (target >= 0).nonzero().squeeze(1)
    here = (target[at], at)
    target_score = scores[here]
    scores[here] = -torch.inf
    largest_of_others = scores.amax(dim=0)
    if group is not None:
        distributed.all_reduce(largest_of_others, distributed.ReduceOp.MAX, group=group)
    scores[here] = 0

    sums = x.new_zeros(3, len(x))
    sums[0], sums[1, at] = len(weight), target_score
    sums[2] = torch.linalg.vector_norm(scores, dim=0).square()
    classes, of_target, squares = sum_over_ranks(sums, group)
    one_hot = OneHotSums(of_target, squares.sqrt(), classes)
    sums = x.new_zeros(2, len(x))
    for block in row_blocks(len(weight), len(x), x.device):
        root = (one_hot.longer - scores[block]).sqrt_()
        sums[0] += root.sum(dim=0)
        sums[1] += root.reciprocal_().sum(dim=0)
    roots, inverses = sum_over_ranks(sums, group)
    # without the target class's shares, whose score is 0
    roots, inverses = roots - one_hot.longer.sqrt(), inverses - one_hot.longer.rsqrt()
    by_others, by_target, along = one_hot.factors(roots, inverses)
    for block in row_blocks(len(weight), len(x), x.device):
        some = scores[block]
        scores[block] = by_others * (one_hot.longer - some).rsqrt_() - along * some
    by_score = scores  # which each block has replaced by its gradient
    by_score[here] = by_target[at] - along[at] * target_score
    by_score /= len(x)
    return ShardedLoss(one_hot.losses(roots), of_target > largest_of_others, by_score, x, None, None)
