"""Paired differences with 95 % intervals, and verdicts that allow for the number of comparisons."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import stdtr, stdtrit

R1, MAP_AT_R, OPIS, TAR = range(4)
MEASURES = {"r1": R1, "map_at_r": MAP_AT_R, "opis": OPIS, "tar": TAR}  # the rows of Measured.by_class
HEADINGS = {"r1": "R@1", "map_at_r": "mAP@R", "opis": "OPIS", "tar": "TAR"}
LOWER, HIGHER, KEPT, SAME = "lower", "higher", "kept", "same"
TOLERANCE = {"r1": 0.01, "map_at_r": 0.01}  # the largest loss that counts as kept, and difference that is none
HOLDS, REVERSED, OPEN = "holds", "reversed", "not decided"
LEVEL = 0.05


class Spread(NamedTuple):
    """A variance and its degrees of freedom."""

    variance: float
    freedom: float


class Difference(NamedTuple):
    """A method minus its base, over the same seeds and test classes.

    mean: of the difference, or of log(method's / base's).
    spread: the variance of the mean, and its degrees of freedom by Satterthwaite.
    base: the base's mean.
    """

    mean: float
    spread: Spread
    base: float
    is_log_ratio: bool = False

    def ends(self, level: float = LEVEL) -> tuple[float, float]:
        """The interval that misses with a probability of level."""
        half = 0.0
        if self.spread.variance > 0:
            half = float(stdtrit(self.spread.freedom, 1 - level / 2) * self.spread.variance**0.5)
        return self.mean - half, self.mean + half

    def shown(self) -> tuple[float, float, float]:
        """The mean and its 95 % interval, in points; a log-ratio in per cent of the base."""
        values = (self.mean, *self.ends())
        mean, low, high = (100 * (np.expm1(value) if self.is_log_ratio else value) for value in values)
        return float(mean), float(low), float(high)

    def p(self, bound: float = 0.0) -> float:
        """Of a two-sided t test against a difference."""
        if self.spread.variance == 0:
            return float(self.mean == bound)
        return float(2 * stdtr(self.spread.freedom, -abs(self.mean - bound) / self.spread.variance**0.5))


def paired_difference(base: np.ndarray, method: np.ndarray, *, tuning: Iterable[Spread] = ()) -> Difference:
    """The difference of two (S, C) arrays with a value per seed and test class; nan if a class cannot be measured.

    tuning: the variance of each side whose settings were chosen independently of the other's.
    """
    base, method = _measurable(base, method)
    difference = method - base
    spread = sum_of(_crossed(difference), *tuning)
    return Difference(float(difference.mean()), spread, float(base.mean()))


def paired_log_ratio(base: np.ndarray, method: np.ndarray, *, tuning: Iterable[Spread] = ()) -> Difference:
    """The same for log(mean of method / mean of base), by the delta method."""
    base, method = _measurable(base, method)
    linear = method / method.mean() - base / base.mean()
    mean = float(np.log(method.mean() / base.mean()))
    return Difference(mean, sum_of(_crossed(linear), *tuning), float(base.mean()), is_log_ratio=True)


def _crossed(difference: np.ndarray) -> Spread:
    """The variance of the mean of (S, C), of few seeds, where a bootstrap would underestimate it.

    Seeds and classes are crossed random effects: the variance of the mean is that of the seeds' means plus that of the
    classes' means, less the residual's, which is in both; degrees of freedom by Satterthwaite. One seed: over classes.
    """
    (seeds, classes), mean = difference.shape, difference.mean()
    of_classes, of_seeds = difference.mean(axis=0), difference.mean(axis=1)
    over_classes = float(of_classes.var(ddof=1) / classes)
    variance, parts = over_classes, [Spread(over_classes, classes - 1)]
    if seeds > 1:
        freedom = (seeds - 1) * (classes - 1)
        residual = difference - of_classes - of_seeds[:, None] + mean
        in_both = float(np.square(residual).sum() / freedom / residual.size)
        over_seeds = float(of_seeds.var(ddof=1) / seeds)
        parts += [Spread(over_seeds, seeds - 1), Spread(in_both, freedom)]
        variance = max(over_classes + over_seeds - in_both, over_classes, over_seeds)
    return Spread(variance, _satterthwaite(variance, parts))


def sum_of(*parts: Spread) -> Spread:
    """The variance of a sum of independent parts."""
    variance = sum(part.variance for part in parts)
    return Spread(variance, _satterthwaite(variance, parts))


def pooled(parts: Sequence[Spread]) -> Spread:
    """The mean variance, weighted by degrees of freedom."""
    freedom = sum(part.freedom for part in parts)
    return Spread(sum(part.variance * part.freedom for part in parts) / freedom, freedom)


def _satterthwaite(variance: float, parts: Iterable[Spread]) -> float:
    over = sum(part.variance**2 / part.freedom for part in parts)
    return variance**2 / over if over > 0 else np.inf


def _measurable(base: np.ndarray, method: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The classes that both can measure."""
    if base.shape != method.shape:
        raise ValueError(f"the two must have the same seeds and classes; got {base.shape} and {method.shape}")
    measurable = ~np.isnan(base).any(axis=0) & ~np.isnan(method).any(axis=0)
    return base[:, measurable], method[:, measurable]


def level_of_family(p_values: Iterable[float], share: float = LEVEL) -> float:
    """The level of the intervals that decide, so that 5 % of the decided comparisons are expected to be wrong.

    Benjamini and Hochberg (1995): of m p values the largest k with p₍ₖ₎ ≤ 0.05 k / m; the level is 0.05 k / m.
    """
    values = np.sort([*p_values])
    if len(values) == 0:
        return share
    levels = share * np.arange(1, len(values) + 1) / len(values)
    passing = levels[values <= levels]
    return float(passing.max(initial=levels[0]))


def bound_of(found: Difference, direction: str, measure: str) -> float:
    """The difference that must be excluded: none, KEPT a loss of the tolerance, SAME that or a gain, the nearer one."""
    if direction == KEPT:
        return -TOLERANCE[measure]
    return float(np.copysign(TOLERANCE[measure], found.mean)) if direction == SAME else 0.0


def verdict(found: Difference, direction: str, measure: str, *, level: float = LEVEL) -> str:
    """Whether the interval of the level lies on the claimed side of its bound, or on the other side."""
    bound = bound_of(found, direction, measure)
    if found.p(bound) > level:
        return OPEN
    if direction == SAME:
        holds = abs(found.mean) < abs(bound)
    elif direction == LOWER:
        holds = found.mean < bound
    else:
        holds = found.mean > bound
    return HOLDS if holds else REVERSED
