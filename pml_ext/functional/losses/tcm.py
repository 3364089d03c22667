"""Threshold-consistent margin: how far pairs lie on the wrong side of two fixed cosine margins.

tcm_kernel.py is the fast version for the cosines of a batch with itself.
"""

from torch import Tensor

from pml_ext._checks import check_choice, check_floating, check_in_range, check_switch

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
    """Mean shortfall of positives at or below margin_plus, mean excess of negatives at or above margin_minus.

    Args:
        positives: (P,) cosines of same-class pairs, in [-1, 1].
        negatives: (Q,) cosines of different-class pairs.
        margin_plus, margin_minus: cosines, in [-1, 1].
        indicator: sum over the hard pairs, those at or beyond their margin; False: over all pairs, also with a
            negative shortfall or excess.
        divide_by: divide each sum by its number of "hard" pairs or of "all" pairs.
    Returns:
        two scalars, 0 (with a gradient path) if the divisor is 0.
    Raises:
        ValueError: another divide_by.
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
    """Boolean mask of the hard positive cosines. A nan is hard, so that it shows in the loss."""
    return ~(cosines > margin_plus)


def hard_negatives(cosines: Tensor, margin_minus: float) -> Tensor:
    """Boolean mask of the hard negative cosines. A nan is hard, so that it shows in the loss."""
    return ~(cosines < margin_minus)


def margins_from_distance_range(d_low: float, d_high: float) -> tuple[float, float]:
    """The cosine margins for a calibration range of L2 distances between unit embeddings.

    Args:
        d_low, d_high: ends of the range, 0 <= d_low <= d_high <= 2: positives should lie below it, negatives above.
    Returns:
        margin_plus = 1 − d_low²/2 and margin_minus = 1 − d_high²/2.
    Raises:
        ValueError: the range leaves [0, 2] or is reversed.
    Source: Zhang et al., arXiv 2307.04047, where the range is [sqrt(2 − 2 m⁺), sqrt(2 − 2 m⁻)].
        Paper: A.3.1 prints sqrt(2 − d²)/2; here: the inverse of that range.

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
