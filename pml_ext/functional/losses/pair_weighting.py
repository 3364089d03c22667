"""General Pair Weighting: the weights |∂L/∂S_ij| of pair-based losses in closed form.

Each `…_weights` function takes a similarity matrix S (B, R) and boolean masks of its shape for the positive and
negative pairs (disjoint, without self-pairs). It returns (B, R) weights >= 0, 0 outside the masks: the derivatives of
Σ_i L_i, where L_i is the loss of anchor (row) i with positives P_i and negatives N_i. A sum over an empty P_i or N_i
contributes no weights.

Source: Wang et al., "Multi-Similarity Loss with General Pair Weighting for Deep Metric Learning", CVPR 2019.
"""

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from pml_ext._ops.custom_gradient import CustomGradient
from pml_ext._shared.checks import check_above_zero, check_in_range, check_switch, check_whole


def uniform_weights(similarity: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
    """Returns 1 for every pair; the miner selects the pairs: "MS mining" in the paper's Table 2."""
    return (positive | negative).to(similarity.dtype)


def contrastive_weights(similarity: Tensor, positive: Tensor, negative: Tensor, *, neg_margin: float = 0.5) -> Tensor:
    r"""Contrastive (eq. 4), with m = neg_margin.

    $$L_i = \sum_n \max(0, S_{in} - m) - \sum_p S_{ip}$$
    """
    _check_real(neg_margin=neg_margin)
    return (positive | (negative & (similarity > neg_margin))).to(similarity.dtype)


def triplet_weights(similarity: Tensor, positive: Tensor, negative: Tensor, *, margin: float = 0.1) -> Tensor:
    r"""Triplet (eq. 5), with m = margin: the number of violated triplets with the pair.

    $$L_i = \sum_p \sum_n \max(0, S_{in} - S_{ip} + m)$$

    Counted by sorting each row, O(B R log R), without a tensor of triplets.
    """
    _check_real(margin=margin)
    lowered = similarity - margin  # used by both searches, so that they agree on ties
    positives = torch.where(positive, lowered, torch.inf).sort(dim=1).values
    negatives = torch.where(negative, similarity, -torch.inf).sort(dim=1).values
    per_negative = torch.searchsorted(positives, similarity.contiguous())
    per_positive = similarity.shape[1] - torch.searchsorted(negatives, lowered.contiguous(), right=True)
    return torch.where(positive, per_positive, torch.where(negative, per_negative, 0)).to(similarity.dtype)


def lifted_weights(similarity: Tensor, positive: Tensor, negative: Tensor, *, margin: float = 1.0) -> Tensor:
    r"""Lifted structure (eqs. 6 to 8), with m = margin.

    $$L_i = \max(0, \log \sum_p e^{m - S_{ip}} + \log \sum_n e^{S_{in}})$$
    """
    _check_real(margin=margin)
    towards, away, weights = _log_sums_and_softmaxes(similarity, positive, negative)
    return weights * (towards + margin + away > 0)


def lifted_star_weights(
    similarity: Tensor, positive: Tensor, negative: Tensor, *, alpha: float = 2.0, beta: float = 50.0
) -> Tensor:
    r"""Lifted structure without its hinge (eq. 16).

    $$L_i = \frac{1}{α} \log \sum_p e^{-α S_{ip}} + \frac{1}{β} \log \sum_n e^{β S_{in}}$$
    """
    _check_above_zero(alpha=alpha, beta=beta)
    return _log_sums_and_softmaxes(similarity, positive, negative, alpha, beta)[2]


def binomial_deviance_weights(
    similarity: Tensor,
    positive: Tensor,
    negative: Tensor,
    *,
    alpha: float = 2.0,
    beta: float = 50.0,
    base: float = 0.5,
) -> Tensor:
    r"""Binomial deviance (eqs. 9 and 10), with b = base.

    $$L_i = \text{mean}_p \log(1 + e^{-α (S_{ip} - b)}) + \text{mean}_n \log(1 + e^{β (S_{in} - b)})$$

    Paper: does not state the constants used; here: those of lifted* and multi-similarity.
    """
    _check_above_zero(alpha=alpha, beta=beta)
    _check_real(base=base)
    towards = alpha * torch.sigmoid(alpha * (base - similarity)) / _count(positive)
    away = beta * torch.sigmoid(beta * (similarity - base)) / _count(negative)
    return torch.where(positive, towards, torch.where(negative, away, 0))


def bin_lifted_weights(
    similarity: Tensor,
    positive: Tensor,
    negative: Tensor,
    *,
    alpha: float = 2.0,
    beta: float = 50.0,
    base: float = 0.5,
    bounded: bool = False,
) -> Tensor:
    r"""The mean of the weights of binomial deviance and lifted* (supplement, eq. 10).

    Paper: the larger weight dominates the mean (supplement, eqs. 10 to 12), which suggests weights in [0, 1]; here:
    bounded=True averages $1 / (1 + e^{β (b - S_{in})})$ and $1 / \sum_k e^{β (S_{ik} - S_{in})}$ for a negative, with
    b = base; bounded=False averages the weights of the two losses, in which binomial deviance has a factor β/|N_i|
    (α/|P_i| for positives).
    """
    check_switch(bounded, "bounded")
    _check_real(base=base)
    lifted = lifted_star_weights(similarity, positive, negative, alpha=alpha, beta=beta)
    if bounded:
        towards, away = torch.sigmoid(alpha * (base - similarity)), torch.sigmoid(beta * (similarity - base))
        binomial = torch.where(positive, towards, torch.where(negative, away, 0))
    else:
        binomial = binomial_deviance_weights(similarity, positive, negative, alpha=alpha, beta=beta, base=base)
    return (binomial + lifted) / 2


def multi_similarity_weights(
    similarity: Tensor,
    positive: Tensor,
    negative: Tensor,
    *,
    alpha: float = 2.0,
    beta: float = 50.0,
    base: float = 0.5,
) -> Tensor:
    r"""Multi-similarity (eqs. 13 to 15), with b = base.

    $$L_i = \frac{1}{α} \log(1 + \sum_p e^{-α (S_{ip} - b)}) + \frac{1}{β} \log(1 + \sum_n e^{β (S_{in} - b)})$$

    Paper: base (its λ) is 1; here: 0.5, as in the authors' code and in PML's MultiSimilarityLoss.
    """
    _check_above_zero(alpha=alpha, beta=beta)
    _check_real(base=base)
    return _log_sums_and_softmaxes(similarity, positive, negative, alpha, beta, base, add_one=True)[2]


def nca_weights(similarity: Tensor, positive: Tensor, negative: Tensor, *, scale: float = 1.0) -> Tensor:
    r"""NCA, with c = scale; undefined for an anchor without positives.

    $$L_i = -\log \frac{\sum_p e^{c S_{ip}}}{\sum_p e^{c S_{ip}} + \sum_n e^{c S_{in}}}$$
    """
    _check_above_zero(scale=scale)
    _, among_all = _log_sum_and_softmax(scale * similarity, positive | negative)
    _, among_positives = _log_sum_and_softmax(scale * similarity, positive)
    weights = torch.where(positive, among_positives - among_all, among_all)
    # Without negatives the difference is 0 up to rounding, but a weight must not be negative.
    return scale * weights.clamp_min(0) * positive.any(dim=1, keepdim=True)


def n_pairs_weights(similarity: Tensor, positive: Tensor, negative: Tensor, *, scale: float = 1.0) -> Tensor:
    r"""N-pairs, with c = scale.

    $$L_i = \text{mean}_p \log(1 + \sum_n e^{c (S_{in} - S_{ip})})$$

    With several positives per anchor, each is compared with all of the anchor's negatives.
    """
    _check_above_zero(scale=scale)
    log_negatives, among_negatives = _log_sum_and_softmax(scale * similarity, negative)
    missed = torch.where(positive, torch.sigmoid(log_negatives - scale * similarity) / _count(positive), 0)
    return scale * (missed + among_negatives * missed.sum(dim=1, keepdim=True))


def histogram_weights(similarity: Tensor, positive: Tensor, negative: Tensor, *, bins: int = 100) -> Tensor:
    r"""Returns B × the derivative of the overlap of the positive and negative histograms, h⁺ and h⁻.

    $$\sum_r h^-_r \sum_{q ≤ r} h^+_q$$

    A pair is split linearly between the two nearest of bins + 1 nodes on [−1, 1]. This loss is
    a mean over pairs; the factor B makes it a mean over anchors like the other losses.
    """
    # A nan falls into interval 0 and stays nan in the product with S.
    left, nodes = _histograms(similarity.nan_to_num(-1.0), positive, negative, bins)
    # The loss is Σ_r h⁻(r) Σ_{q ≤ r} h⁺(q). A positive that moves right reduces the inner sum at its left node; a
    # negative that moves right gains h⁺ of its right node.
    w_positive = nodes[1][left] / positive.sum().clamp_min(1)
    w_negative = nodes[0][left + 1] / negative.sum().clamp_min(1)
    slope = len(similarity) * bins / 2
    return slope * torch.where(positive, w_positive, torch.where(negative, w_negative, 0))


def histogram_overlap(similarity: Tensor, positive: Tensor, negative: Tensor, *, bins: int = 100) -> Tensor:
    """Returns Σ_r h⁻_r Σ_{q<=r} h⁺_q: P(a positive is no more similar than a negative), up to one bin; a scalar.

    Source: Ustinova and Lempitsky, "Learning Deep Embeddings with Histogram Loss", NIPS 2016.
    """
    _, (of_positives, of_negatives) = _histograms(similarity, positive, negative, bins)
    return (of_negatives * of_positives.cumsum(0)).sum()


def _histograms(similarity: Tensor, positive: Tensor, negative: Tensor, bins: int) -> tuple[Tensor, list[Tensor]]:
    """Returns the node left of each pair, and the shares of positives and of negatives at the bins + 1 nodes."""
    check_whole(bins, "bins", 1)
    place = (similarity.clamp(-1, 1) + 1) * (bins / 2)
    left = place.nan_to_num().long().clamp(max=bins - 1)  # the last node belongs to the last interval
    nodes = []
    for mask in (positive, negative):
        share, at = (place - left)[mask], left[mask]
        node = similarity.new_zeros(bins + 1).index_add(0, at, 1 - share).index_add(0, at + 1, share)
        nodes.append(node / mask.sum().clamp_min(1))
    return left, nodes


def multi_similarity_mining(
    similarity: Tensor, positive: Tensor, negative: Tensor, epsilon: float
) -> tuple[Tensor, Tensor]:
    """Returns the positive pairs less than epsilon above the anchor's hardest negative, and likewise the negative ones.

    Source: eqs. 10 and 11 of the paper; the pairs are those of PML's MultiSimilarityMiner.
    """
    most_alike = similarity.masked_fill(~negative, -torch.inf).amax(dim=1, keepdim=True)
    least_alike = similarity.masked_fill(~positive, torch.inf).amin(dim=1, keepdim=True)
    return positive & (similarity - epsilon < most_alike), negative & (similarity + epsilon > least_alike)


def _weighted_kernel(
    similarity: Tensor, weigh: Callable[[Tensor], Tensor], *, needs_gradient: bool
) -> tuple[Tensor, Tensor]:
    weights = weigh(similarity)
    return (weights * similarity).sum(dim=1), weights


def _weighted_plain(similarity: Tensor, weigh: Callable[[Tensor], Tensor]) -> Tensor:
    """The second term and its gradient are 0; its second derivative is weigh's derivative, a symmetric matrix."""
    weights = weigh(similarity)
    fixed, offset = weights.detach(), similarity - similarity.detach()
    return (fixed * similarity + (weights - fixed) * offset / 2).sum(dim=1)


weighted_sums = CustomGradient(_weighted_kernel, _weighted_plain)
"""Σ_j w_ij S_ij of each row with w = weigh(S) constant: the gradient is w, its derivative is weigh's.

similarity: (B, R). weigh: (B, R) -> (B, R), differentiable; the weights are the gradient of some function of S.
"""


Weighting = Literal[
    "uniform", "contrastive", "triplet", "lifted", "lifted_star", "bin_lifted", "binomial_deviance", "histogram",
    "multi_similarity", "nca", "n_pairs",
]  # fmt: skip
WEIGHTINGS: dict[Weighting, Callable[..., Tensor]] = {
    "uniform": uniform_weights,
    "contrastive": contrastive_weights,
    "triplet": triplet_weights,
    "lifted": lifted_weights,
    "lifted_star": lifted_star_weights,
    "binomial_deviance": binomial_deviance_weights,
    "bin_lifted": bin_lifted_weights,
    "multi_similarity": multi_similarity_weights,
    "nca": nca_weights,
    "n_pairs": n_pairs_weights,
    "histogram": histogram_weights,
}


def _log_sum_and_softmax(logits: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Returns (B, 1) log Σ e^logit over each row's mask, −inf for an empty one, and the (B, R) softmax."""
    total = logits.masked_fill(~mask, -torch.inf).logsumexp(dim=1, keepdim=True)
    # torch.where, because exp(−inf − −inf) is nan in a row without entries
    return total, torch.where(mask, torch.exp(logits - total), 0)


def _log_sums_and_softmaxes(
    similarity: Tensor, positive: Tensor, negative: Tensor, alpha: float = 1, beta: float = 1, base: float = 0,
    *, add_one: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Returns the log sums of positives and of negatives, and the (B, R) softmax of both.

    The sums are (B, 1) log Σ e^{−α (S − base)} and log Σ e^{β (S − base)}, plus 1 if add_one; −inf for an empty one.
    Memory: two (B, R) tensors.
    """
    logits = (similarity - base).mul_(torch.full_like(similarity, beta).masked_fill_(positive, -alpha))
    towards, away = (logits.masked_fill(~of, -torch.inf).logsumexp(dim=1, keepdim=True) for of in (positive, negative))
    if add_one:
        one = logits.new_zeros(())
        towards, away = torch.logaddexp(towards, one), torch.logaddexp(away, one)
    logits = logits.sub_(torch.where(positive, towards, away)).masked_fill_(~(positive | negative), -torch.inf)
    return towards, away, logits.exp_()


def _count(mask: Tensor) -> Tensor:
    return mask.sum(dim=1, keepdim=True).clamp_min(1)


def _check_above_zero(**options: float) -> None:
    for name, value in options.items():
        check_above_zero(value, name)


def _check_real(**options: float) -> None:
    for name, value in options.items():
        check_in_range(value, -math.inf, math.inf, name)
