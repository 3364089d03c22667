"""FPIR of searches in galleries larger than the set, extrapolated from the distribution of per-probe rates."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pml_ext._checks import check_number, check_whole
from pml_ext.functional.open_set.best_scores import BestScores, HighScores, Template, reported, scores_from
from pml_ext.functional.verification.intervals import half_widths

NEEDED = 10  # minimum number of scores at or above the threshold
_NOTHING_KNOWN = 0.01
_PARTS = 20  # parts of the identities, each left out once
_NODES = np.linspace(-8, 8, 241)  # quadrature nodes of a standard normal variable
_STIRLING_FROM = 100
_LIKELIER = 1.92  # gain in log-likelihood that is significant at 5 %, for one parameter
Array = Any  # a number or an array of numbers
_WEIGHTS = np.exp(-(_NODES**2) / 2) / np.exp(-(_NODES**2) / 2).sum()


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
        return self.low >= _NOTHING_KNOWN or self.high <= 1 - _NOTHING_KNOWN

    @property
    def independent(self) -> float:
        """Number of independent errors that give an interval as wide."""
        return (2 * 1.96 / max(_log_log(self.high) - _log_log(self.low), 1e-9)) ** 2


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
    values = high.value.unique()  # ascending

    def exceeds(place: int) -> bool:
        threshold = float(values[place])
        if confidence is None:
            probes = _counts(
                torch.bincount(high.probe[reported(high, threshold)], minlength=len(high.genuine)), high.others
            )
            return _rate(sum(_model_log_rates(probes, _likeliest_beta(probes), enrolled)) / 2) > fpir
        return extrapolated_rate(high, threshold, enrolled, confidence=2 * confidence - 1).high > fpir

    low, above = 0, int(torch.searchsorted(values, high.value.topk(min(NEEDED, len(high.value))).values[-1]))
    if len(high.value) < NEEDED or exceeds(above):
        return None
    while low < above:
        middle = (low + above) // 2
        low, above = (middle + 1, above) if exceeds(middle) else (low, middle)
    return float(values[above])


def extrapolated_rate(
    high: HighScores, threshold: float, enrolled: int, *, seed: int = 0, confidence: float = 0.95
) -> ExtrapolatedRate:
    """Run `extrapolate_fpir` for a threshold of at least `high.low`; confidence: of the interval."""
    above = reported(high, threshold)
    if int(above.sum()) < NEEDED:
        raise ValueError(
            f"extrapolation needs at least {NEEDED} scores of different identities at or above the threshold "
            f"{threshold:.4f}; got {int(above.sum())}. Measure more identities, or allow a higher rate"
        )
    probe, identity = high.probe[above], high.identity[above]
    number = torch.bincount(probe, minlength=len(high.genuine))
    part = torch.randperm(high.identities, generator=torch.Generator().manual_seed(seed)) % _PARTS
    parts = int(part.max()) + 1
    with_part = torch.zeros((parts, len(number)), dtype=torch.int64)
    with_part.index_put_((part[identity], probe), torch.ones_like(probe), accumulate=True)
    sizes = torch.bincount(part)
    probes = _counts(number, high.others)
    beta = _likeliest_beta(probes)
    logs = [_model_log_rates(probes, beta, enrolled)]
    for one in range(parts):
        kept = part[high.label] != one
        rest = _counts((number - with_part[one])[kept], high.others - int(sizes[one]))
        logs.append(_model_log_rates(rest, _likeliest_beta(rest), enrolled))
    values, *without = torch.tensor(logs, dtype=torch.float64)
    widths = half_widths(torch.stack(without), confidence)
    with_unmatched = _log_rate_with_unmatched(probes, beta, enrolled)
    low = min(float((values - widths).min()), with_unmatched - float(widths[0]))
    rates = [_rate(value) for value in (values.mean(), low, (values + widths).max(), *values, with_unmatched)]
    return ExtrapolatedRate(*rates)


class _Counts(NamedTuple):
    """Matches of probes among the other identities."""

    hits: np.ndarray  # (K,) distinct numbers of matches
    times: np.ndarray  # (K,) number of probes with each
    others: int

    @property
    def misses(self) -> np.ndarray:
        return self.others - self.hits


def _counts(number: Tensor, others: int) -> _Counts:
    hits, times = (of.double().numpy() for of in torch.unique(number, return_counts=True))
    return _Counts(hits, times, others)


def _model_log_rates(probes: _Counts, beta: tuple[float, float], enrolled: int) -> tuple[float, float]:
    """Returns log(−log(1 − FPIR)) of each model: log(gallery size) + log(rate of a comparison) if probes are alike."""
    no = _likeliest_logits(probes)
    return _log_log(_beta_rate(*beta, enrolled)), _log_log(float(-np.expm1(enrolled * no) @ _WEIGHTS))


def _log_rate_with_unmatched(probes: _Counts, beta: tuple[float, float], enrolled: int) -> float:
    """Returns log(−log(1 − FPIR)) if some probes match nobody, and of the beta model if that is not likelier."""
    hits, times, _ = probes
    a, b = beta
    without = float(times @ log_beta_ratio(a, b, hits, probes.misses))

    def parameters(point: np.ndarray) -> tuple[float, float, float]:
        return 1 / (1 + np.exp(-point[2])), *_shape(point)

    def loss(point: np.ndarray) -> float:
        matched, a, b = parameters(point)
        each = matched * np.exp(log_beta_ratio(a, b, hits, probes.misses)) + (1 - matched) * (hits == 0)
        return -float(times @ np.log(each + 1e-300))

    matched = times[hits > 0].sum() / times.sum()
    start = [math.log(a), math.log(a / b / max(matched, 1e-3)), math.log(max(matched, 1e-3))]
    point = _minimum(loss, start)
    if -loss(point) - without < _LIKELIER:
        return _log_log(_beta_rate(a, b, enrolled))
    matched, a, b = parameters(point)
    return _log_log(matched * _beta_rate(a, b, enrolled))


def _beta_rate(a: float, b: float, enrolled: int) -> float:
    return float(-np.expm1(log_beta_ratio(a, b, 0, enrolled)))


def _rate(log_log: Tensor | float) -> float:
    return -math.expm1(-math.exp(min(float(log_log), 700.0)))


def _log_log(rate: float) -> float:
    return math.log(max(-math.log1p(-min(rate, 1 - 1e-15)), 1e-300))


def _likeliest_beta(probes: _Counts) -> tuple[float, float]:
    """Returns the maximum likelihood a and b."""

    def loss(point: np.ndarray) -> float:
        return -float(probes.times @ log_beta_ratio(*_shape(point), probes.hits, probes.misses))

    return _shape(_minimum(loss, _start(probes)))


def _shape(point: np.ndarray) -> tuple[float, float]:
    """Returns a and b of the logarithms of a and of a / b."""
    a = np.exp(np.clip(point[0], -20, 20))
    return a, a * np.exp(-np.clip(point[1], -40, 40))


def log_beta_ratio(a: float, b: float, hits: Array, misses: Array) -> Array:
    """Returns log B(a + hits, b + misses) / B(a, b), the log-likelihood of hits and misses under a beta distribution.

    If all probes are alike, a and b grow without bound, and a difference of `betaln` has no correct digits.
    """
    return log_rising(a, hits) + log_rising(b, misses) - log_rising(a + b, hits + misses)


def log_rising(start: float, count: Array) -> Array:
    """Returns log Γ(start + count) − log Γ(start), to about 1e-15 of count · log(start + count)."""
    from scipy.special import gammaln

    if start < _STIRLING_FROM:
        return gammaln(start + count) - gammaln(start)
    end = start + count
    main = (end - 0.5) * np.log1p(count / start) + count * math.log(start) - count
    return main + _stirling_rest(end) - _stirling_rest(start)


def _stirling_rest(x: Array) -> Array:
    """Returns log Γ(x) − ((x − 1/2) log x − x + log(2π) / 2), accurate to 1e-17 for x >= 100."""
    square = x * x
    return (1 / 12 - (1 / 360 - 1 / 1260 / square) / square) / x


def _likeliest_logits(probes: _Counts) -> np.ndarray:
    """Fit a normal distribution of log f / (1 − f); returns log(1 − f) at the quadrature nodes."""

    def logs(point: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        logits = point[1] + np.exp(np.clip(point[0], -20, 5)) * _NODES
        return -np.logaddexp(0, -logits), -np.logaddexp(0, logits)  # log f, log(1 − f)

    def loss(point: np.ndarray) -> float:
        yes, no = logs(point)
        each = probes.hits[:, None] * yes + probes.misses[:, None] * no
        top = each.max(axis=1, keepdims=True)
        return -float(probes.times @ (np.log(np.exp(each - top) @ _WEIGHTS) + top[:, 0]))

    return logs(_minimum(loss, _start(probes)))[1]


def _start(probes: _Counts) -> list[float]:
    """Returns a log shape, and the logit of the mean rate."""
    mean = float(probes.hits @ probes.times / probes.times.sum()) / probes.others
    return [0.0, math.log(max(mean, 1e-12)) - math.log1p(-min(mean, 1 - 1e-12))]


def _minimum(loss: Callable[[np.ndarray], float], start: list[float]) -> np.ndarray:
    from scipy.optimize import minimize

    options = {"xatol": 1e-4, "fatol": 1e-6, "maxiter": 2000}
    parameters: np.ndarray = minimize(loss, start, method="Nelder-Mead", options=options).x
    return parameters
