"""The utility of each class at distance thresholds, and OPIS and ε-OPIS from it."""

from typing import NamedTuple

import torch
from torch import Tensor

from pml_ext._checks import check_above_zero, check_in_range
from pml_ext.functional.pairwise.pair_distances import PairDistances

_CHANCE = 0.01


class UtilityCurves(NamedTuple):
    r"""Utility of each measurable class by distance threshold (a pair is accepted if distance <= threshold).

    $$U_i(d) = \frac{2 φ_i ψ_i}{φ_i + ψ_i}$$

    with the specificity φ = 1 − FAR and the sensitivity ψ = 1 − FRR of class i at distance d.

    Attributes:
        thresholds: (M,) L2 distances between normalised embeddings, ascending.
        classes: (T,) ids of the classes with at least one positive and one negative pair, sorted.
        tpr, tnr: (T, M) sensitivity ψ and specificity φ, fractions, float64.
        utilities: (T, M) U, 0 where φ + ψ = 0.
        calibration_range: (2,) the distances d_min, d_max at which the pooled FAR reaches the ends of far_range; nan if
            `thresholds` was passed and the set has too few negative pairs for the rate.

    >>> from pml_ext.functional import utility_curves
    >>> labels = torch.tensor([0, 0, 1, 1])
    >>> curves = utility_curves(torch.eye(2)[labels], labels, thresholds=torch.tensor([1.0]))
    >>> curves.classes.tolist(), curves.tpr.tolist(), curves.tnr.tolist(), curves.utilities.tolist()
    ([0, 1], [[1.0], [1.0]], [[1.0], [1.0]], [[1.0], [1.0]])
    """

    thresholds: Tensor
    classes: Tensor
    tpr: Tensor
    tnr: Tensor
    utilities: Tensor
    calibration_range: Tensor


def check_curves(curves: object) -> None:
    """Raise unless curves are UtilityCurves."""
    if not isinstance(curves, UtilityCurves):
        raise TypeError(f"curves must be UtilityCurves, from utility_curves; got {type(curves).__name__}")


def curves_of_counts(
    pairs: PairDistances, kept: Tensor, thresholds: Tensor, positives: Tensor, negatives: Tensor, ends: Tensor
) -> UtilityCurves:
    """Returns UtilityCurves from (T, M) numbers of positive and negative pairs per kept class and threshold."""
    tpr = positives.double() / pairs.positive_pairs[kept, None]
    tnr = 1 - negatives.double() / pairs.negative_pairs[kept, None]
    return UtilityCurves(thresholds, pairs.classes[kept], tpr, tnr, utility_of_rates(tpr, tnr), ends)


def utility_of_rates(tpr: Tensor, tnr: Tensor, c: float = 1.0) -> Tensor:
    """$(1 + c^2) φ ψ / (c^2 φ + ψ)$, eq. 1; 0 for 0/0. With c = 1 the harmonic mean of the two rates."""
    total = tpr + c**2 * tnr
    return torch.where(total > 0, (1 + c**2) * tpr * tnr / total, 0.0)


def opis_of_curves(curves: UtilityCurves, *, c: float = 1.0) -> Tensor:
    """Returns OPIS over the curves' calibration range; see `opis`.

    Args:
        curves: from `utility_curves`. For another utility than eq. 1's, pass
            `curves._replace(utilities=...)`, for instance the paper's eq. 10, of precision and recall; its precision
            $ψ n^+ / (ψ n^+ + (1 - φ) n^-)$ falls with the share of negative pairs among a class's pairs.
        c: of eq. 1, > 0; above 1 sensitivity counts more, below 1 specificity. The paper and `opis` have 1.

    >>> rates = torch.tensor([[1.0, 1.0], [0.5, 0.5]])
    >>> at = torch.tensor([0.5, 0.6])
    >>> curves = UtilityCurves(at, torch.tensor([0, 1]), rates, rates, rates, at)
    >>> float(opis_of_curves(curves))
    0.0625
    """
    utilities = _weighted(curves, c)
    return (utilities - utilities.mean(dim=0)).square().mean()


def epsilon_opis_of_curves(curves: UtilityCurves, epsilon: float = 0.1, *, c: float = 1.0) -> Tensor:
    """Returns ε-OPIS over the curves' calibration range; see `epsilon_opis`, and `opis_of_curves` for c.

    >>> rates = torch.tensor([[1.0, 1.0], [0.5, 0.5]])
    >>> at = torch.tensor([0.5, 0.6])
    >>> curves = UtilityCurves(at, torch.tensor([0, 1]), rates, rates, rates, at)
    >>> float(epsilon_opis_of_curves(curves, 0.5))
    0.25
    """
    check_in_range(epsilon, 0, 1, "epsilon")
    order = _weighted(curves, c).mean(dim=1).argsort(stable=True)
    size = max(1, round(epsilon * len(order)))
    worst, best = (
        utility_of_rates(curves.tpr[group].mean(dim=0), curves.tnr[group].mean(dim=0), c)
        for group in (order[:size], order[-size:])
    )
    return (worst - best).square().mean()


def why_opis_says_nothing(curves: UtilityCurves) -> str:
    """Returns a clause that explains why OPIS is not meaningful; "" if it is.

    OPIS compares the utilities of classes. At chance level all utilities are equal, so OPIS is almost 0, its best
    value. This is reported if the accept rates of genuine and impostor pairs differ by at most 0.01, the lowest rate of
    the default calibration range. It is not reported if all impostor pairs have the same distance above 0.

    >>> from pml_ext.functional import utility_curves
    >>> labels = torch.tensor([0, 0, 1, 1])
    >>> why_opis_says_nothing(utility_curves(torch.ones(4, 2), labels, far_range=(0.3, 1.0)))
    'the classes cannot be told apart (100.0 % of genuine pairs are accepted, 100.0 % of impostor pairs)'
    """
    check_curves(curves)
    low, high = curves.calibration_range.tolist()
    inside = (curves.thresholds >= low) & (curves.thresholds <= high)
    if low == high > 0 or not bool(inside.any()):
        return ""
    genuine = float(curves.tpr[:, inside].mean())
    impostors = float(1 - curves.tnr[:, inside].mean())
    if genuine - impostors >= _CHANCE:
        return ""
    accepted = f"{100 * genuine:.1f} % of genuine pairs are accepted, {100 * impostors:.1f} % of impostor pairs"
    return f"the classes cannot be told apart ({accepted})"


def _weighted(curves: UtilityCurves, c: float) -> Tensor:
    """Returns the utilities for eq. 1's c; those of the curves have c = 1."""
    check_curves(curves)
    check_above_zero(c, "c")
    return curves.utilities if c == 1 else utility_of_rates(curves.tpr, curves.tnr, c)
