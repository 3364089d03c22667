"""The one-hot discriminative loss of a last layer that is divided over its classes among ranks."""

import torch
from torch import Tensor, distributed

from pml_ext._ops.blocks import row_blocks
from pml_ext._ops.distributed import sum_over_ranks
from pml_ext.functional.losses.discriminative_one_hot import OneHotTerms
from pml_ext.functional.losses.softmax_over_ranks import DividedSoftmax


def divided_one_hot(
    x: Tensor, weight: Tensor, own: Tensor, *, group: distributed.ProcessGroup | None = None, entries: int | None = None
) -> DividedSoftmax:
    """`one_hot_discriminative_loss(x @ W.T, labels)` where each rank has some rows of W.

    The formulas are those of one process, see there. Six numbers a sample are reduced, and no rank has all scores.

    Args:
        x: (N, D) samples of all ranks, the same everywhere; float32 or float64.
        weight: (K, D) rows of this rank's classes, K ≥ 1; two or more on all ranks together.
        own: (N,) row of `weight` that is the sample's own class; −1 where another rank has it.
        group: None for one process.
        entries: entries of one block; None: the device's block size.
    """
    scores = weight @ x.T
    at = (own >= 0).nonzero().squeeze(1)
    here = (own[at], at)
    own_score = scores[here]
    scores[here] = -torch.inf
    largest_of_others = scores.amax(dim=0)
    if group is not None:
        distributed.all_reduce(largest_of_others, distributed.ReduceOp.MAX, group=group)
    scores[here] = 0

    sums = x.new_zeros(3, len(x))
    sums[0], sums[1, at] = len(weight), own_score
    sums[2] = torch.linalg.vector_norm(scores, dim=0).square()
    classes, of_own, squares = sum_over_ranks(sums, group)
    terms = OneHotTerms(of_own, squares.sqrt(), classes)
    sums = x.new_zeros(2, len(x))
    for block in row_blocks(len(weight), len(x), x.device, entries=entries):
        root = (terms.longer - scores[block]).sqrt_()
        sums[0] += root.sum(dim=0)
        sums[1] += root.reciprocal_().sum(dim=0)
    roots, inverses = sum_over_ranks(sums, group)
    # less the own class's terms, where its score is 0
    roots, inverses = roots - terms.longer.sqrt(), inverses - terms.longer.rsqrt()
    by_others, by_own, along = terms.factors(roots, inverses)
    for block in row_blocks(len(weight), len(x), x.device, entries=entries):
        some = scores[block]
        scores[block] = by_others * (terms.longer - some).rsqrt_() - along * some
    scores[here] = by_own[at] - along[at] * own_score
    scores /= len(x)
    return DividedSoftmax(terms.losses(roots), of_own > largest_of_others, scores, x, None, None)
