"""Threshold-consistent margin: how far pairs lie on the wrong side of two fixed cosine margins.

`shortfall_and_excess` is the plain version, `threshold_consistency` the kernel for the cosines of a batch.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from pml_ext._ops.custom_gradient import CustomGradient, inverse_norms, to_sphere, unit_and_inverse_norms
from pml_ext._ops.numerics import row_blocks, rows_of_a_block
from pml_ext._shared.checks import check_choice, check_floating, check_in_range, check_switch
from pml_ext.functional.tuples import ClassSpans, class_columns, class_spans, same_and_different

DIVISORS = ("hard", "all")


def shortfall_and_excess(
    positives: Tensor,
    negatives: Tensor,
    margin_plus: float,
    margin_minus: float,
    *,
    indicator: bool = True,
    divide_by: str = "hard",
) -> tuple[Tensor, Tensor]:
    r"""Returns the mean shortfall of positives <= margin_plus and the mean excess of negatives >= margin_minus.

    $$\frac{1}{|H^+|} \sum_{s ∈ H^+} (m^+ - s), \quad \frac{1}{|H^-|} \sum_{s ∈ H^-} (s - m^-)$$

    H⁺ are the positives s ≤ m⁺, H⁻ the negatives s ≥ m⁻.

    Args:
        positives: (P,) cosines of same-class pairs, in [-1, 1].
        negatives: (Q,) cosines of different-class pairs.
        margin_plus, margin_minus: cosines, in [-1, 1].
        indicator: True: sum over the hard pairs, at or beyond their margin. False: sum over all pairs, including
            negative shortfalls and excesses.
        divide_by: divide each sum by its number of "hard" pairs or of "all" pairs.
    Returns:
        Two scalars, 0 (with a gradient path) if the divisor is 0.
    Raises:
        ValueError: unknown divide_by.
    Source: Zhang et al., arXiv 2307.04047: eq. 5; eq. 17 (TCM′) is indicator=False; ROADMAP's regularizer in its
        Table 8 is divide_by="all". Paper: eq. 17 is undefined without a hard pair; here: 0.

    >>> import torch
    >>> positives, negatives = torch.tensor([0.5, 0.95]), torch.tensor([0.7, 0.1])
    >>> shortfall_and_excess(positives, negatives, margin_plus=0.9, margin_minus=0.5)
    (tensor(0.4000), tensor(0.2000))
    >>> shortfall_and_excess(positives, negatives, margin_plus=0.9, margin_minus=0.5, divide_by="all")
    (tensor(0.2000), tensor(0.1000))
    """
    check_choice(divide_by, DIVISORS, "divide_by")
    check_floating(positives, "positives", "(P,)")
    check_floating(negatives, "negatives", "(Q,)")
    check_in_range(margin_plus, -1, 1, "margin_plus")
    check_in_range(margin_minus, -1, 1, "margin_minus")
    check_switch(indicator, "indicator")
    shortfall = _average(margin_plus - positives, hard_positives(positives, margin_plus), indicator, divide_by)
    return shortfall, _average(negatives - margin_minus, hard_negatives(negatives, margin_minus), indicator, divide_by)


def hard_positives(cosines: Tensor, margin_plus: float) -> Tensor:
    """Returns a bool mask of the hard positive cosines. A nan counts as hard, so that it reaches the loss."""
    return ~(cosines > margin_plus)


def hard_negatives(cosines: Tensor, margin_minus: float) -> Tensor:
    """Returns a bool mask of the hard negative cosines. A nan counts as hard, so that it reaches the loss."""
    return ~(cosines < margin_minus)


def margins_from_distance_range(d_low: float, d_high: float) -> tuple[float, float]:
    r"""Returns the cosine margins for a calibration range of L2 distances between unit embeddings.

    Args:
        d_low, d_high: ends of the range, 0 <= d_low <= d_high <= 2: positives should lie below it, negatives above.
    Returns:
        margin_plus $= 1 - d_{low}^2 / 2$ and margin_minus $= 1 - d_{high}^2 / 2$.
    Raises:
        ValueError: the range exceeds [0, 2] or is reversed.
    Source: Zhang et al., arXiv 2307.04047, where the range is $[\sqrt{2 - 2 m^+}, \sqrt{2 - 2 m^-}]$.
        Paper: A.3.1 prints $\sqrt{2 - d^2} / 2$; here: the inverse of that range.

    >>> [round(margin, 3) for margin in margins_from_distance_range(0.4, 1.0)]
    [0.92, 0.5]
    """
    check_in_range(d_low, 0, 2, "d_low")
    check_in_range(d_high, d_low, 2, "d_high")
    return 1 - d_low**2 / 2, 1 - d_high**2 / 2


def _average(beyond: Tensor, hard: Tensor, indicator: bool, divide_by: str) -> Tensor:
    total = (beyond * hard if indicator else beyond).sum()
    if divide_by == "all":
        return total / max(len(beyond), 1)
    count = hard.sum()
    return total * count.clamp(max=1) / count.clamp(min=1)


AT_ONCE = 128
"""Up to this batch size on the CPU three (B, B) tensors and two full products are faster than blocks, which take 2.1
times as long at 64 samples, 1.2 times at 128 and 0.8 times at 256 (512-d, one thread). On other devices a batch is
computed at once if its (B, B) matrix is one block."""

FEW = 32
"""Up to this class size embeddings are summed by index. A matrix product with zeros takes 1.6 times as long with 4
samples per class and 1.5 times with 32 (1,024 samples, 512-d, one thread), but less with 64 in a batch of 256."""


def _value_and_gradient(
    embeddings: Tensor, labels: Tensor, *options: Any, needs_gradient: bool
) -> tuple[Tensor, Tensor | None]:
    device = embeddings.device
    at_once = AT_ONCE if device.type == "cpu" else rows_of_a_block(len(embeddings), device)
    if len(embeddings) <= at_once:
        return _at_once(embeddings, labels.to(embeddings.device, non_blocking=True), options)
    return _in_blocks(embeddings, class_spans(labels, embeddings.device), options, needs_gradient)


def _at_once(embeddings: Tensor, labels: Tensor, options: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
    """Returns the value p m⁺ #P − q m⁻ #Q + Σ g·u / 2 and gradient g = 2 W u, from (B, B) matrices.

    P and Q are 0/1 masks of the pairs in the sums, p and q the weights λ over their divisors, and W = q Q − p P.
    """
    lambda_plus, lambda_minus, margin_plus, margin_minus, indicator, divide_by = options
    unit, inverse_norms = unit_and_inverse_norms(embeddings)
    cosines = unit @ unit.T
    same = torch.eq(labels.unsqueeze(1), labels).to(cosines.dtype)  # floating masks are 5 times faster than boolean
    above = torch.ge(cosines, margin_minus, out=torch.empty_like(cosines))
    above.addcmul_(above, same, value=-1)
    below = torch.le(cosines, margin_plus, out=cosines).mul_(same)
    below.diagonal().zero_()
    hard = summed = below.sum(), above.sum()
    if not indicator or divide_by == "all":
        together = same.sum()
        all_pairs = together - len(labels), len(labels) ** 2 - together
    if not indicator:
        summed = all_pairs
        below, above = same, 1 - same
        below.diagonal().zero_()
    divisors = hard if divide_by == "hard" else all_pairs
    by_positive, by_negative = _weight(lambda_plus, divisors[0]), _weight(lambda_minus, divisors[1])
    weights = below.mul_(-2 * by_positive).addcmul_(above, 2 * by_negative)
    gradient = weights @ unit
    along = torch.linalg.vecdot(gradient, unit)
    value = along.sum() / 2 + by_positive * margin_plus * summed[0] - by_negative * margin_minus * summed[1]
    return value, gradient.addcmul_(unit, along.unsqueeze(1), value=-1).mul_(inverse_norms)


def _in_blocks(
    embeddings: Tensor, spans: ClassSpans, options: tuple[Any, ...], needs_gradient: bool
) -> tuple[Tensor, Tensor | None]:
    """In blocks of anchors. With x = n u, ∂cos(i, j)/∂x_i = (u_j − cos u_i) / n_i: x_j/n_j − cos x_i/n_i, over n_i."""
    lambda_plus, lambda_minus, margin_plus, margin_minus, indicator, divide_by = options
    inverse = inverse_norms(embeddings)
    margins = (margin_plus, margin_minus, indicator)
    totals, toward, away = _sums_in_blocks(embeddings, inverse, spans, margins, needs_gradient)
    shortfall, excess, *divisors = totals
    if divide_by == "all":
        together = sum(size * size for size in spans.sizes)
        divisors = [totals.new_full((), n) for n in (together - len(embeddings), len(embeddings) ** 2 - together)]
    by_positive, by_negative = _weight(lambda_plus, divisors[0]), _weight(lambda_minus, divisors[1])
    value = by_positive * shortfall + by_negative * excess
    if toward is None:
        return value, None
    gradient = toward.mul_(inverse * (-2 * by_positive))
    return value, gradient if away is None else gradient.addcmul_(away, inverse * (2 * by_negative))


def _sums_in_blocks(
    embeddings: Tensor, inverse: Tensor, spans: ClassSpans, margins: tuple[float, float, bool], needs_gradient: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Compute shortfall and excess over all pairs, and weighted sums of these pairs' embeddings.

    inverse: (B, 1), 1/norm; margins: margin_plus, margin_minus, True for hard pairs only.
    Returns (4,): shortfall, excess, number of hard positives and of hard negatives; (B, D) sums over positives; (B, D)
    sums over negatives, None if no negative counts. Without needs_gradient both sums are None.
    """
    margin_plus, margin_minus, indicator = margins
    totals = embeddings.new_zeros(4)
    toward, away = [], None
    for block in row_blocks(len(embeddings), len(embeddings), embeddings.device):
        factors = inverse[block]
        cosines = (embeddings[block] @ embeddings.T).mul_(factors).mul_(inverse.T)
        same, valid = class_columns(spans, block)
        positives = same[:, :-1]
        to_positives = cosines.gather(1, positives)
        hard = ((to_positives <= margin_plus) & valid).to(cosines.dtype)
        below = hard if indicator else valid.to(cosines.dtype)
        shortfall = (below * (margin_plus - to_positives)).sum()

        cosines.scatter_(1, same, -2)  # below every negative
        above = torch.ge(cosines, margin_minus, out=torch.empty_like(cosines))
        counts = above.sum(1)
        hard_counts = hard.sum(), counts.sum()
        if not indicator:
            torch.ge(cosines, -1.5, out=above)
            counts = above.sum(1)
        excess = cosines.sub_(margin_minus).mul_(above).sum(1)
        totals += torch.stack([shortfall, excess.sum(), *hard_counts])
        if not needs_gradient:
            continue
        itself = -factors * (below * to_positives).sum(1, keepdim=True)
        weights = torch.cat([below * torch.take(inverse, positives), itself], 1)
        toward.append(_weighted_sums(embeddings, same, weights))
        # The CPU skips rows without a negative that counts; finding them would synchronise with a GPU.
        every = torch.arange(len(factors), device=factors.device)
        with_hard = counts.nonzero().squeeze(1) if factors.device.type == "cpu" else every
        if len(with_hard):
            away = torch.zeros_like(embeddings) if away is None else away
            weights = above[with_hard] * inverse.T
            itself = -factors[with_hard, 0] * (excess + margin_minus * counts)[with_hard]
            weights[torch.arange(len(with_hard), device=factors.device), block.start + with_hard] = itself
            away[block.start + with_hard] = weights @ embeddings
    if not toward:
        return totals, None, away
    return totals, torch.cat(toward), away


def _weight(weight: float, divisor: Tensor) -> Tensor:
    """Returns weight / divisor, or 0 if the divisor (an integer) is 0."""
    return weight * divisor.clamp(max=1) / divisor.clamp(min=1)


def _weighted_sums(x: Tensor, columns: Tensor, weights: Tensor) -> Tensor:
    """Returns Σ_j weights_ij x[columns_ij]. (N, D), (M, K), (M, K) → (M, D); a column may repeat only with weight 0."""
    if columns.shape[1] <= FEW:
        sums: Tensor = embedding_bag(columns, x, per_sample_weights=weights, mode="sum")
        return sums
    return x.new_zeros(len(columns), len(x)).scatter_add_(1, columns, weights).mm(x)


def _plain(embeddings: Tensor, labels: Tensor, *options: Any) -> Tensor:
    lambda_plus, lambda_minus, margin_plus, margin_minus, indicator, divide_by = options
    unit = to_sphere(embeddings)
    cosines = unit @ unit.T
    same, different = same_and_different(labels, device=cosines.device)
    shortfall, excess = shortfall_and_excess(
        cosines[same], cosines[different], margin_plus, margin_minus, indicator=indicator, divide_by=divide_by
    )
    total: Tensor = lambda_plus * shortfall + lambda_minus * excess
    return total


threshold_consistency = CustomGradient(_value_and_gradient, _plain)
"""λ⁺ shortfall + λ⁻ excess (`shortfall_and_excess`) over all pairs of a (B, D) batch of any norms.

Memory: O(B D) on the CPU, three (B, B) tensors for up to 8,192 samples on other devices.
"""
