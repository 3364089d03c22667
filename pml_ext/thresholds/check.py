"""Tests whether a threshold is still valid: compares new error rates with those of its report."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from pml_ext._shared.checks import check_whole
from pml_ext.functional.pairwise.pair_distances import PairDistances
from pml_ext.functional.verification.intervals import (
    class_rate_interval,
    interval_of_share,
    trials_of_interval,
)
from pml_ext.metrics.labels import Ids, number_classes
from pml_ext.metrics.normalization import CohortNormalization
from pml_ext.thresholds.fields import (
    ErrorRate,
    ThresholdFields,
    distance_of,
)
from pml_ext.thresholds.file import as_json, write_json
from pml_ext.thresholds.samples import (
    Samples,
    as_tensor,
    require_cohort,
    require_embeddings,
)

Verdict = Literal["holds", "does not hold", "cannot be told"]

_WORST_FIRST: tuple[Verdict, ...] = ("does not hold", "cannot be told", "holds")
_MARGIN = 3.0  # a rate holds if its odds are shown to be at most this many times the report's
_CHANGED = 2.0  # a rate fails if its odds are this many times the report's, and more than by chance
_BULK = 0.005  # FAR of the recorded thresholds at which impostor scores are compared
_LEVEL, _POWER = 0.05, 0.9  # of the test that a rate holds


@dataclass(frozen=True)
class RateToday:
    """One error rate in the report and on new data.

    promised: the report's rate; limit: largest rate that still holds; today: the new rate. Both have 95 % intervals.
    is_bound: the new rate is an upper bound, because every pair was counted as an impostor pair.
    is_below: the new rate is far below the report's.
    verdict: "holds" if today's one-sided 95 % limit is at or below the limit. "does not hold" if the rate is above
        the report's interval, with more than twice the odds, and not by chance; or if it is far below.
    groups, unit: number of identities (or "frames", "tracks", "samples") of the pairs, which count as independent.
    groups_needed: approximate number for a decision with a power of 90 %; None if decided, or if no number is enough.
    """

    name: str
    promised: ErrorRate
    limit: float
    today: ErrorRate
    is_bound: bool
    is_below: bool
    verdict: Verdict
    groups: int
    unit: str
    groups_needed: int | None

    def summary(self) -> str:
        """One line."""
        at_most = "at most " if self.is_bound else ""
        pairs = f"{self.today.errors:,} of {self.today.pairs:,} pairs of {self.groups:,} {self.unit}"
        promise = f"{self.promised} in the report, limit {self.limit:.3g}"
        text = f"{self.name} {at_most}{self.today} today, {pairs}; {promise}: {self.verdict}"
        if self.is_below:
            return f"{text}, far below the report"
        if self.verdict != "cannot be told":
            return text
        if self.limit == 1:
            return f"{text}; the report's interval excludes no rate. Choose a threshold on more identities"
        if self.groups_needed is not None:
            return f"{text}; about {self.groups_needed:,} {self.unit} would decide (power {_POWER:.0%})"
        return f"{text}; some of these pairs may be genuine. Give frames (samples known to be different)"


@dataclass(frozen=True)
class ThresholdCheck:
    """Result of `ThresholdReport.check`.

    far, frr: None if the data has no pairs known to be impostor pairs, or genuine pairs.
    scores: share of impostor pairs at or above a score that the report records; the first one that is far below the
        report's, or None.
    look: which of repeated checks this was; level: probability of a false alarm in each rate, all checks together 5 %.
    """

    far: RateToday | None
    frr: RateToday | None
    scores: RateToday | None
    look: int
    level: float

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of the rates, except for two cases that are "cannot be told".

        1. The rates hold, but one of them was not checked.
        2. The rates hold, but genuine pairs may be accepted no more often than impostor pairs.
        """
        is_uncertain = self._worst == "holds" and (self._unchecked is not None or self._may_be_chance)
        return "cannot be told" if is_uncertain else self._worst

    @property
    def status(self) -> int:
        """Exit status of the command: 0 holds, 1 does not hold, 3 cannot be told."""
        return {"holds": 0, "does not hold": 1, "cannot be told": 3}[self.verdict]

    def save(self, path: str | Path) -> None:
        """Write the verdict and the rates as a JSON file."""
        write_json({"verdict": self.verdict, **as_json(self)}, Path(path))

    def summary(self) -> str:
        """Returns the verdict, then one line per rate."""
        lines = [self._first_line()]
        lines += [rate.summary() for rate in self._rates]
        lines.append(f"Intervals: 95 %, for independent {self._rates[0].unit}. False alarm: {self.level:.2%} per rate.")
        return "\n".join(lines)

    def _first_line(self) -> str:
        checked, unchecked = [rate.name for rate in (self.far, self.frr) if rate is not None], self._unchecked
        if self._worst == "does not hold":
            text = "The threshold does not hold. Choose a new one on recent data: `choose` also lists doubtful labels."
            if any(rate.is_below for rate in self._rates):
                text += " Impostor scores are far below the report's: is it the report's model?"
        elif self._worst == "cannot be told":
            text = "Too few identities to decide whether the threshold holds."
        elif unchecked is not None:
            text = f"Only {checked[0]} was checked, and it holds."
        elif self._may_be_chance:
            text = "The threshold keeps the report's rates, but may be no better than chance."
        else:
            text = "The threshold holds."
        if self.frr is not None and self.frr.today.errors == self.frr.today.pairs:
            text += f" All {self.frr.today.pairs:,} genuine pairs are rejected."
        return text if unchecked is None else f"{text} {unchecked}"

    @property
    def _rates(self) -> list[RateToday]:
        return [rate for rate in (self.far, self.frr, self.scores) if rate is not None]

    @property
    def _worst(self) -> Verdict:
        return min((rate.verdict for rate in self._rates), key=_WORST_FIRST.index)

    @property
    def _unchecked(self) -> str | None:
        if self.frr is None:
            return "FRR was not checked: no pairs are known to be genuine. Give labels or tracks."
        if self.far is None or self.far.is_bound:
            return "FAR was not checked: no pairs are known to be impostor pairs. Give labels or frames."
        return None

    @property
    def _may_be_chance(self) -> bool:
        """Returns whether, within the intervals, genuine pairs may be accepted no more often than impostor pairs."""
        accepted = 0.0 if self.far is None else self.far.today.high
        return self.frr is not None and 1 - self.frr.today.high <= accepted


@dataclass(frozen=True)
class _NewData:
    """New samples, each a separate class, and (N,) ids of labels, frames, tracks and cameras if known."""

    samples: Samples
    ids: Mapping[str, Tensor]

    def pairs(self, group: str, told_apart: str) -> PairDistances:
        """Returns pairs whose positives are of one group, and of two values of `told_apart` if that is known."""
        return replace(self.samples, ids=self.ids[group], cameras=self.ids.get(told_apart)).pairs()


@dataclass(frozen=True)
class _Counts:
    """(T,) errors and pairs of each class or group; is_shared: an impostor pair counts for both of its classes."""

    errors: Tensor
    pairs: Tensor
    unit: str
    is_shared: bool = False
    is_bound: bool = False


def check_threshold(
    report: ThresholdFields,
    embeddings: Tensor | np.ndarray,
    known: Mapping[str, Ids | None],
    *,
    look: int,
    normalization: CohortNormalization | None,
) -> ThresholdCheck:
    """Implements `ThresholdReport.check`; known: its labels, frames, tracks and cameras."""
    vectors: Tensor = as_tensor(embeddings)
    require_embeddings(vectors, "embeddings", report.embedding_dim)
    check_whole(look, "look", 1)
    passed = {name for name, values in known.items() if values is not None}
    if "labels" in passed and passed & {"frames", "tracks"}:
        raise ValueError("give labels, or frames and tracks; got both")
    if report.is_across_cameras and "labels" in passed and "cameras" not in passed:
        raise ValueError("the report's FRR is of genuine pairs across cameras. Give cameras, one per embedding")
    if "cameras" in passed and not report.is_across_cameras:
        raise ValueError("the report's FRR includes genuine pairs of one camera. Leave cameras out")
    ids = dict[str, Tensor]()
    for kind, values in known.items():
        if values is not None:
            ids[kind], _ = number_classes(values, len(vectors), kind)
    require_cohort(report.normalization, normalization)
    offsets = None
    if normalization is not None:
        offsets = normalization.corrections_of_judged(vectors, known.get("labels"))
    data = _NewData(Samples(vectors.double(), torch.arange(len(vectors)), offsets=offsets), ids)
    check = _check_rates(report, data, look)
    if not check._rates:
        raise ValueError("no pair of these samples is known to be the same or different: every group has one sample")
    return check


def _check_rates(report: ThresholdFields, data: _NewData, look: int) -> ThresholdCheck:
    """Compares FAR of known impostor pairs and FRR of known genuine pairs; None if there are none."""
    # The report's threshold, and the scores at which it records the share of impostor pairs.
    points = [point for point in report.points if point.far.rate >= _BULK]
    distances = [report.distance, *(distance_of(point.cosine) for point in points)]
    at, order = torch.tensor(distances, dtype=torch.float64).sort()

    def accepted(pairs: PairDistances, *, positives_only: bool = False) -> list[Tensor]:
        """Returns (T, M) accepted genuine pairs and impostor pairs at the distances."""
        return [counts[:, order.argsort()] for counts in pairs.accepted(at, positives_only=positives_only)]

    far, frr = list[_Counts](), None
    if "labels" in data.ids:
        pairs = data.pairs("labels", "cameras")
        genuine, impostors = accepted(pairs)
        far = [_Counts(errors, pairs.negative_pairs, "identities", is_shared=True) for errors in impostors.T]
        frr = _Counts(pairs.positive_pairs - genuine[:, 0], pairs.positive_pairs, "identities")
    elif "frames" not in data.ids and "tracks" not in data.ids:
        pairs = data.samples.pairs()
        count = pairs.negative_pairs
        far = [_Counts(errors, count, "samples", is_shared=True, is_bound=True) for errors in accepted(pairs)[1].T]
    if "frames" in data.ids:  # two crops of one track in a frame are one person
        pairs = data.pairs("frames", "tracks")
        alike = accepted(pairs, positives_only=True)[0]
        far = [_Counts(errors, pairs.positive_pairs, "frames") for errors in alike.T]
    promised_frr: ErrorRate | None = report.frr
    if "tracks" in data.ids:
        pairs = data.pairs("tracks", "cameras")
        genuine = accepted(pairs, positives_only=True)[0]
        frr = _Counts(pairs.positive_pairs - genuine[:, 0], pairs.positive_pairs, "tracks")
        if report.cameras is not None and report.is_across_cameras and "cameras" not in data.ids:
            promised_frr = report.cameras.within  # a track is of one camera
    level = 0.05 * 6 / (math.pi * look) ** 2 / 2  # spent over all looks: Σ 6 / (π² n²) = 1. Two rates share it.
    classes = len(report.classes)
    with_genuine = sum(errors.genuine_pairs > 0 for errors in report.classes)
    shares = []
    for point, counts in zip(points, far[1:], strict=False):
        name = f"share of impostor scores from {point.cosine:.3f} on"
        shares.append(_judge(name, point.far, classes, counts, level))
    far_today = _judge("FAR", report.far, classes, far[0], level) if far else None
    frr_today = _judge("FRR", promised_frr, with_genuine, frr, level) if frr else None
    too_few = next((share for share in shares if share is not None and share.is_below), None)
    return ThresholdCheck(far=far_today, frr=frr_today, scores=too_few, look=look, level=level)


def _judge(name: str, promised: ErrorRate | None, classes: int, counts: _Counts, level: float) -> RateToday | None:
    """Returns one rate's verdict, or None without pairs. classes: number of classes of the promised rate."""
    if promised is None or not int(counts.pairs.sum()):
        return None
    share = 2 if counts.is_shared else 1
    errors, pairs = int(counts.errors.sum()) // share, int(counts.pairs.sum()) // share
    groups = int((counts.pairs > 0).sum())
    trials = trials_of_interval(promised.errors, promised.pairs, promised.low, promised.high)
    # Independent trials per pair as in the report, but not more per identity.
    trials_today = trials * min(pairs / promised.pairs, groups / max(1, classes))
    if 0 < errors < pairs:
        low, high = class_rate_interval(counts.errors.cpu(), counts.pairs.cpu(), pairs_span_classes=counts.is_shared)
        trials_today = trials_of_interval(errors, pairs, low, high)
    else:  # without new errors, only the report's errors show their clustering
        low, high = interval_of_share(trials_today * (errors > 0), trials_today, 0.95)
    today = ErrorRate(errors, pairs, float(low), float(high))
    limit = max(promised.high, _at_odds(promised.rate, _MARGIN))
    upper = float(interval_of_share(today.rate * trials_today, trials_today, 1 - 2 * _LEVEL)[1])
    ratio, least, most = _odds_ratio(today.rate, trials_today, promised.rate, trials, level)
    is_below = name != "FRR" and most < 1 / _CHANGED
    is_above = least > 1 and ratio > _CHANGED and today.rate > promised.high and not counts.is_bound
    verdict: Verdict = "cannot be told"
    if is_below or is_above:
        verdict = "does not hold"
    elif upper <= limit < 1:
        verdict = "holds"
    needed = None
    if verdict == "cannot be told" and limit < 1:
        times = _times_the_data(today.rate, promised.rate, limit, trials_today, can_refute=not counts.is_bound)
        needed = None if times is None else math.ceil(groups * times)
    return RateToday(
        name=name,
        promised=promised,
        limit=limit,
        today=today,
        is_bound=counts.is_bound,
        is_below=is_below,
        verdict=verdict,
        groups=groups,
        unit=counts.unit,
        groups_needed=needed,
    )


def _at_odds(rate: float, factor: float) -> float:
    """Returns the rate with so many times the odds."""
    return factor * rate / (1 - rate + factor * rate)


def _odds_ratio(
    rate: float, trials: float, other: float, other_trials: float, level: float
) -> tuple[float, float, float]:
    """Returns the ratio of the odds of two rates, and its lower and upper limit; each fails with probability `level`.

    Source: Zou and Donner, Statistics in Medicine 27 (2008), limits of a difference from those of its parts; here for
        log odds with Jeffreys' limits.
    """
    middle, low, high = _log_odds(rate, trials, level)
    other_middle, other_low, other_high = _log_odds(other, other_trials, level)
    difference = middle - other_middle
    least = difference - math.hypot(middle - low, other_high - other_middle)
    most = difference + math.hypot(high - middle, other_middle - other_low)
    return math.exp(difference), math.exp(least), math.exp(most)


def _log_odds(rate: float, trials: float, level: float) -> list[float]:
    """Returns the median and the limits of the log odds, of Jeffreys' distribution."""
    from scipy.special import betaincinv, logit  # a dependency of pytorch-metric-learning's scikit-learn

    quantiles = betaincinv(rate * trials + 0.5, (1 - rate) * trials + 0.5, [0.5, level, 1 - level])
    return [float(value) for value in logit(quantiles)]


def _times_the_data(today: float, promised: float, limit: float, trials: float, *, can_refute: bool) -> float | None:
    """Returns the factor of groups with which a rate is decided with the stated power; None if no factor is enough."""
    from scipy.special import logit, ndtri

    rate = min(max(today, promised), 1 - 0.5 / max(trials, 1))
    if rate == 0:
        return math.log(_LEVEL) / math.log1p(-limit) / trials
    distance = logit(limit) - logit(rate)
    if can_refute:
        distance = max(distance, logit(rate) - logit(promised)) if promised else abs(distance)
    if distance <= 0:
        return None
    needed = ((ndtri(1 - _LEVEL) + ndtri(_POWER)) / distance) ** 2 / (rate * (1 - rate))
    return float(max(1.0, needed / trials))
