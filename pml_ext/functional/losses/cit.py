"""Concordance of triplets: is the positive more similar to the anchor than the negative?

Exact, without a (B, B, B) tensor. cit_kernel.py is the fast version for the cosines of a batch with itself.
"""

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from pml_ext._checks import check_floating, check_labels
from pml_ext._ops.blocks import rows_of_a_block
from pml_ext._ops.transforms import under_transform
from pml_ext.functional.tuples.pairs import count_triplets, same_and_different


def concordance_index(similarities: Tensor, labels: Tensor, ref_labels: Tensor | None = None) -> Tensor:
    """The share of triplets whose positive is more similar to the anchor than the negative; a tie counts one half.

    Args:
        similarities: (B, R), larger = more alike, of any scale.
        labels: (B,) class ids of the rows.
        ref_labels: (R,) class ids of the columns; None if the columns are the rows (no sample is its own positive).
    Returns:
        a scalar in [0, 1], without a gradient; nan if there is no triplet.
    Source: Harrell's concordance index on triplets; "Triplet Similarity Learning on Concordance Constraint" optimises
        it.

    >>> similarities, labels = torch.tensor([[1, 0.6, 0.7], [0.6, 1, 0.2], [0.7, 0.2, 1]]), torch.tensor([0, 0, 1])
    >>> concordance_index(similarities, labels)
    tensor(0.5000)
    """
    check_floating(similarities, "similarities", "(B, R)")
    rows, columns = similarities.shape
    labels = check_labels(labels, rows)
    if ref_labels is not None:
        ref_labels = check_labels(ref_labels, columns, "ref_labels")
    elif rows != columns:
        raise ValueError(f"similarities must have shape (B, B) if ref_labels is None; got ({rows}, {columns})")
    same, different = same_and_different(labels, ref_labels)
    negatives, _ = _sort_negatives(similarities.detach(), different)
    wanted = similarities.detach().contiguous()
    below = torch.searchsorted(negatives, wanted)
    up_to = torch.searchsorted(negatives, wanted, right=True)
    # Columns that are not negatives sort first, as -inf. Counting twice keeps the halves of ties integers.
    padding = (~different).sum(1, keepdim=True)
    twice = ((below + up_to - 2 * padding) * same).sum()
    dtype = torch.promote_types(similarities.dtype, torch.float32)
    return twice.to(dtype) / (2 * count_triplets(same, different))


def concordance_loss(
    similarities: Tensor,
    ref_similarities: Tensor | None,
    same: Tensor,
    different: Tensor,
    gamma: float = 1.0,
    hinge_partial_likelihood: bool = False,
    *,
    entries: int | None = None,
) -> Tensor:
    """γ L_e + (1 − γ) L_p, averaged over all triplets; 0 (with a gradient path) without one.

    Source: "Triplet Similarity Learning on Concordance Constraint", eqs. 4, 7 and 8. The hinge clamps each L_p at zero.
    similarities, same, different: (B, R). ref_similarities: (R, R), for (positive, negative), needed if gamma < 1.
    Differentiable any number of times. entries: per block (positive pairs, R) of L_p; None: the device's block size.
    """
    loss = similarities.new_zeros(())
    if gamma > 0:
        loss = loss + gamma * discordance_sum(similarities, same, different)
    if gamma < 1:
        if ref_similarities is None:
            raise ValueError("ref_similarities must be an (R, R) tensor if gamma < 1; got None")
        hinge = hinge_partial_likelihood
        partial = partial_likelihood_sum(similarities, ref_similarities, same, different, hinge, entries=entries)
        loss = loss + (1 - gamma) * partial
    return loss / count_triplets(same, different).clamp(min=1)


def discordance_sum(similarities: Tensor, same: Tensor, different: Tensor) -> Tensor:
    """Σ over all triplets of relu(1 − exp(S_ap − S_an)) (eq. 4), in O(B R log R) time and O(B R) memory.

    Among an anchor's sorted negatives those above a positive form a tail, whose length and sum of e^{−S_an} suffice.
    """
    negatives, order = _sort_negatives(similarities, different)
    decay = (-similarities).exp().masked_fill(~different, 0).gather(1, order)
    tails = decay.flip(1).cumsum(1).flip(1)
    tails = torch.cat([tails, tails.new_zeros(len(tails), 1)], 1)
    first_above = torch.searchsorted(negatives, similarities.detach().contiguous(), right=True)
    sums = (similarities.shape[1] - first_above) - similarities.exp() * tails.gather(1, first_above)
    return sums[same].sum()


@torch.no_grad()
def discordance_by_sorting(similarities: Tensor, same: Tensor, different: Tensor) -> tuple[Tensor, Tensor]:
    """`discordance_sum` and its (B, R) gradient.

    ∂/∂S_an is e^{−S_an} times the sum of e^{S_ap} over the positives below S_an: a running sum over sorted negatives.
    """
    negatives, order = _sort_negatives(similarities, different)
    decay = (-similarities).exp_().masked_fill_(~different, 0).gather(1, order)
    tails = torch.zeros(len(decay), decay.shape[1] + 1, dtype=decay.dtype, device=decay.device)
    tails[:, :-1] = decay.flip(1).cumsum_(1).flip(1)
    first_above = torch.searchsorted(negatives, similarities.contiguous(), right=True)
    growth = similarities.exp().mul_(same)
    lost = tails.gather(1, first_above).mul_(growth)
    value = ((similarities.shape[1] - first_above) * same).sum() - lost.sum()
    below = tails.zero_().scatter_add_(1, first_above, growth).cumsum_(1)[:, :-1]
    return value, lost.neg_().scatter_add_(1, order, decay.mul_(below))


def partial_likelihood_sum(
    similarities: Tensor,
    ref_similarities: Tensor,
    same: Tensor,
    different: Tensor,
    hinge: bool = False,
    *,
    entries: int | None = None,
) -> Tensor:
    """Σ over all triplets of log(e^{S_an} + e^{S_pn}) − S_ap, in blocks that backward recomputes.

    Source: eq. 7 (eqs. 17 and 18 print the gradient with the wrong sign).
    """
    anchors, positives = torch.nonzero(same, as_tuple=True)
    rows = rows_of_a_block(similarities.shape[1], similarities.device, entries=entries)
    total = similarities.new_zeros(())
    for a, p in zip(anchors.split(rows), positives.split(rows), strict=True):
        arguments = (similarities, ref_similarities, different, a, p, hinge)
        if under_transform():  # torch.func does not support checkpointing
            total = total + _partial_likelihood_block(*arguments)
        else:
            total = total + checkpoint(_partial_likelihood_block, *arguments, use_reentrant=False)
    return total


def triplet_losses(s_ap: Tensor, s_an: Tensor, s_pn: Tensor | None, gamma: float, hinge: bool = False) -> Tensor:
    """γ L_e + (1 − γ) L_p of each of (T,) given triplets; s_pn is needed if gamma < 1."""
    losses = gamma * torch.relu(-torch.expm1(s_ap - s_an))
    if s_pn is not None and gamma < 1:
        partial = torch.logaddexp(s_an, s_pn) - s_ap
        losses = losses + (1 - gamma) * (partial.relu() if hinge else partial)
    return losses


def _partial_likelihood_block(
    similarities: Tensor, ref_similarities: Tensor, different: Tensor, anchors: Tensor, positives: Tensor, hinge: bool
) -> Tensor:
    to_negatives = torch.logaddexp(similarities[anchors], ref_similarities[positives])
    losses = to_negatives - similarities[anchors, positives][:, None]
    if hinge:
        losses = losses.relu()
    return losses.masked_fill(~different[anchors], 0).sum()


def _sort_negatives(similarities: Tensor, different: Tensor) -> tuple[Tensor, Tensor]:
    """Sort each row; columns that are not negatives come first, as -inf."""
    return similarities.detach().masked_fill(~different, -torch.inf).sort(1)
