"""The concordance loss of a batch with itself: value and gradient in one pass over blocks of anchors."""

import torch
from torch import Tensor
from torch.nn.functional import pad

from pml_ext._ops.blocks import row_blocks, rows_of_a_block
from pml_ext._ops.normalize import through_sphere_, to_sphere, unit_and_inverse_norms
from pml_ext._ops.products import add_transpose_, gram, gram_of_rows
from pml_ext._ops.value_and_gradient import ValueAndGradient
from pml_ext.functional.losses.cit import concordance_loss, discordance_by_sorting
from pml_ext.functional.tuples.pairs import ClassSpans, class_columns, class_spans, same_and_different

LARGEST_CLASS = 128
"""Up to this class size L_e compares with every positive. At 128, sorting takes 1.2 times as long in a batch of 256 and
1.7 times in one of 1,024 (one thread); with 256 samples per class it takes 0.9 times as long."""

FACTORS = 16
"""Numbers multiplied before taking one logarithm of the product; each is below 15, so float32 does not overflow.
A logarithm of each takes 5 % longer with 4 samples per class, 26 % with 32 (γ = 0.5, one thread)."""


def fast_concordance_loss(
    embeddings: Tensor,
    labels: Tensor,
    gamma: float = 1.0,
    similarity: str = "unit",
    hinge_partial_likelihood: bool = False,
    *,
    spans: ClassSpans | None = None,
    entries: int | None = None,
    factors: int = FACTORS,
) -> Tensor:
    """`concordance_loss` for the cosines of a (B, D) batch with itself, several times faster; embeddings of any norm.

    Value and gradient are computed together; second derivatives use `concordance_loss`. For γ = 1 it is fastest if no
    class has more than LARGEST_CLASS samples. similarity: "unit", (1 + cosine)/2, or "cosine".
    entries: per block (anchors, positives, samples); factors: how many numbers share a logarithm.
    """
    # The constant of "unit" cancels: both terms use differences of similarities.
    scale = 0.5 if similarity == "unit" else 1.0
    options = (gamma, scale, hinge_partial_likelihood)
    return _concordance(embeddings, labels, *options, spans=spans, entries=entries, factors=factors)


def _value_and_gradient(
    embeddings: Tensor,
    labels: Tensor,
    gamma: float,
    scale: float,
    hinge: bool,
    *,
    needs_gradient: bool,
    spans: ClassSpans | None = None,
    entries: int | None = None,
    factors: int = FACTORS,
) -> tuple[Tensor, Tensor | None]:
    spans = class_spans(labels) if spans is None else spans
    triplets = max(1, spans.triplets)
    unit, inverse_norms = unit_and_inverse_norms(embeddings)
    value, gradient = by_similarities(unit, spans, gamma, scale, hinge, entries=entries, factors=factors)
    if not needs_gradient:
        return value / triplets, None
    symmetric = add_transpose_(gradient)
    return value / triplets, through_sphere_(symmetric @ unit, unit, inverse_norms.mul_(scale / triplets))


def by_similarities(
    unit: Tensor,
    spans: ClassSpans,
    gamma: float,
    scale: float,
    hinge: bool,
    *,
    rows: slice = slice(None),
    entries: int | None = None,
    factors: int = FACTORS,
) -> tuple[Tensor, Tensor]:
    """The sum over the triplets of A anchors, and its (A, B) gradient by their similarities over `scale` (of cosines).

    unit: (B, D) of norm 1; rows: the anchors, consecutive and all samples of their classes.
    """
    same, is_positive = class_columns(spans, rows)
    valid = is_positive.to(unit.dtype)
    negatives = len(unit) - spans.size[rows]
    # `grown` holds e^S. γ = 1 needs only e^−S, so `grown` holds that and the gradient overwrites it (a separate matrix
    # takes 30 % longer at 256 samples, the same time at 1,024).
    signed = scale if gamma < 1 else -scale
    grown = (gram(unit, signed) if rows == slice(None) else gram_of_rows(unit, rows, signed)).exp_()
    gradient = grown if gamma == 1 else torch.empty_like(grown)
    value = unit.new_zeros(())
    if gamma < 1:
        foremost = _one_of_each_class(spans, rows)
        members = same[foremost].roll(1, 1)
        there = pad(valid[foremost], (1, 0), value=1.0)
        places = members - (rows.start or 0)
        classes = rows_of_a_block(spans.largest * len(unit), unit.device, entries=entries)
        for begin in range(0, len(members), classes):
            chosen = slice(begin, begin + classes)
            arguments = (negatives[foremost[chosen]], len(set(spans.sizes)) > 1, 1 - gamma, hinge, factors)
            value += _partial_likelihood(grown, members[chosen], places[chosen], there[chosen], *arguments, gradient)
    if gamma > 0 and spans.largest > LARGEST_CLASS:
        same = spans.start[rows] == spans.start.T  # the start identifies the class
        different = ~same
        same[:, rows].fill_diagonal_(False)
        similarities = grown.log() if gamma < 1 else grown.log().neg_()
        found, by_similarity = discordance_by_sorting(similarities, same, different)
        value += gamma * found
        gradient = by_similarity.mul_(gamma) if gamma == 1 else gradient.add_(by_similarity, alpha=gamma)
    elif gamma > 0:
        for block in row_blocks(len(grown), valid.shape[1] * len(unit), unit.device, entries=entries):
            decay = grown[block] if gamma == 1 else grown[block].reciprocal()
            value += _discordance(decay, valid[block], same[block], gamma, gradient[block], added=gamma < 1)
    return value, gradient


def _one_of_each_class(spans: ClassSpans, rows: slice) -> Tensor:
    """The row of the first sample of each class."""
    if rows == slice(None):  # the number of classes is known: nonzero would synchronise with the GPU
        return spans.rank.squeeze(1).argsort(stable=True)[: len(spans.sizes)]
    return (spans.rank[rows] == 0).squeeze(1).nonzero().squeeze(1)


def _plain(embeddings: Tensor, labels: Tensor, gamma: float, scale: float, hinge: bool) -> Tensor:
    unit = to_sphere(embeddings)
    similarities = scale * unit @ unit.T
    return concordance_loss(similarities, similarities, *same_and_different(labels), gamma, hinge)


_concordance = ValueAndGradient(
    "concordance",
    "(Tensor embeddings, Tensor labels, float gamma, float scale, bool hinge)",
    _value_and_gradient,
    _plain,
)


def _discordance(decay: Tensor, valid: Tensor, same: Tensor, weight: float, by_row: Tensor, *, added: bool) -> Tensor:
    """weight · Σ 1 − e^{S_ap − S_an} over the triplets of a block with S_an > S_ap.

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
    grown: Tensor,
    members: Tensor,
    places: Tensor,
    valid: Tensor,
    negatives: Tensor,
    padded: bool,
    weight: float,
    hinge: bool,
    factors: int,
    by_row: Tensor,
) -> Tensor:
    """weight · Σ log(e^{S_an} + e^{S_pn}) − S_ap over the triplets whose positives belong to some classes.

    (a, p) and (p, a) share their logarithms, so each pair is visited once: members `step` places apart, for each step.
    grown: (anchors, B) of e^S. members, places: (classes, K) samples of each class in the batch and among the anchors;
    valid is 0 for padding (the first member again, at the end). negatives: (classes, 1) number per sample.
    factors: how many numbers share a logarithm. The members' rows of by_row get the gradient by their similarities.
    """
    columns = members.unsqueeze(1).expand(-1, members.shape[1], -1)
    rows = grown.index_select(0, places.reshape(-1)).view(*members.shape, -1)
    within = rows.gather(2, columns)
    counted = (negatives * valid).unsqueeze(2) * valid.unsqueeze(1)  # triplets of each pair that have a gradient
    counted.diagonal(0, 1, 2).zero_()
    shares = torch.zeros_like(rows)
    product = torch.ones_like(rows)
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
        product[:, :-step].mul_(total)
        if step % factors == 0:
            value += product.scatter_(2, columns, 1).log_().sum()
            product.fill_(1)
    value += product.scatter_(2, columns, 1).log_().sum()
    if not hinge:
        value -= (counted * within.log_()).sum() / 2
    derivatives = shares.mul_(rows).mul_(2 * weight).scatter_(2, columns, 0)
    derivatives.scatter_add_(2, columns, counted.mul_(-weight))
    if padded:  # padding has the index of the first member, so it must write the same values
        derivatives += (1 - valid).unsqueeze(2) * derivatives[:, :1]
    by_row.index_copy_(0, places.reshape(-1), derivatives.view(-1, derivatives.shape[2]))
    return 2 * weight * value
