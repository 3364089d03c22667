"""Concordance of triplets: is the positive more similar to the anchor than the negative?

Exact, without a (B, B, B) tensor. `concordance_loss` is the plain version, `concordance` the kernel for cosines.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.utils.checkpoint import checkpoint

from pml_ext._ops.custom_gradient import (
    CustomGradient,
    through_sphere_,
    to_sphere,
    under_transform,
    unit_and_inverse_norms,
)
from pml_ext._ops.numerics import add_transpose_, gram, row_blocks, rows_of_a_block
from pml_ext._shared.checks import check_floating, check_labels
from pml_ext.functional.tuples import ClassSpans, class_columns, class_spans, count_triplets, same_and_different


def concordance_index(similarities: Tensor, labels: Tensor, ref_labels: Tensor | None = None) -> Tensor:
    r"""Returns the share of triplets whose positive is closer to the anchor than the negative; a tie counts one half.

    $$\frac{1}{N} \sum_{(a,p,n)} ([S_{ap} > S_{an}] + \frac{1}{2} [S_{ap} = S_{an}])$$

    Args:
        similarities: (B, R), larger = more alike, of any scale.
        labels: (B,) class ids of the rows.
        ref_labels: (R,) class ids of the columns; None if the columns are the rows (no sample is a positive of itself).
    Returns:
        A scalar in [0, 1], without a gradient; nan if there is no triplet.
    Source: Harrell's concordance index on triplets; "Triplet Similarity Learning on Concordance Constraint" optimises
        it.

    >>> similarities = torch.tensor([[1, 0.6, 0.7], [0.6, 1, 0.2], [0.7, 0.2, 1]])
    >>> concordance_index(similarities, torch.tensor([0, 0, 1]))
    tensor(0.5000)
    """
    check_floating(similarities, "similarities", "(B, R)")
    rows, columns = similarities.shape
    labels = check_labels(labels, rows)
    if ref_labels is not None:
        ref_labels = check_labels(ref_labels, columns, "ref_labels")
    elif rows != columns:
        raise ValueError(f"similarities must have shape (B, B) if ref_labels is None; got ({rows}, {columns})")
    return concordance_of_pairs(similarities, *same_and_different(labels, ref_labels))


def concordance_of_pairs(similarities: Tensor, same: Tensor, different: Tensor) -> Tensor:
    """Compute `concordance_index` for (B, R) masks of positive and negative pairs."""
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
) -> Tensor:
    """Returns γ L_e + (1 − γ) L_p, averaged over all triplets; 0 (with a gradient path) if there are none.

    Source: "Triplet Similarity Learning on Concordance Constraint", eqs. 4, 7 and 8. The hinge clamps each L_p at zero.
    similarities, same, different: (B, R). ref_similarities: (R, R), for (positive, negative), needed if gamma < 1.
    Differentiable any number of times.
    """
    loss = similarities.new_zeros(())
    if gamma > 0:
        loss = loss + gamma * discordance_sum(similarities, same, different)
    if gamma < 1:
        if ref_similarities is None:
            raise ValueError("ref_similarities must be an (R, R) tensor if gamma < 1; got None")
        hinge = hinge_partial_likelihood
        partial = partial_likelihood_sum(similarities, ref_similarities, same, different, hinge)
        loss = loss + (1 - gamma) * partial
    return loss / count_triplets(same, different).clamp(min=1)


def discordance_sum(similarities: Tensor, same: Tensor, different: Tensor) -> Tensor:
    """Returns Σ over all triplets of relu(1 − exp(S_ap − S_an)) (eq. 4), in O(B R log R) time and O(B R) memory.

    The negatives above a positive are a tail of the anchor's sorted negatives; only the tail's length and its sum of
    e^{−S_an} are needed.
    """
    negatives, order = _sort_negatives(similarities, different)
    decay = (-similarities).exp().masked_fill(~different, 0).gather(1, order)
    tails = decay.flip(1).cumsum(1).flip(1)
    tails = torch.cat([tails, tails.new_zeros(len(tails), 1)], 1)
    first_above = torch.searchsorted(negatives, similarities.detach().contiguous(), right=True)
    sums = (similarities.shape[1] - first_above) - similarities.exp() * tails.gather(1, first_above)
    return sums[same].sum()


def partial_likelihood_sum(
    similarities: Tensor,
    ref_similarities: Tensor,
    same: Tensor,
    different: Tensor,
    hinge: bool = False,
) -> Tensor:
    """Returns Σ over all triplets of log(e^{S_an} + e^{S_pn}) − S_ap, in blocks that backward recomputes.

    Source: eq. 7 (eqs. 17 and 18 print the gradient with the wrong sign).
    """
    anchors, positives = torch.nonzero(same, as_tuple=True)
    rows = rows_of_a_block(similarities.shape[1], similarities.device)
    total = similarities.new_zeros(())
    for a, p in zip(anchors.split(rows), positives.split(rows), strict=True):
        arguments = (similarities, ref_similarities, different, a, p, hinge)
        if under_transform():  # torch.func does not support checkpointing
            total = total + _partial_likelihood_block(*arguments)
        else:
            total = total + checkpoint(_partial_likelihood_block, *arguments, use_reentrant=False)
    return total


def triplet_losses(s_ap: Tensor, s_an: Tensor, s_pn: Tensor | None, gamma: float, hinge: bool = False) -> Tensor:
    """Returns γ L_e + (1 − γ) L_p of (T,) triplets; s_pn is needed if gamma < 1."""
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


LARGEST_CLASS = 128
"""Class size up to which comparing with every positive, as the kernel does, is faster than sorting the negatives."""


def _value_and_gradient(
    embeddings: Tensor, labels: Tensor, gamma: float, scale: float, hinge: bool, *, needs_gradient: bool
) -> tuple[Tensor, Tensor | None]:
    unit, inverse_norms = unit_and_inverse_norms(embeddings)
    spans = class_spans(labels)
    if spans.largest > LARGEST_CLASS:
        if not needs_gradient:
            return _plain(embeddings, labels, gamma, scale, hinge), None
        with torch.enable_grad():
            leaf = embeddings.detach().requires_grad_()
            value = _plain(leaf, labels, gamma, scale, hinge)
            (gradient,) = torch.autograd.grad(value, leaf)
        return value.detach(), gradient
    triplets = max(1, spans.triplets)
    value, gradient = by_similarities(unit, spans, gamma, scale, hinge)
    if not needs_gradient:
        return value / triplets, None
    symmetric = add_transpose_(gradient)
    return value / triplets, through_sphere_(symmetric @ unit, unit, inverse_norms.mul_(scale / triplets))


def by_similarities(unit: Tensor, spans: ClassSpans, gamma: float, scale: float, hinge: bool) -> tuple[Tensor, Tensor]:
    """Returns the sum over the triplets of (B, D) unit vectors; its (B, B) gradient by similarities, over `scale`.

    spans: on the CPU, where the samples of each class are listed.
    """
    columns, is_positive = class_columns(spans)
    same, valid = columns.to(unit.device, non_blocking=True), is_positive.to(unit, non_blocking=True)
    # e^S. γ = 1 needs only e^−S, which the gradient overwrites (a separate matrix takes 30 % longer at 256 samples, the
    # same time at 1,024).
    exponentials = gram(unit, scale if gamma < 1 else -scale).exp_()
    gradient = exponentials
    value = unit.new_zeros(())
    if gamma < 1:
        foremost = (spans.rank == 0).nonzero()[:, 0]
        members = columns[foremost].roll(1, 1).to(unit.device, non_blocking=True)
        there = pad(is_positive[foremost], (1, 0), value=True).to(unit, non_blocking=True)
        negatives = (len(unit) - spans.size[foremost]).to(unit.device, non_blocking=True)
        classes = rows_of_a_block(spans.largest * len(unit), unit.device)
        for begin in range(0, len(members), classes):
            chosen = slice(begin, begin + classes)
            arguments = (negatives[chosen], len(set(spans.sizes)) > 1, 1 - gamma, hinge)
            of_block, derivatives = _partial_likelihood(exponentials, members[chosen], there[chosen], *arguments)
            value += of_block
            if begin == 0:  # only now, after the block's temporary tensors
                gradient = torch.empty_like(exponentials)
            gradient.index_copy_(0, members[chosen].reshape(-1), derivatives)
            del derivatives
    if gamma > 0:
        width = valid.shape[1] * len(unit)
        for block in row_blocks(len(unit), width, unit.device, at_least=1 if gamma == 1 else 2):
            decay = exponentials[block] if gamma == 1 else exponentials[block].reciprocal_()
            value += _discordance(decay, valid[block], same[block], gamma, gradient[block], added=gamma < 1)
    return value, gradient


def _plain(embeddings: Tensor, labels: Tensor, gamma: float, scale: float, hinge: bool) -> Tensor:
    unit = to_sphere(embeddings)
    similarities = scale * unit @ unit.T
    pairs = same_and_different(labels, device=embeddings.device)
    return concordance_loss(similarities, similarities, *pairs, gamma, hinge)


concordance = CustomGradient(_value_and_gradient, _plain)
"""`concordance_loss` of a batch with itself, whose similarities are scale × cosines; several times faster."""


def _discordance(decay: Tensor, valid: Tensor, same: Tensor, weight: float, by_row: Tensor, *, added: bool) -> Tensor:
    """Returns weight · Σ 1 − e^{S_ap − S_an} over the triplets of a block with S_an > S_ap.

    decay: (anchors, B) of e^−S, overwritten; same: (anchors, P + 1) columns of the positives (valid: 0 for padding) and
    of the anchor. The gradient by the similarities overwrites by_row, which may be `decay`, or is added to it.
    """
    positives = same[:, :-1]
    reach = decay.gather(1, positives)
    growth = (weight * valid).div_(reach)
    limits = reach.mul_(valid).unsqueeze(2)  # 0 for padding, below every e^−S
    candidates = decay.scatter_(1, same, 8).unsqueeze(1)  # 8 for the anchor's class, above every e^−S
    pull = torch.lt(candidates, limits, out=decay.new_empty(*valid.shape, decay.shape[1]))
    count = pull.sum()
    lost = pull.mul_(candidates).sum(2).mul_(growth)
    by_row.unsqueeze(1).baddbmm_(growth.unsqueeze(1), pull, beta=int(added))
    by_row.scatter_add_(1, positives, lost.neg())
    return weight * count - lost.sum()


def _partial_likelihood(
    exponentials: Tensor,
    members: Tensor,
    valid: Tensor,
    negatives: Tensor,
    padded: bool,
    weight: float,
    hinge: bool,
) -> tuple[Tensor, Tensor]:
    """Returns weight · Σ log(e^{S_an} + e^{S_pn}) − S_ap over the triplets whose positives belong to some classes.

    (a, p) and (p, a) share their logarithms, so each pair is visited once: members `step` places apart, for each step.
    exponentials: (B, B) of e^S. members: (classes, K) samples of each class; valid is 0 for padding (the first member
    again, at the end). negatives: (classes, 1) number per sample. Also returns the (classes · K, B) gradient by the
    members' similarities.
    """
    columns = members.unsqueeze(1).expand(-1, members.shape[1], -1)
    rows = exponentials.index_select(0, members.reshape(-1)).view(*members.shape, -1)
    within = rows.gather(2, columns)
    rows.scatter_(2, columns, 0 if hinge else 0.5)  # their logarithms are 0
    counted = (negatives * valid).unsqueeze(2) * valid.unsqueeze(1)  # triplets of each pair that have a gradient
    counted.diagonal(0, 1, 2).zero_()
    shares = torch.zeros_like(rows)
    value = rows.new_zeros(())
    used = is_member = valid.unsqueeze(2)
    for step in range(1, members.shape[1]):
        total = rows[:, :-step] + rows[:, step:]
        if hinge or padded:
            used = is_member[:, step:]
        if hinge:
            reach = within.diagonal(step, 1, 2).unsqueeze(2)
            used = torch.gt(total, reach, out=torch.empty_like(total)).mul_(used)
            for side in (step, -step):
                counted.diagonal(side, 1, 2).copy_(used.sum(2))
        share = total.reciprocal_()
        for ends in (shares[:, :-step], shares[:, step:]):
            if hinge or padded:
                ends.addcmul_(share, used)
            else:  # a factor of 1
                ends.add_(share)
        if hinge:
            share.mul_(reach).clamp_(max=1)
        logarithms = share.log_()
        if padded:
            logarithms.mul_(is_member[:, step:])
        value.sub_(logarithms.sum())
        del total, share, logarithms  # before the next step creates its own
    if not hinge:
        value.sub_((counted * within.log_()).sum(), alpha=0.5)
    derivatives = shares.mul_(rows).mul_(2 * weight).scatter_(2, columns, 0)
    derivatives.scatter_add_(2, columns, counted.mul_(-weight))
    if padded:  # padding has the index of the first member, so it must write the same values
        derivatives += (1 - valid).unsqueeze(2) * derivatives[:, :1]
    return 2 * weight * value, derivatives.view(-1, derivatives.shape[2])
