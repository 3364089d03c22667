"""Threshold-consistent margin: how far pairs lie on the wrong side of two fixed cosine margins."""

from torch import Tensor

from pml_ext._checks import check_in_range


def shortfall_and_excess(
    positives: Tensor, negatives: Tensor, margin_plus: float, margin_minus: float, *, indicator: bool = True
) -> tuple[Tensor, Tensor]:
    """Mean shortfall of positives at or below margin_plus, mean excess of negatives at or above margin_minus.

    Args:
        positives: (P,) cosines of same-class pairs, in [-1, 1].
        negatives: (Q,) cosines of different-class pairs.
        margin_plus, margin_minus: cosines, in [-1, 1].
        indicator: False: leave out the condition, so that all pairs count, also with a negative shortfall or excess.
    Returns:
        two scalars, 0 (with a gradient path) where no pair counts.
    Source: Zhang et al., arXiv 2307.04047, eq. 5; indicator=False is the ablation of its Table 9.

    >>> import torch
    >>> shortfall_and_excess(torch.tensor([0.5, 0.95]), torch.tensor([0.7, 0.1]), margin_plus=0.9, margin_minus=0.5)
    (tensor(0.4000), tensor(0.2000))
    """
    below = counted_positives(positives, margin_plus, indicator)
    above = counted_negatives(negatives, margin_minus, indicator)
    return _mean(margin_plus - positives, below), _mean(negatives - margin_minus, above)


def counted_positives(cosines: Tensor, margin_plus: float, indicator: bool = True) -> Tensor:
    """Where a positive pair of this cosine counts, boolean. A nan counts, so that it shows in the loss."""
    below = ~(cosines > margin_plus)
    return below if indicator else below.fill_(True)


def counted_negatives(cosines: Tensor, margin_minus: float, indicator: bool = True) -> Tensor:
    """Where a negative pair of this cosine counts, boolean. A nan counts, so that it shows in the loss."""
    above = ~(cosines < margin_minus)
    return above if indicator else above.fill_(True)


def margins_from_distance_range(d_low: float, d_high: float) -> tuple[float, float]:
    """The cosine margins that belong to a calibration range of L2 distances between unit embeddings.

    Args:
        d_low, d_high: ends of the range, 0 <= d_low <= d_high <= 2: positives should lie below it, negatives above.
    Returns:
        margin_plus = 1 − d_low²/2 and margin_minus = 1 − d_high²/2.
    Raises:
        ValueError: the range is not inside [0, 2] or is turned round.
    Source: Zhang et al., arXiv 2307.04047, where the range is [sqrt(2 − 2 m⁺), sqrt(2 − 2 m⁻)].
        Paper: A.3.1 prints sqrt(2 − d²)/2; here: the inverse of that range.

    >>> [round(margin, 3) for margin in margins_from_distance_range(0.4, 1.0)]
    [0.92, 0.5]
    """
    check_in_range(d_low, 0, 2, "d_low")
    check_in_range(d_high, d_low, 2, "d_high")
    return 1 - d_low**2 / 2, 1 - d_high**2 / 2


def _mean(values: Tensor, counted: Tensor) -> Tensor:
    return (values * counted).sum() / counted.sum().clamp(min=1)
