"""Tests whether a threshold is still valid: compares new error rates with limits."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from pml_ext._ops.numerics import unit_rows
from pml_ext._shared.checks import check_fraction
from pml_ext.functional.pairwise.pair_distances import PairDistances
from pml_ext.functional.verification.intervals import (
    class_rate_interval,
    interval_of_share,
    trials_of_interval,
)
from pml_ext.metrics.labels import Ids, number_classes
from pml_ext.metrics.normalization import CohortNormalization
from pml_ext.thresholds.fields import ErrorRate, GalleryRates, MeanRate, ThresholdFields
from pml_ext.thresholds.file import as_json, write_json
from pml_ext.thresholds.samples import (
    Samples,
    as_tensor,
    count_own,
    require_cohort,
    require_embeddings,
)
from pml_ext.thresholds.searches import rates_in_gallery

Verdict = Literal["holds", "does not hold", "cannot be told"]

_WORST_FIRST: tuple[Verdict, ...] = ("does not hold", "cannot be told", "holds")
_ODDS = 2.0  # default limit: so many times the odds of the report's rate
_OWN = 0.05  # share of the report's own samples above which a file is refused
_MOST, _ALIKE = 0.5, 0.9  # accepted impostor pairs and mean cosine above which embeddings are nearly equal
_TAIL, _POWER = 0.025, 0.9  # of the interval beyond a limit; of the number of identities that would decide


@dataclass(frozen=True)
class RateToday:
    """One error rate of pairs or searches, in the report and on new data. Both have 95 % intervals.

    promised: the report's rate; today: the new rate; limit: the largest rate that holds; limit_is: where it comes from.
    is_bound: the new rate is an upper bound, because every pair was counted as an impostor pair.
    is_far_below: without a limit of the user, the interval ends below the report's interval, and below half the odds of
        its rate.
    verdict: "holds" if the interval ends at or below the limit. "does not hold" if it begins above the limit, unless
        `is_bound`. "cannot be told" otherwise, and if `is_far_below`.
    groups, unit: number of identities (or "frames", "tracks", "samples") of the pairs, which count as independent.
    groups_needed: approximate number for a decision with a power of 90 %; None if decided, or if no number is enough.
    enrolled: number of enrolled identities of both rates; None for pairs.
    """

    name: str
    promised: ErrorRate | MeanRate
    limit: float
    limit_is: str
    today: ErrorRate | MeanRate
    is_bound: bool
    is_far_below: bool
    verdict: Verdict
    groups: int
    unit: str
    groups_needed: int | None
    enrolled: int | None = None

    def summary(self) -> str:
        """One line."""
        at_most = "at most " if self.is_bound else ""
        measured = f"{self.groups:,} {self.unit}"
        if isinstance(self.today, ErrorRate):
            measured = f"{self.today.errors:,} of {self.today.pairs:,} pairs of {measured}"
        if self.enrolled is not None:
            measured += f" in galleries of {self.enrolled:,}"
        limit = f"{self.promised} in the report; limit {self.limit:.3g}, {self.limit_is}"
        text = f"{self.name} {at_most}{self.today} today, {measured}; {limit}: {self.verdict}"
        return f"{text}; {self._needed()}" if self.verdict == "cannot be told" else text

    def _needed(self) -> str:
        """Returns what would decide."""
        if self.is_far_below:
            return "it is far below the report's. If the model is the same, give your own limit"
        if self.groups_needed is not None:
            return f"about {self.groups_needed:,} {self.unit} would decide (power {_POWER:.0%})"
        if self.is_bound:
            return "some of these pairs may be genuine. Give frames (samples known to be different)"
        return "the report's interval excludes no rate. Choose a threshold on more identities, or give your own limit"


@dataclass(frozen=True)
class ThresholdCheck:
    """Result of `ThresholdReport.check`.

    far, frr: None if the data has no pairs known to be impostor pairs, or genuine pairs.
    fpir, fnir: of a threshold chosen for searches, in the largest gallery of the report that the data allow.
    not_checked: what was not checked, and why.
    notes: what looks wrong in the data.
    """

    far: RateToday | None
    frr: RateToday | None
    fpir: RateToday | None = None
    fnir: RateToday | None = None
    not_checked: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of the rates; "cannot be told" if they hold, but something was not checked."""
        worst = min((rate.verdict for rate in self._rates), key=_WORST_FIRST.index)
        return "cannot be told" if worst == "holds" and self.not_checked else worst

    @property
    def status(self) -> int:
        """Exit status of the command: 0 holds, 1 does not hold, 3 cannot be told."""
        return {"holds": 0, "does not hold": 1, "cannot be told": 3}[self.verdict]

    def save(self, path: str | Path) -> None:
        """Write the verdict and the rates as a JSON file."""
        write_json({"verdict": self.verdict, **as_json(self)}, Path(path))

    def summary(self) -> str:
        """Returns the verdict, notes on the data, and one line per rate."""
        lines = [self._first_line(), *self.notes, *(rate.summary() for rate in self._rates)]
        lines.append(f"Intervals: 95 %, for independent {self._rates[0].unit}.")
        return "\n".join(lines)

    def _first_line(self) -> str:
        text = "The threshold holds."
        if self.verdict == "does not hold":
            above = _join([rate.name for rate in self._rates if rate.verdict == "does not hold"])
            text = (
                f"The threshold does not hold: {above} above the limit. Make sure that the embeddings are of the same "
                "model. If so, choose a new threshold on recent data with pml-ext threshold choose, which also lists "
                "doubtful labels."
            )
        elif self.far is not None and self.far.is_far_below:
            text = "Cannot be told: impostor scores are far below the report's; is it the same model?"
        elif any(rate.verdict == "cannot be told" for rate in self._rates):
            text = "Cannot be told: too few identities to decide whether the threshold holds."
        elif self.not_checked:
            names = [rate.name for rate in self._rates]
            held = "was checked, and it holds" if len(names) == 1 else "were checked, and they hold"
            text = f"Cannot be told: only {_join(names)} {held}."
        if self.frr is not None and self.frr.today.rate == 1:
            text += " All genuine pairs are rejected."
        return " ".join([text, *self.not_checked])

    @property
    def _rates(self) -> list[RateToday]:
        return [rate for rate in (self.far, self.frr, self.fpir, self.fnir) if rate is not None]


def _join(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]


@dataclass(frozen=True)
class _ErrorCounts:
    """(T,) errors and pairs of each class or group; classes_per_pair: see `rate_without_each`."""

    errors: Tensor
    pairs: Tensor
    unit: str
    classes_per_pair: int = 1
    is_bound: bool = False


def check_threshold(
    report: ThresholdFields,
    embeddings: Tensor | np.ndarray,
    known: Mapping[str, Ids | None],
    *,
    far_limit: float | None,
    frr_limit: float | None,
    normalization: CohortNormalization | None,
) -> ThresholdCheck:
    """Implements `ThresholdReport.check`; known: its labels, frames, tracks and cameras."""
    vectors: Tensor = as_tensor(embeddings)
    require_embeddings(vectors, "embeddings", report.embedding_dim)
    for name, limit in (("far_limit", far_limit), ("frr_limit", frr_limit)):
        if limit is not None:
            check_fraction(limit, name)
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
    own, notes = count_own(report.sample_keys, vectors), list[str]()
    if own:
        about = f"about {own:,} of {len(vectors):,} embeddings are the report's own data ({report.data or 'not named'})"
        if own > _OWN * len(vectors):
            raise ValueError(
                f"{about}: the threshold was chosen on them, so they cannot test it. Give embeddings of other samples"
            )
        notes.append(f"{about.capitalize()}.")
    offsets = None
    if normalization is not None:
        offsets = normalization.corrections_of_judged(vectors, known.get("labels"))
    samples = Samples(vectors.double(), torch.arange(len(vectors), device="cpu"), offsets=offsets)
    impostors, genuine = _count_errors(report.distance, samples, ids)
    promised_frr: ErrorRate | None = report.frr
    if "tracks" in ids and report.cameras is not None and "cameras" not in ids:
        promised_frr = report.cameras.within  # a track is of one camera
    with_genuine = sum(errors.genuine_pairs > 0 for errors in report.classes)
    far = _compare("FAR", report.far, far_limit, len(report.classes), impostors)
    frr = _compare("FRR", promised_frr, frr_limit, with_genuine, genuine)
    not_checked = _rates_not_checked(set(ids), far, frr, has_frr=promised_frr is not None)
    if far is None and frr is None:
        raise ValueError(" ".join(not_checked))
    cosine = _mean_cosine(samples.embeddings)
    if far is not None and far.today.rate > _MOST and cosine > _ALIKE:
        notes.append(f"The embeddings are nearly equal (mean cosine {cosine:.2f}): is it the right input and model?")
    fpir, fnir = None, None
    if report.target.kind == "fpir" and "labels" not in ids:
        not_checked.append("Searches were not checked: no identities are known. Give labels.")
    elif report.target.kind == "fpir":
        searched = replace(samples, ids=ids["labels"], cameras=ids.get("cameras"))
        fpir, fnir, problems = _compare_searches(report, searched)
        not_checked += problems
    return ThresholdCheck(far, frr, fpir, fnir, tuple(not_checked), tuple(notes))


def _rates_not_checked(kinds: set[str], far: RateToday | None, frr: RateToday | None, *, has_frr: bool) -> list[str]:
    """Returns why FRR and FAR were not checked.

    kinds: those of the ids; has_frr: whether the report has an FRR of such pairs.
    """
    reasons = list[str]()
    if frr is None:
        reason = "no pairs are known to be genuine. Give labels or tracks"
        if not has_frr:
            reason = "the report has no FRR of pairs of one camera, as those of a track are"
        elif kinds & {"labels", "tracks"}:
            of_two = " of two cameras" if "cameras" in kinds else ""
            reason = f"no {'identity' if 'labels' in kinds else 'track'} has two samples{of_two}"
        reasons.append(f"FRR was not checked: {reason}.")
    if far is None:
        reason = "no pairs are known to be impostor pairs. Give labels or frames"
        if "labels" in kinds:
            reason = "all samples are of one identity"
        elif "frames" in kinds:
            reason = "no frame has two samples" + (" of two tracks" if "tracks" in kinds else "")
        reasons.append(f"FAR was not checked: {reason}.")
    return reasons


def _mean_cosine(embeddings: Tensor) -> float:
    """Returns the mean cosine of (N, D) rows with each other, themselves included."""
    return float(unit_rows(embeddings).mean(dim=0).square().sum())


def _compare_searches(
    report: ThresholdFields, samples: Samples
) -> tuple[RateToday | None, RateToday | None, tuple[str, ...]]:
    """Returns FPIR and FNIR in the largest gallery of the report that the samples allow, and what was not checked."""
    searches = report.searches
    assert searches is not None  # not None: the threshold was chosen for searches
    probes, identities = len(samples.ids), len(torch.unique(samples.ids))
    promised = _largest_gallery(searches.sizes, min(searches.planned.enrolled, identities - 1))
    if promised is None:
        least = searches.sizes[0].enrolled
        few = f"the report has galleries of {least:,} identities or more, which need {least + 1:,}; got {identities:,}"
        return None, None, (f"Searches were not checked: {few}.",)
    template, rank = searches.template, searches.rank
    today = rates_in_gallery(samples, report.cosine, promised.enrolled, template=template, rank=rank)
    fpir = _compare_search("FPIR", promised.fpir, today.fpir, identities, probes, today.enrolled)
    fnir = None
    if promised.fnir is not None and today.fnir is not None:
        mated = int((torch.bincount(samples.ids) > 1).sum())
        fnir = _compare_search("FNIR", promised.fnir, today.fnir, mated, probes, today.enrolled)
    return fpir, fnir, ()


def _largest_gallery(sizes: tuple[GalleryRates, ...], at_most: int) -> GalleryRates | None:
    fitting = [size for size in sizes if size.enrolled <= at_most]
    return fitting[-1] if fitting else None


def _compare_search(
    name: str, promised: MeanRate, today: MeanRate, identities: int, probes: int, enrolled: int
) -> RateToday:
    trials = trials_of_interval(today.rate * probes, probes, today.low, today.high)
    return _judge(name, promised, today, None, trials, identities, "identities", enrolled=enrolled)


def _count_errors(
    distance: float, samples: Samples, ids: Mapping[str, Tensor]
) -> tuple[_ErrorCounts | None, _ErrorCounts | None]:
    """Returns the false accepts of known impostor pairs and the false rejects of known genuine pairs.

    samples: each a separate class; ids: (N,) of labels, frames, tracks and cameras, if known.
    """

    def pairs_of(group: str, told_apart: str) -> PairDistances:
        """Returns pairs whose positives are of one group, and of two values of `told_apart` if that is known."""
        return replace(samples, ids=ids[group], cameras=ids.get(told_apart)).pairs()

    if "labels" in ids:
        pairs = pairs_of("labels", "cameras")
        accepted, false_accepts = pairs.accepted_at(distance)
        impostors = _ErrorCounts(false_accepts, pairs.negative_pairs, "identities", classes_per_pair=2)
        return impostors, _ErrorCounts(pairs.positive_pairs - accepted, pairs.positive_pairs, "identities")
    if "frames" not in ids and "tracks" not in ids:
        pairs = samples.pairs()
        _, false_accepts = pairs.accepted_at(distance)
        return _ErrorCounts(false_accepts, pairs.negative_pairs, "samples", classes_per_pair=2, is_bound=True), None
    different, same = None, None
    if "frames" in ids:  # two crops of one track in a frame are one person
        pairs = pairs_of("frames", "tracks")
        accepted, _ = pairs.accepted_at(distance, positives_only=True)
        different = _ErrorCounts(accepted, pairs.positive_pairs, "frames")
    if "tracks" in ids:
        pairs = pairs_of("tracks", "cameras")
        accepted, _ = pairs.accepted_at(distance, positives_only=True)
        same = _ErrorCounts(pairs.positive_pairs - accepted, pairs.positive_pairs, "tracks")
    return different, same


def _compare(
    name: str, promised: ErrorRate | None, chosen_limit: float | None, classes: int, counts: _ErrorCounts | None
) -> RateToday | None:
    """Compares one rate with its limit; None without pairs. classes: number of classes of the promised rate."""
    if promised is None or counts is None or not int(counts.pairs.sum()):
        return None
    errors = int(counts.errors.sum()) // counts.classes_per_pair
    pairs = int(counts.pairs.sum()) // counts.classes_per_pair
    groups = int((counts.pairs > 0).sum())
    if 0 < errors < pairs:
        low, high = class_rate_interval(counts.errors.cpu(), counts.pairs.cpu(), counts.classes_per_pair)
        trials = trials_of_interval(errors, pairs, low, high)
    else:  # Only the report's errors show how errors cluster: its independent trials per pair, but no more per identity
        trials = trials_of_interval(promised.errors, promised.pairs, promised.low, promised.high)
        trials *= min(pairs / promised.pairs, groups / max(1, classes))
        low, high = interval_of_share(trials * (errors > 0), trials, 0.95)
    today = ErrorRate(errors, pairs, float(low), float(high))
    half = _at_odds(promised.rate, 1 / _ODDS)
    is_far_below = name == "FAR" and chosen_limit is None and today.high < min(promised.low, half)
    unit, is_bound = counts.unit, counts.is_bound
    return _judge(
        name, promised, today, chosen_limit, trials, groups, unit, is_bound=is_bound, is_far_below=is_far_below
    )


def _judge(
    name: str,
    promised: ErrorRate | MeanRate,
    today: ErrorRate | MeanRate,
    chosen_limit: float | None,
    trials: float,
    groups: int,
    unit: str,
    *,
    is_bound: bool = False,
    is_far_below: bool = False,
    enrolled: int | None = None,
) -> RateToday:
    """Returns the verdict on a rate; trials: number of independent trials that its interval stands for."""
    limit, limit_is = _limit(promised, chosen_limit)
    verdict: Verdict = "cannot be told"
    if today.high <= limit < 1 and not is_far_below:
        verdict = "holds"
    elif today.low > limit and not is_bound:
        verdict = "does not hold"
    needed = None
    is_decidable = limit < 1 and not is_far_below and not (is_bound and today.rate >= limit)
    if verdict == "cannot be told" and is_decidable:
        needed = max(groups + 1, math.ceil(groups * _times_the_data(today.rate, limit, trials)))
    return RateToday(
        name=name,
        promised=promised,
        limit=limit,
        limit_is=limit_is,
        today=today,
        is_bound=is_bound,
        is_far_below=is_far_below,
        verdict=verdict,
        groups=groups,
        unit=unit,
        groups_needed=needed,
        enrolled=enrolled,
    )


def _limit(promised: ErrorRate | MeanRate, chosen_limit: float | None) -> tuple[float, str]:
    """Returns the limit of a rate, and where it comes from."""
    if chosen_limit is not None:
        return chosen_limit, "as given"
    limit = _at_odds(promised.rate, _ODDS)
    if promised.high > limit:
        return promised.high, "where the report's interval ends"
    return limit, "twice the odds of the report's rate"


def _at_odds(rate: float, factor: float) -> float:
    """Returns the rate with so many times the odds."""
    return factor * rate / (1 - rate + factor * rate)


def _times_the_data(rate: float, limit: float, trials: float) -> float:
    """Returns the factor of groups with which the interval of this rate excludes the limit with the stated power."""
    from scipy.special import logit, ndtri  # a dependency of pytorch-metric-learning's scikit-learn

    if rate in (0, 1):
        return math.log(_TAIL) / math.log(limit if rate else 1 - limit) / trials
    distance = max(1e-3, abs(float(logit(limit) - logit(rate))))
    needed = ((ndtri(1 - _TAIL) + ndtri(_POWER)) / distance) ** 2 / (rate * (1 - rate))
    return float(needed / trials)
