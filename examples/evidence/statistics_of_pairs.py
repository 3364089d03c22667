"""Paired differences with 95 % intervals, and verdicts."""

from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit

REPLICATES = 2000
R1, MAP_AT_R, OPIS = range(3)
MEASURES = {"r1": R1, "map_at_r": MAP_AT_R, "opis": OPIS}  # the rows of Measured.by_class
HEADINGS = {"r1": "R@1", "map_at_r": "mAP@R", "opis": "OPIS"}
LOWER, HIGHER, KEPT, SAME = "lower", "higher", "kept", "same"
TOLERANCE = {
    "r1": 0.01,
    "map_at_r": 0.01,
}  # largest loss that still counts as kept, and largest difference that counts as the same
HOLDS, REVERSED, OPEN = "holds", "reversed", "not distinguishable"


class Difference(NamedTuple):
    """A method minus its base, over the same seeds and test classes.

    mean, low, high: of the difference, with its 95 % interval.
    base: the base's mean.
    """

    mean: float
    low: float
    high: float
    base: float

    @property
    def smallest(self) -> float:
        """The smallest difference that this comparison could detect: half its interval."""
        return (self.high - self.low) / 2


def paired_difference(base: np.ndarray, method: np.ndarray, *, seed: int = 0) -> Difference:
    """The difference of two (S, C) arrays with a value per seed and test class; nan if a class cannot be measured.

    The interval is a bootstrap's over seeds and, within, over classes: S seeds are drawn with replacement, and for
    each of the 2,000 replicates C classes, the same ones for all its seeds.
    """
    difference, of_base = _difference(base, method)
    seeds, classes = difference.shape
    random = np.random.default_rng(seed)
    replicates = np.empty(REPLICATES)
    for i in range(REPLICATES):
        rows = random.integers(seeds, size=seeds)
        weights = np.bincount(random.integers(classes, size=classes), minlength=classes)
        replicates[i] = (difference[rows].mean(axis=0) @ weights) / classes
    low, high = np.quantile(replicates, (0.025, 0.975))
    return Difference(float(difference.mean()), float(low), float(high), of_base)


def t_difference(base: np.ndarray, method: np.ndarray) -> Difference:
    """The same with Student's t, for few seeds, whose variance a bootstrap underestimates.

    Seeds and classes are crossed random effects: the variance of the mean is that of the seeds' means plus that of the
    classes' means, less the residual's, which is in both; degrees of freedom by Satterthwaite. One seed: over classes.
    """
    difference, of_base = _difference(base, method)
    (seeds, classes), mean = difference.shape, float(difference.mean())
    of_classes, of_seeds = difference.mean(axis=0), difference.mean(axis=1)
    over_classes = of_classes.var(ddof=1) / classes
    variance, parts = over_classes, [(over_classes, classes - 1)]
    if seeds > 1:
        freedom = (seeds - 1) * (classes - 1)
        residual = difference - of_classes - of_seeds[:, None] + mean
        in_both = np.square(residual).sum() / freedom / residual.size
        over_seeds = of_seeds.var(ddof=1) / seeds
        parts += [(over_seeds, seeds - 1), (in_both, freedom)]
        variance = max(over_classes + over_seeds - in_both, over_classes, over_seeds)
    half = 0.0
    if variance > 0:
        half = float(stdtrit(variance**2 / sum(part**2 / freedom for part, freedom in parts), 0.975) * variance**0.5)
    return Difference(mean, mean - half, mean + half, of_base)


def _difference(base: np.ndarray, method: np.ndarray) -> tuple[np.ndarray, float]:
    """(S, C) of the classes that both can measure, and the base's mean over them."""
    if base.shape != method.shape:
        raise ValueError(f"the two must have the same seeds and classes; got {base.shape} and {method.shape}")
    measurable = ~np.isnan(base).any(axis=0) & ~np.isnan(method).any(axis=0)
    return (method - base)[:, measurable], float(base[:, measurable].mean())


def verdict(found: Difference, direction: str, measure: str) -> str:
    """Whether a claim holds: LOWER and HIGHER if the interval excludes 0 on that side, KEPT if it excludes a
    loss of more than the tolerance, SAME if it also excludes a gain of more than that."""
    if direction == SAME:
        if max(-found.low, found.high) < TOLERANCE[measure]:
            return HOLDS
        return OPEN if found.low <= 0 <= found.high else REVERSED
    if direction == KEPT:
        tolerance = TOLERANCE[measure]
        if found.high < 0:
            return REVERSED if found.low < -tolerance else HOLDS
        return HOLDS if found.low > -tolerance else OPEN
    sign = 1 if direction == HIGHER else -1
    low, high = sorted((sign * found.low, sign * found.high))
    return HOLDS if low > 0 else REVERSED if high < 0 else OPEN
