"""Score calibration: maps scores to likelihood ratios with intervals, and to probabilities for a given prior."""

import math
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np
import torch
from msgspec import Meta
from torch import Tensor
from torch.nn.functional import softplus

from pml_ext._checks import check_fraction, check_labels, check_tensor
from pml_ext.functional.verification.intervals import half_widths, jackknife_freedom
from pml_ext.functional.verification.likelihood_ratio import ratios_of_counts
from pml_ext.functional.verification.roc import check_scores

_MIN_IDENTITIES = 10  # with pairs of a kind beyond a score, for the score to be supported
_KNOTS = 6
_POINTS = 41
_BINS = 300
_MAX_STEPS = 100
_RIDGE = 1e-9  # keeps the curve finite if a score separates the kinds
_CONVERGED = 1e-9
_MAX_CHANGE = 3.0  # of a log ratio in one step


class Estimate(NamedTuple):
    """Values of a report, and the ends of their 95 % intervals for other identities of the same kind."""

    value: Tensor
    low: Tensor
    high: Tensor


@dataclass(frozen=True)
class ScoreCalibration:
    """Log-likelihood ratios of scores, natural logarithm of p(score | same) / p(score | different).

    scores, log_ratios, lows, highs: ascending scores, their log ratios and the ends of the 95 % intervals; between two
        scores all are linear. The range of the scores is what the pairs support: at least ten identities have an
        impostor pair at or above each score, and at least ten have a genuine pair at or below it.
    cllr: cost of the ratios in bits, of pairs whose identities the curve leaves out, see `functional.cllr`. Scores
        outside the range have the ratio at its end.
    min_cllr: the smallest cost of any increasing function of the scores.

    >>> generator = torch.Generator().manual_seed(0)
    >>> one = torch.arange(4000) % 1000
    >>> other = torch.where(torch.arange(4000) < 2000, one, (one + 1) % 1000)
    >>> scores = torch.randn(4000, generator=generator) + 2 * (one == other)  # log ratio 2 (s − 1)
    >>> calibration = ScoreCalibration.fit(scores, one, other)
    >>> ratio = calibration.log_ratio(torch.tensor([0.5, 1.5]))
    >>> bool((ratio.low < torch.tensor([-1, 1])).all()), bool((ratio.high > torch.tensor([-1, 1])).all())
    (True, True)
    >>> estimate = calibration.probability(torch.tensor(2.0), prior=0.01)
    >>> bool(estimate.low < 0.07 < estimate.high)
    True
    """

    scores: tuple[float, ...]
    log_ratios: tuple[float, ...]
    lows: tuple[float, ...]
    highs: tuple[float, ...]
    cllr: Annotated[float, Meta(ge=0)]
    min_cllr: Annotated[float, Meta(ge=0, le=1)]

    @classmethod
    def fit(cls, scores: Tensor, subjects_a: Tensor, subjects_b: Tensor) -> "ScoreCalibration":
        """Calibrate pair scores.

        Args:
            scores: (P,) similarities, higher is more alike, finite.
            subjects_a, subjects_b: (P,) integer ids of the pairs' subjects; a pair with equal ids is genuine.
        Raises:
            ValueError: different lengths, scores not finite, or no score that enough subjects support.
        Source: see `calibrate_counts`.
        """
        check_tensor(scores, "scores", "(P,)")
        subjects_a = check_labels(subjects_a, len(scores), "subjects_a").cpu()
        subjects_b = check_labels(subjects_b, len(scores), "subjects_b").cpu()
        same = subjects_a == subjects_b
        check_scores(scores, same)
        values = scores.detach().double().cpu()
        edges = torch.linspace(float(values.min()), float(values.max()), _BINS + 1, dtype=torch.float64)
        bins = torch.bucketize(values, edges[1:-1])
        subjects, index = torch.unique(torch.stack([subjects_a, subjects_b]), return_inverse=True)
        counts = torch.zeros((2, len(subjects), _BINS), dtype=torch.int64)
        ones = torch.ones_like(bins)
        counts[0].index_put_((index[0][same], bins[same]), ones[same], accumulate=True)
        for side in index:
            counts[1].index_put_((side[~same], bins[~same]), ones[~same], accumulate=True)
        calibration = calibrate_counts((edges[1:] + edges[:-1]) / 2, *counts)
        if calibration is None:
            raise ValueError(
                f"no score is supported by {_MIN_IDENTITIES} subjects with impostor pairs at or above it and "
                f"{_MIN_IDENTITIES} with genuine pairs at or below it; got {len(subjects):,} subjects, "
                f"{int(same.sum()):,} genuine pairs and {int((~same).sum()):,} impostor pairs"
            )
        return calibration

    def log_ratio(self, scores: Tensor) -> Estimate:
        """Returns natural log-likelihood ratios with 95 % intervals, float64, of the scores' shape.

        Args:
            scores: any shape, within the range of `self.scores`.
        Raises:
            ValueError: scores outside the range.
        """
        check_tensor(scores, "scores", "(...)")
        values = scores.detach().double().cpu().numpy()
        low, high = self.scores[0], self.scores[-1]
        is_supported = (values >= low) & (values <= high)
        if not is_supported.all():
            raise ValueError(
                f"scores must be from {low:.4f} to {high:.4f}, where both genuine and impostor pairs of at least "
                f"{_MIN_IDENTITIES} identities were measured; got {values[~is_supported].flat[0]:.4f}. Beyond this "
                "range the pairs do not support a likelihood ratio. Measure more identities, or decide by the "
                "threshold alone"
            )
        curves = (self.log_ratios, self.lows, self.highs)
        return Estimate(*(torch.from_numpy(np.asarray(np.interp(values, self.scores, curve))) for curve in curves))

    def probability(self, scores: Tensor, *, prior: float) -> Estimate:
        """Returns the probability that each pair is genuine, with 95 % intervals; float64, of the scores' shape.

        Args:
            scores: see `log_ratio`.
            prior: share of genuine pairs among the compared pairs, in (0, 1); e.g. 1 / (N + 1) for N + 1 equally
                likely people.
        """
        check_fraction(prior, "prior")
        odds = math.log(prior / (1 - prior))
        return Estimate(*(torch.sigmoid(ratio + odds) for ratio in self.log_ratio(scores)))


def calibrate_counts(scores: Tensor, genuine: Tensor, impostors: Tensor) -> ScoreCalibration | None:
    """Returns the calibration of pairs that are counted in bins of scores; None if no score is supported.

    Logistic regression on a natural cubic spline with six knots over the supported range, both kinds with equal weight,
    so that the log odds are the log-likelihood ratio. A straight line (Platt) misses tails: its ratio at the threshold
    was twice the true one. The variance is that of a jackknife by identity: each class's pairs are left out, with one
    Newton step from the solution.

    Args:
        scores: (B,) middles of the bins, ascending, float64.
        genuine, impostors: (T, B) int64 pairs of each class. An impostor pair counts for both of its classes.
    Source: logistic regression for likelihood ratios: Brümmer and du Preez, 2006; natural splines: Hastie, Tibshirani
        and Friedman, The Elements of Statistical Learning, 2nd edition, eq. 5.4 and 5.5.
    """
    has_above = impostors.flip(1).cumsum(1).flip(1) > 0
    has_below = genuine.cumsum(1) > 0
    is_supported = (has_above.sum(dim=0) >= _MIN_IDENTITIES) & (has_below.sum(dim=0) >= _MIN_IDENTITIES)
    supported = scores[is_supported]
    if len(supported) < _KNOTS:
        return None
    low, high = float(supported[0]), float(supported[-1])
    shares, shares_without = _shares(genuine, 1)
    impostor_shares, impostor_shares_without = _shares(impostors, 2)
    columns = _spline((scores - low) / (high - low))
    curve, curvature = _fit(columns, shares, impostor_shares)
    accepted = torch.sigmoid(columns @ curve)
    slopes = (shares_without * (1 - accepted) - impostor_shares_without * accepted) @ columns
    without = curve + torch.linalg.solve(curvature, slopes.T).T  # (T, knots)
    points = torch.linspace(low, high, _POINTS, dtype=torch.float64)
    at_points = _spline((points - low) / (high - low))
    ratios, ratios_without = at_points @ curve, without @ at_points.T
    width = half_widths(ratios_without, freedom=jackknife_freedom(ratios_without))
    clamped = _spline(((scores - low) / (high - low)).clamp(0, 1))
    is_filled = shares + impostor_shares > 0
    totals = [counts.sum(dim=0)[is_filled] for counts in (genuine, impostors)]
    best_ratios = ratios_of_counts(*(total.double() for total in totals))
    cllr, min_cllr = _cost(without @ clamped.T, genuine, impostors), _cost(best_ratios, *totals)
    at, values, lows, highs = (tuple(curve.tolist()) for curve in (points, ratios, ratios - width, ratios + width))
    return ScoreCalibration(at, values, lows, highs, cllr, min_cllr)


def _shares(counts: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Returns the (B,) shares of pairs in bins, and the (T, B) shares without each class.

    classes: number of classes that count a pair.
    """
    total = counts.sum(dim=0).double() / classes
    without = total - counts
    return total / total.sum(), without / without.sum(dim=1, keepdim=True)


def _spline(places: Tensor) -> Tensor:
    """Returns the (B, knots) basis of natural cubic splines with equally spaced knots from 0 to 1; linear beyond."""
    knots = torch.linspace(0, 1, _KNOTS, dtype=torch.float64)
    cubes = (places[:, None] - knots).clamp_min(0) ** 3
    bends = (cubes - cubes[:, -1:])[:, :-1] / (1 - knots[:-1])
    return torch.cat([torch.ones_like(places)[:, None], places[:, None], bends[:, :-1] - bends[:, -1:]], dim=1)


def _fit(columns: Tensor, genuine: Tensor, impostors: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the (knots,) coefficients that maximise the likelihood, and the curvature there, by Newton's method."""
    curve = torch.zeros(columns.shape[1], dtype=torch.float64)
    for _ in range(_MAX_STEPS):
        accepted = torch.sigmoid(columns @ curve)
        slope = columns.T @ (genuine * (1 - accepted) - impostors * accepted) - _RIDGE * curve
        weights = (genuine + impostors) * accepted * (1 - accepted)
        curvature = (columns * weights[:, None]).T @ columns + _RIDGE * torch.eye(len(curve), dtype=torch.float64)
        step = torch.linalg.solve(curvature, slope)
        change = float((columns @ step).abs().max())
        curve = curve + step * min(1.0, _MAX_CHANGE / max(change, _CONVERGED))
        if change < _CONVERGED:
            break
    return curve, curvature


def _cost(ratios: Tensor, genuine: Tensor, impostors: Tensor) -> float:
    """Returns `functional.cllr` of counted pairs. ratios, genuine, impostors: of one shape, or ratios (B,)."""
    missed = torch.where(genuine > 0, genuine * softplus(-ratios), 0.0).sum() / genuine.sum()
    accepted = torch.where(impostors > 0, impostors * softplus(ratios), 0.0).sum() / impostors.sum()
    return float(missed + accepted) / (2 * math.log(2))
