"""Score calibration: maps scores to likelihood ratios, and to probabilities for a given prior."""

import math

import numpy as np
import torch
from torch import Tensor

from pml_ext._checks import check_fraction, check_tensor
from pml_ext.functional.verification.roc import check_scores


class ScoreCalibration:
    """Maps scores to log-likelihood ratios by a linear function (Platt), fitted on labelled pairs.

    Fit it on some classes and check it on others: `functional.cllr` of its ratios against `functional.min_cllr`.

    Args:
        scores: (P,) pair scores, larger is closer, finite.
        same: (P,) bool, True for genuine pairs; both kinds are required.
    Attributes:
        slope, intercept: parameters of the line.
    Raises:
        ValueError: only one kind of pairs.

    >>> generator = torch.Generator().manual_seed(0)
    >>> same = torch.arange(2000) % 2 == 0
    >>> scores = torch.randn(2000, generator=generator) + 2 * same  # log ratio 2 (s − 1)
    >>> calibration = ScoreCalibration(scores, same)
    >>> calibration.log_ratio(torch.tensor([0.0, 2.0])).round().tolist()
    [-2.0, 2.0]
    >>> round(float(calibration.probability(torch.tensor(2.0), prior=0.01)), 1)
    0.1
    """

    def __init__(self, scores: Tensor, same: Tensor) -> None:
        check_scores(scores, same)
        if not bool(same.any()) or bool(same.all()):
            raise ValueError(f"same must have genuine and impostor pairs; got {int(same.sum())} genuine of {len(same)}")
        self.slope, self.intercept = _line(scores.double().cpu().numpy(), same.cpu().numpy())

    def log_ratio(self, scores: Tensor) -> Tensor:
        """Returns natural log-likelihood ratios.

        Args:
            scores: any shape.
        Returns:
            Float64 tensor of the same shape: log p(score | same) − log p(score | different).
        """
        check_tensor(scores, "scores", "(...)")
        return self.slope * scores.double() + self.intercept

    def probability(self, scores: Tensor, *, prior: float) -> Tensor:
        """Returns the probability that each pair is genuine.

        Args:
            scores: any shape.
            prior: share of genuine pairs among the compared pairs, in (0, 1); e.g. 1 / (N + 1) for N + 1 equally
                likely people.
        Returns:
            Float64 tensor of the same shape.
        """
        check_fraction(prior, "prior")
        return torch.sigmoid(self.log_ratio(scores) + math.log(prior / (1 - prior)))


def _line(scores: np.ndarray, same: np.ndarray) -> tuple[float, float]:
    """Fit slope and intercept by logistic regression; equal weights of both kinds make the logit the log ratio."""
    from scipy.optimize import minimize  # a dependency of pytorch-metric-learning's scikit-learn
    from scipy.special import expit

    centre, width = scores.mean(), scores.std() or 1.0
    x, sign = (scores - centre) / width, np.where(same, -1.0, 1.0)
    weight = np.where(same, 0.5 / same.sum(), 0.5 / (~same).sum())
    ridge = 1e-6 / len(x)  # keeps the slope finite if a threshold separates the kinds

    # Newton's method needs few steps for two parameters; scikit-learn's LogisticRegression took three times as long.
    def loss(line: np.ndarray) -> tuple[float, np.ndarray]:
        wrong = sign * (line[0] * x + line[1])
        error = weight * sign * expit(wrong)
        value = weight @ np.logaddexp(0, wrong) + ridge * line[0] ** 2 / 2
        return value, np.array([error @ x + ridge * line[0], error.sum()])

    def curvature(line: np.ndarray) -> np.ndarray:
        share = expit(line[0] * x + line[1])
        bend = weight * share * (1 - share)
        mixed = bend @ x
        return np.array([[bend @ (x * x) + ridge, mixed], [mixed, bend.sum()]])

    start = np.array([1.0, 0.0])
    found = minimize(loss, start, jac=True, hess=curvature, method="trust-exact", options={"gtol": 1e-9})
    slope = found.x[0] / width
    return float(slope), float(found.x[1] - slope * centre)
