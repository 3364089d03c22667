"""Whether a threshold still holds: today's error rates against those of its report."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pml_ext._checks import check_embeddings, check_number, check_whole
from pml_ext.functional.pairwise.pair_distances import PairDistances
from pml_ext.functional.verification.intervals import class_rate_interval, interval_of_share
from pml_ext.metrics.normalization import CohortNormalization
from pml_ext.metrics.threshold.camera_pairs import pairs_across_cameras
from pml_ext.metrics.threshold.class_ids import Labels, number_classes
from pml_ext.metrics.threshold.doubtful_labels import DoubtfulLabel, doubtful_labels
from pml_ext.metrics.threshold.fields import ThresholdFields
from pml_ext.metrics.threshold.measure import as_tensor, check_directions
from pml_ext.metrics.threshold.normalized import offsets_of_report
from pml_ext.metrics.threshold.rate_fields import ErrorRate

Verdict = Literal["holds", "does not hold", "cannot be told"]

_WORST_FIRST: tuple[Verdict, ...] = ("does not hold", "cannot be told", "holds")
_LABELS_SHOWN = 5


@dataclass(frozen=True)
class RateToday:
    """One error rate, then and now.

    promised: of the report; limit: up to where the rate counts as kept; today: with the interval of the verdict.
    is_bound: today's rate bounds the true one from above: all pairs were taken for impostor pairs.
    verdict: "holds" if the interval lies at or below the limit, "does not hold" if it lies above.
    groups, unit: number of identities (or "frames", "tracks", "samples") that the pairs are from.
    groups_needed: about how many would decide; None if it is decided, or no number would.
    """

    name: str
    promised: ErrorRate
    limit: float
    today: ErrorRate
    is_bound: bool
    verdict: Verdict
    groups: int
    unit: str
    groups_needed: int | None


@dataclass(frozen=True)
class ThresholdCheck:
    """What `ThresholdReport.check` found.

    far, frr: None if the data has no pairs known to be different, or the same.
    look: which of repeated checks this was; confidence: of the intervals, all checks together 95 %.
    doubtful_labels: samples that look mislabelled, the clearest first, if the verdict is better without them; else
    empty. without_doubtful: the check without these samples, or None.
    """

    far: RateToday | None
    frr: RateToday | None
    look: int
    confidence: float
    doubtful_labels: tuple[DoubtfulLabel, ...] = ()
    without_doubtful: "ThresholdCheck | None" = None

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of the rates, with two exceptions that cannot be told.

        These are a threshold that does not hold because of doubtful labels, and one at which genuine pairs may be
        accepted no more often than impostor pairs, though that is what the report promised.
        """
        if self._worst == "does not hold" and self.without_doubtful is not None:
            return "cannot be told"
        return "cannot be told" if self._worst == "holds" and self._may_be_chance else self._worst

    @property
    def status(self) -> int:
        """Exit status of the command: 0 holds, 1 does not hold, 3 cannot be told."""
        return {"holds": 0, "does not hold": 1, "cannot be told": 3}[self.verdict]

    def summary(self) -> str:
        """The verdict in the first line, then a line for each rate and for the clearest doubtful labels."""
        lines = [self._first_line()]
        lines += [_line(rate) for rate in (self.far, self.frr) if rate is not None]
        for sample in self.doubtful_labels[:_LABELS_SHOWN]:
            lines.append(
                f"row {sample.row}, labelled {sample.label}: mean score {sample.score:.3f} with {sample.label}, "
                f"{sample.likely_score:.3f} with {sample.likely_label}"
            )
        if len(self.doubtful_labels) > _LABELS_SHOWN:
            lines.append(f"and {len(self.doubtful_labels) - _LABELS_SHOWN:,} more")
        return "\n".join(lines)

    def _first_line(self) -> str:
        said = {
            "holds": "The threshold holds.",
            "does not hold": "The threshold does not hold. Choose a new one on recent data.",
            "cannot be told": "Too few identities to tell whether the threshold holds.",
        }[self.verdict]
        if self.without_doubtful is not None:
            if self._worst == "does not hold":
                said = "The threshold does not hold with these labels, some of which look wrong. Check them."
            said += f" Without {len(self.doubtful_labels):,} of the samples: {self.without_doubtful._worst}."
        elif self.verdict != self._worst:
            said = "The threshold keeps the report's rates, but may be no better than chance."
        if self.frr is not None and self.frr.today.errors == self.frr.today.pairs:
            said += f" All {self.frr.today.pairs:,} genuine pairs are rejected."
        elif self._may_be_chance and self._worst != "cannot be told":
            said += " Genuine pairs are not accepted measurably more often than impostor pairs."
        if self.frr is None:
            said += " FRR was not checked: no pairs are known to be the same."
        if self.far is None:
            said += " FAR was not checked: no pairs are known to be different."
        return said

    @property
    def _worst(self) -> Verdict:
        return min((rate.verdict for rate in (self.far, self.frr) if rate is not None), key=_WORST_FIRST.index)

    @property
    def _may_be_chance(self) -> bool:
        """Whether the intervals allow that genuine pairs are accepted no more often than impostor pairs."""
        accepted = 0.0 if self.far is None else self.far.today.high
        return self.frr is not None and 1 - self.frr.today.high <= accepted


class _Samples(NamedTuple):
    """What is known about each of N samples; ids 0, 1, … or None."""

    embeddings: Tensor
    offsets: Tensor | None = None
    labels: Tensor | None = None
    frames: Tensor | None = None
    tracks: Tensor | None = None
    cameras: Tensor | None = None

    def only(self, kept: Tensor) -> "_Samples":
        """Some of them, by a mask on the CPU."""
        known = {name: values[kept.to(values.device)] for name, values in self._asdict().items() if values is not None}
        return _Samples(**known)

    def pairs(self, groups: Tensor, told_apart: Tensor | None) -> PairDistances:
        """Positive pairs are those of one group, and if given, of two of `told_apart`."""
        return pairs_across_cameras(self.embeddings, groups, told_apart, offsets=self.offsets)


class _Counts(NamedTuple):
    """(T,) errors and pairs of each class or group; `both`: an impostor pair counts for both of its classes."""

    errors: Tensor
    pairs: Tensor
    unit: str
    both: bool = False
    is_bound: bool = False


def check_threshold(
    report: ThresholdFields,
    embeddings: Tensor | np.ndarray,
    *,
    labels: Labels | None = None,
    frames: Labels | None = None,
    tracks: Labels | None = None,
    cameras: Labels | None = None,
    tolerance: float = 2.0,
    look: int = 1,
    normalization: CohortNormalization | None = None,
    rows: Sequence[int] | None = None,
) -> ThresholdCheck:
    """Does the work of `ThresholdReport.check`; see there. rows: N numbers that name the samples; None: 0, 1, …"""
    vectors: Tensor = as_tensor(embeddings)
    check_embeddings(vectors)
    check_directions(vectors, "embeddings")
    check_number(tolerance, "tolerance")
    if not tolerance >= 1:
        raise ValueError(f"tolerance must be at least 1, the report's own rate; got {tolerance!r}")
    check_whole(look, "look", 1)
    count = len(vectors)
    if vectors.shape[1] != report.embedding_dim:
        raise ValueError(
            f"embeddings must have {report.embedding_dim} columns, as those that the threshold is from; got "
            f"{vectors.shape[1]}: is it another model's?"
        )
    if labels is not None and (frames is not None or tracks is not None):
        raise ValueError("give labels, or frames and tracks; got both")
    if is_across_cameras(report) and labels is not None and cameras is None:
        raise ValueError("the report's FRR is of genuine pairs across cameras: give cameras, one per embedding")
    if cameras is not None and not is_across_cameras(report):
        raise ValueError("the report's FRR counts genuine pairs of one camera too: leave cameras out")
    known = {"labels": labels, "frames": frames, "tracks": tracks, "cameras": cameras}
    numbered = {name: number_classes(of, count, name) for name, of in known.items() if of is not None}
    offsets = offsets_of_report(report.normalization, normalization, vectors)
    samples = _Samples(vectors.double(), offsets, **{name: ids for name, (ids, _) in numbered.items()})
    # Spent over all looks: Σ 6 / (π² n²) = 1. Two rates share it.
    confidence = 1 - 0.05 * 6 / (math.pi * look) ** 2 / 2
    far, frr = _rates(report, samples, tolerance, confidence)
    if far is None and frr is None:
        raise ValueError("no pair of these samples is known to be the same or different: every group has one sample")
    found = ThresholdCheck(far, frr, look, confidence)
    if samples.labels is None or found.verdict == "holds":
        return found
    pairs, names = samples.pairs(samples.labels, None), numbered["labels"][1]
    doubtful, kept = doubtful_labels(pairs, samples.labels, names, report.cosine, rows)
    if not doubtful:
        return found
    far, frr = _rates(report, samples.only(kept), tolerance, confidence)
    if (far is None, frr is None) != (found.far is None, found.frr is None):
        return found
    without = ThresholdCheck(far, frr, look, confidence)
    is_better = _WORST_FIRST.index(without._worst) > _WORST_FIRST.index(found._worst)
    return replace(found, doubtful_labels=doubtful, without_doubtful=without) if is_better else found


def is_across_cameras(report: ThresholdFields) -> bool:
    """Whether the report's FRR is of genuine pairs across cameras alone."""
    return report.cameras is not None and not report.cameras.same_camera_pairs


def _rates(
    report: ThresholdFields, samples: _Samples, tolerance: float, confidence: float
) -> tuple[RateToday | None, RateToday | None]:
    """FAR and FRR of the pairs that are known to be different, and the same; None without any."""
    far = frr = None
    at = torch.tensor([report.distance], dtype=torch.float64)
    if samples.labels is not None:
        pairs = samples.pairs(samples.labels, samples.cameras)
        genuine, impostors = (counts[:, 0] for counts in pairs.accepted(at))
        far = _Counts(impostors, pairs.negative_pairs, "identities", both=True)
        frr = _Counts(pairs.positive_pairs - genuine, pairs.positive_pairs, "identities")
    elif samples.frames is None and samples.tracks is None:
        pairs = samples.pairs(torch.arange(len(samples.embeddings)), None)
        far = _Counts(pairs.accepted(at)[1][:, 0], pairs.negative_pairs, "samples", both=True, is_bound=True)
    if samples.frames is not None:  # two crops of one track in a frame are one person
        pairs = samples.pairs(samples.frames, samples.tracks)
        far = _Counts(pairs.accepted(at, positives_only=True)[0][:, 0], pairs.positive_pairs, "frames")
    promised: ErrorRate | None = report.frr
    if samples.tracks is not None:
        pairs = samples.pairs(samples.tracks, samples.cameras)
        genuine = pairs.accepted(at, positives_only=True)[0][:, 0]
        frr = _Counts(pairs.positive_pairs - genuine, pairs.positive_pairs, "tracks")
        if report.cameras is not None and is_across_cameras(report) and samples.cameras is None:
            promised = report.cameras.within  # a track is of one camera
    with_pairs = sum(of.genuine_pairs > 0 for of in report.classes)
    return (
        _judge("FAR", report.far, len(report.classes), far, tolerance, confidence),
        _judge("FRR", promised, with_pairs, frr, tolerance, confidence),
    )


def _judge(
    name: str, promised: ErrorRate | None, classes: int, counts: _Counts | None, tolerance: float, confidence: float
) -> RateToday | None:
    """classes: that the promised rate is from. None if there is nothing to compare."""
    if promised is None or counts is None or not int(counts.pairs.sum()):
        return None
    share = 2 if counts.both else 1
    errors, pairs = int(counts.errors.sum()) // share, int(counts.pairs.sum()) // share
    groups = int((counts.pairs > 0).sum())
    trials = _independent_trials(promised)
    # As many per pair as in the report, but no more per identity.
    trials_today = trials * min(pairs / promised.pairs, groups / max(1, classes))
    if 0 < errors < pairs:
        low, high = class_rate_interval(
            counts.errors.cpu(), counts.pairs.cpu(), pairs_span_classes=counts.both, confidence=confidence
        )
    else:  # how errors cluster shows in the report's alone
        low, high = interval_of_share(trials_today * (errors > 0), trials_today, confidence)
    today = ErrorRate(errors, pairs, float(low), float(high))
    # In odds, so that a rate of 50 % has a limit below 100 % too.
    odds = tolerance * promised.rate
    limit = max(promised.high, odds / (1 - promised.rate + odds))
    is_as_good = errors == promised.errors == 0 and trials_today >= trials
    verdict: Verdict = "cannot be told"
    if is_as_good or today.high <= limit < 1:
        verdict = "holds"
    elif today.low > limit and not counts.is_bound:
        verdict = "does not hold"
    needed = None
    may_be_told = limit < 1 and today.rate != limit and not (counts.is_bound and today.rate > limit)
    if verdict == "cannot be told" and may_be_told:
        needed = math.ceil(groups * _times_the_data(today, limit, trials_today, confidence))
    return RateToday(name, promised, limit, today, counts.is_bound, verdict, groups, counts.unit, needed)


def _times_the_data(today: ErrorRate, limit: float, trials: float, confidence: float) -> float:
    """How many times as many groups would decide, if today's rate remains; trials: independent pairs of today."""
    if today.errors in (0, today.pairs):
        kept = limit if today.errors else 1 - limit
        return math.log((1 - confidence) / 2) / math.log(kept) / trials
    side = today.high - today.rate if today.rate < limit else today.rate - today.low
    return (side / (limit - today.rate)) ** 2


def _independent_trials(rate: ErrorRate) -> float:
    """How many independent pairs have the rate's 95 % interval."""
    if rate.errors in (0, rate.pairs):
        return math.log(0.025) / math.log1p(-min(rate.high - rate.low, 0.975))
    deviation = (rate.high - rate.low) / (2 * 1.96)
    return min(rate.pairs, rate.rate * (1 - rate.rate) / max(deviation, 1e-9) ** 2)


def _line(rate: RateToday) -> str:
    today = rate.today
    at_most = "at most " if rate.is_bound else ""
    text = (
        f"{rate.name} {at_most}{today.rate:.3g} today [{today.low:.3g}, {today.high:.3g}], {today.errors:,} of "
        f"{today.pairs:,} pairs of {rate.groups:,} {rate.unit}; {rate.promised.rate:.3g} in the report, kept up to "
        f"{rate.limit:.3g}: {rate.verdict}"
    )
    if rate.verdict != "cannot be told":
        return text
    if rate.limit == 1:
        return text + "; no rate exceeds the report's interval: choose a threshold on more identities"
    if rate.groups_needed is not None:
        return text + f"; about {rate.groups_needed:,} {rate.unit} would tell"
    if rate.is_bound:
        return text + "; some of these pairs may be of one person: name frames (samples known to be different)"
    return text
