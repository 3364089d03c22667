"""FPIR of searches in galleries larger than the set, extrapolated from the distribution of per-probe rates."""

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from pml_ext._shared.checks import check_number, check_whole
from pml_ext.functional.open_set.best_scores import BestScores, HighScores, Template, reported, scores_from
from pml_ext.functional.verification.intervals import half_widths

NEEDED = 10  # minimum number of scores at or above the threshold
_PARTS = 20  # parts of the identities, each left out once
_NODES = np.linspace(-8, 8, 241)  # quadrature nodes of a standard normal variable
_WEIGHTS = np.exp(-(_NODES**2) / 2)
_WEIGHTS /= _WEIGHTS.sum()
# Of the logarithm of the shape and of the logit of the rate. With the largest shape the rates of probes differ by 3 %;
# beyond it, differences of logarithms of beta functions have no correct digits.
_BOUNDS = [(-20, 7), *2 * [(-40, 40)]]
_LIKELIER = 1.92  # gain in log-likelihood that is significant at 5 %, for one parameter


Array = Any  # a number or an array of numbers
Model = Callable[..., Array]


class ExtrapolatedRate(NamedTuple):
    """An extrapolated FPIR with its 95 % interval, and the estimates of the models.

    Attributes:
        beta, logit_normal: estimates of the two models whose mean is the rate.
        with_unmatched: estimate of the beta model with a share of probes that resemble no identity; `beta` if the
            counts do not show such probes. Only the interval's lower limit depends on it.
        is_known: False if the interval reaches below 1 % and above 99 %. The scores are then not informative, and
            reports omit the number.

    >>> ExtrapolatedRate(0.1, 0.05, 0.2, beta=0.09, logit_normal=0.11, with_unmatched=0.09).high
    0.2
    """

    rate: float
    low: float
    high: float
    beta: float
    logit_normal: float
    with_unmatched: float

    @property
    def is_known(self) -> bool:
        return self.low >= 0.01 or self.high <= 0.99

    @property
    def independent(self) -> float:
        """Number of independent errors that give an interval as wide."""
        low, high = np.log(-np.log1p(-np.clip([self.low, self.high], 1e-300, 1 - 1e-15)))
        return float((2 * 1.96 / max(high - low, 1e-9)) ** 2)


def extrapolate_fpir(
    embeddings: Tensor,
    labels: Tensor,
    *,
    gallery_size: int,
    threshold: float,
    cameras: Tensor | None = None,
    template: Template = "best",
    seed: int = 0,
) -> ExtrapolatedRate:
    """Estimate the FPIR of searches in a gallery of any size, including more identities than the set has.

    Each probe has a rate f of matching a random identity, and FPIR is the mean of $1 - (1 - f)^N$. Two
    distributions of f are fitted to the probes' counts by maximum likelihood: beta, and normal in log f / (1 − f).
    The two differ in the share of probes that resemble no identity, which the counts hardly constrain. The rate is the
    geometric mean of their −log(1 − FPIR), and the interval covers both intervals. If the counts show that some probes
    resemble no identity at all, it also covers the lower limit of a beta distribution for the others: the rate then
    tends to be too high, since such probes match nobody in a gallery of any size.

    Args:
        embeddings, labels, cameras, template: see `identification`.
        gallery_size: identities enrolled, 1 or more.
        threshold: lowest cosine at which an identity is reported.
        seed: seed of the split of the identities into 20 parts, left out in turn for the intervals.
    Returns:
        ExtrapolatedRate. `identification` gives measured rates, for galleries smaller than the set.
    Raises:
        ValueError: fewer than 10 scores reach the threshold.
    Source: Skellam, JRSS B 10 (1948), beta-binomial counts; Efron, The Jackknife, the Bootstrap, 1982: leaving groups
        out.

    >>> generator = torch.Generator().manual_seed(0)
    >>> labels = torch.arange(200) // 2
    >>> classes = torch.randn(100, 8, generator=generator)
    >>> embeddings = classes[labels] + torch.randn(200, 8, generator=generator)
    >>> rate = extrapolate_fpir(embeddings, labels, gallery_size=500, threshold=0.9)
    >>> 0 < rate.low < rate.rate < rate.high < 1
    True
    """
    check_whole(gallery_size, "gallery_size", 1)
    check_number(threshold, "threshold")
    high = scores_from(BestScores(embeddings, labels, cameras, template), threshold)
    return extrapolated_rate(high, threshold, gallery_size, seed=seed)


def extrapolated_threshold(high: HighScores, enrolled: int, fpir: float, confidence: float | None) -> float | None:
    """Returns the lowest threshold whose extrapolated FPIR, or its upper limit, is at most this rate.

    None if fewer than NEEDED scores reach that threshold.
    """
    everyone = torch.ones(high.identities, dtype=torch.bool, device="cpu")

    def is_low_enough(threshold: float) -> bool:
        if confidence is None:
            return float(_rate(_log_rates(_count_matches(high, threshold, everyone), enrolled).mean())) <= fpir
        return extrapolated_rate(high, threshold, enrolled, confidence=2 * confidence - 1).high <= fpir

    reached = high.value.sort().values[: 1 - NEEDED].unique().tolist()  # ascending
    place = bisect_left(reached, True, key=is_low_enough)
    return reached[place] if place < len(reached) else None


def extrapolated_rate(
    high: HighScores, threshold: float, enrolled: int, *, seed: int = 0, confidence: float = 0.95
) -> ExtrapolatedRate:
    """Run `extrapolate_fpir` for a threshold of at least `high.low`; confidence: of the interval."""
    if (scores := int(reported(high, threshold).sum())) < NEEDED:
        raise ValueError(
            f"extrapolation needs at least {NEEDED} scores of different identities at or above the threshold "
            f"{threshold:.4f}; got {scores}. Measure more identities, or allow a higher rate"
        )
    part = torch.randperm(high.identities, generator=torch.Generator().manual_seed(seed), device="cpu") % _PARTS
    probes = _count_matches(high, threshold, part >= 0)
    values = _log_rates(probes, enrolled)
    without = [_log_rates(_count_matches(high, threshold, part != one), enrolled) for one in part.unique()]
    widths = half_widths(torch.tensor(np.array(without), device="cpu"), confidence).numpy()
    unmatched = _log_rate_with_unmatched(probes, enrolled)
    low = min((values - widths).min(), unmatched - widths[0])
    return ExtrapolatedRate(*_rate([values.mean(), low, (values + widths).max(), *values, unmatched]).tolist())


class _Matches(NamedTuple):
    """Matches of probes among the other identities."""

    hits: np.ndarray  # (K,) distinct numbers of matches
    times: np.ndarray  # (K,) number of probes with each
    misses: np.ndarray  # (K,) number of other identities that do not match


def _count_matches(high: HighScores, threshold: float, kept: Tensor) -> _Matches:
    """Count the matches at a threshold; kept: (M,) mask of identities."""
    above = reported(high, threshold) & kept[high.identity]
    number = torch.bincount(high.probe[above], minlength=len(high.label))[kept[high.label]]
    hits, times = np.unique(number.numpy(), return_counts=True)
    return _Matches(hits, times, int(kept.sum()) - 1 - hits)


def _log_rates(probes: _Matches, enrolled: int) -> np.ndarray:
    """Returns the `_log_rate` of each model."""
    models = (beta_likelihood, _logit_normal_likelihood)
    return np.array([_log_rate(model, _fit(model, probes).x, enrolled) for model in models])


def _log_rate_with_unmatched(probes: _Matches, enrolled: int) -> float:
    """Returns the `_log_rate` if some probes match nobody, and of the beta model if that is not likelier."""
    matched = math.log(probes.times[probes.hits > 0].sum() / probes.times.sum())
    plain, mixed = _fit(beta_likelihood, probes), _fit(beta_likelihood, probes, matched)
    fit = mixed if plain.fun - mixed.fun > _LIKELIER else plain
    return _log_rate(beta_likelihood, fit.x, enrolled)


def beta_likelihood(point: Sequence[float], hits: Array, misses: Array) -> Array:
    """Returns the log-likelihood of hits and misses, (…), of a probe whose rate has a beta distribution.

    point: logarithms of a and of a / b; logit of the share of such probes, if others match nobody.
    """
    from scipy.special import betaln, log_expit

    log_a, log_ratio, logit = (*point, math.inf)[:3]
    a, b = math.exp(log_a), math.exp(log_a - log_ratio)
    matched = log_expit(logit) + betaln(a + hits, b + misses) - betaln(a, b)
    return np.logaddexp(matched, np.where(hits, -np.inf, log_expit(-logit)))


def _logit_normal_likelihood(point: Sequence[float], hits: Array, misses: Array) -> Array:
    """`beta_likelihood` of a normal distribution of log f / (1 − f); point: log of its deviation, and its mean."""
    from scipy.special import log_expit

    logits = point[1] + math.exp(point[0]) * _NODES
    each = log_expit([logits, -logits]).T @ np.array([hits, misses])  # a row for each node
    top = each.max(0)
    return np.log(_WEIGHTS @ np.exp(each - top)) + top


def _fit(model: Model, probes: _Matches, *matched: float) -> Any:
    """Returns scipy's result of a maximum likelihood fit; matched: first logarithm of the share of such probes."""
    from scipy.optimize import minimize

    mean = math.log(probes.hits @ probes.times / (probes.misses @ probes.times + 1e-9))
    start = [0.0, mean - sum(matched), *matched]
    return minimize(
        lambda point: -probes.times @ model(point, probes.hits, probes.misses),
        start,
        method="Nelder-Mead",
        bounds=_BOUNDS[: len(start)],
        tol=1e-5,
        options={"maxiter": 2000},
    )


def _log_rate(model: Model, point: Sequence[float], enrolled: int) -> float:
    """Returns log(−log(1 − FPIR)): log(gallery size) + log(rate of a comparison) if probes are alike.

    The likelihood of no hit in the gallery is 1 − FPIR.
    """
    return math.log(np.clip(-model(point, 0, enrolled), 1e-300, 34.5))  # an FPIR from 1e-300 to 1 − 1e-15


def _rate(log_log: ArrayLike) -> np.ndarray:
    return -np.expm1(-np.exp(np.minimum(log_log, 700)))
