"""Tests whether a threshold is still valid: compares new error rates with those of its report."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from pml_ext._checks import check_whole
from pml_ext.functional.pairwise.pair_distances import PairDistances
from pml_ext.functional.verification.intervals import class_rate_interval, interval_of_share
from pml_ext.metrics.labels import Labels, number_classes
from pml_ext.metrics.normalization import CohortNormalization, offsets_of_pairs
from pml_ext.metrics.threshold.samples import (
    Samples,
    as_tensor,
    require_cohort,
    require_embeddings,
)
from pml_ext.metrics.threshold.structures import ErrorRate, ThresholdFields

Verdict = Literal["holds", "does not hold", "cannot be told"]

_WORST_FIRST: tuple[Verdict, ...] = ("does not hold", "cannot be told", "holds")
_TOLERANCE = 2.0  # factor on the report's odds up to which a rate holds
_LABELS_SHOWN = 5
# Thresholds for doubtful labels.
_SHARE_BY_CHANCE = 0.05
_SIGNIFICANCE = 0.01
_BLOCK_ROWS = 1024


@dataclass(frozen=True)
class RateToday:
    """One error rate in the report and on new data.

    promised: the report's rate; limit: largest rate that still holds; today: the new rate, with the verdict's interval.
    is_bound: the new rate is an upper bound, because every pair was counted as an impostor pair.
    verdict: "holds" if the interval lies at or below the limit, "does not hold" if it lies above.
    groups, unit: number of identities (or "frames", "tracks", "samples") of the pairs.
    groups_needed: approximate number for a decision; None if decided, or if no number is enough.
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

    def summary(self) -> str:
        """One line."""
        today, at_most = self.today, "at most " if self.is_bound else ""
        rate = f"{self.name} {at_most}{today.rate:.3g} today [{today.low:.3g}, {today.high:.3g}]"
        pairs = f"{today.errors:,} of {today.pairs:,} pairs of {self.groups:,} {self.unit}"
        promise = f"{self.promised.rate:.3g} in the report, limit {self.limit:.3g}"
        text = f"{rate}, {pairs}; {promise}: {self.verdict}"
        if self.verdict != "cannot be told":
            return text
        if self.limit == 1:
            return f"{text}; the report's interval excludes no rate. Choose a threshold on more identities"
        if self.groups_needed is not None:
            return f"{text}; about {self.groups_needed:,} {self.unit} would decide"
        if self.is_bound:
            return f"{text}; some of these pairs may be genuine. Give frames (samples known to be different)"
        return text


@dataclass(frozen=True)
class DoubtfulLabel:
    """A sample that looks mislabelled.

    row: row in the embeddings or their file; score: mean score with the other samples of its label; likely_label:
    best matching class; likely_score: mean score with that class.
    """

    row: int
    label: int | str
    score: float
    likely_label: int | str
    likely_score: float

    def summary(self) -> str:
        """One line."""
        return (
            f"row {self.row}, labelled {self.label}: mean score {self.score:.3f} with {self.label}, "
            f"{self.likely_score:.3f} with {self.likely_label}"
        )


@dataclass(frozen=True)
class ThresholdCheck:
    """Result of `ThresholdReport.check`.

    far, frr: None if the data has no pairs known to be impostor pairs, or genuine pairs.
    look: which of repeated checks this was; confidence: of the intervals, all checks together 95 %.
    doubtful_labels: samples that look mislabelled, clearest first, if the verdict improves without them; else empty.
    without_doubtful: the check without these samples, or None.
    """

    far: RateToday | None
    frr: RateToday | None
    look: int
    confidence: float
    doubtful_labels: tuple[DoubtfulLabel, ...] = ()
    without_doubtful: "ThresholdCheck | None" = None

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of the rates, except for two cases that are "cannot be told".

        1. The threshold does not hold, but it does without the doubtful labels.
        2. The rates hold, but genuine pairs may be accepted no more often than impostor pairs.
        """
        is_uncertain = self._worst == "holds" and self._may_be_chance
        is_label_problem = self._worst == "does not hold" and self.without_doubtful is not None
        return "cannot be told" if is_uncertain or is_label_problem else self._worst

    @property
    def status(self) -> int:
        """Exit status of the command: 0 holds, 1 does not hold, 3 cannot be told."""
        return {"holds": 0, "does not hold": 1, "cannot be told": 3}[self.verdict]

    def summary(self) -> str:
        """Returns the verdict, then one line per rate, and the clearest doubtful labels."""
        lines = [self._first_line()]
        lines += [rate.summary() for rate in self._rates]
        lines += [sample.summary() for sample in self.doubtful_labels[:_LABELS_SHOWN]]
        if len(self.doubtful_labels) > _LABELS_SHOWN:
            lines.append(f"and {len(self.doubtful_labels) - _LABELS_SHOWN:,} more")
        return "\n".join(lines)

    def _first_line(self) -> str:
        sentences = {
            "holds": "The threshold holds.",
            "does not hold": "The threshold does not hold. Choose a new one on recent data.",
            "cannot be told": "Too few identities to decide whether the threshold holds.",
        }
        text = sentences[self.verdict]
        if self.without_doubtful is not None:
            if self._worst == "does not hold":
                text = "The threshold does not hold with these labels, some of which look wrong. Check them."
            text += f" Without {len(self.doubtful_labels):,} of the samples: {self.without_doubtful._worst}."
        elif self.verdict != self._worst:
            text = "The threshold keeps the report's rates, but may be no better than chance."
        if self.frr is not None and self.frr.today.errors == self.frr.today.pairs:
            text += f" All {self.frr.today.pairs:,} genuine pairs are rejected."
        elif self._may_be_chance and self._worst != "cannot be told":
            text += " Genuine pairs are not significantly more likely to be accepted than impostor pairs."
        if self.frr is None:
            text += " FRR was not checked: no pairs are known to be genuine."
        if self.far is None:
            text += " FAR was not checked: no pairs are known to be impostor pairs."
        return text

    @property
    def _rates(self) -> list[RateToday]:
        return [rate for rate in (self.far, self.frr) if rate is not None]

    @property
    def _worst(self) -> Verdict:
        return min((rate.verdict for rate in self._rates), key=_WORST_FIRST.index)

    @property
    def _may_be_chance(self) -> bool:
        """Returns whether, within the intervals, genuine pairs may be accepted no more often than impostor pairs."""
        accepted = 0.0 if self.far is None else self.far.today.high
        return self.frr is not None and 1 - self.frr.today.high <= accepted


@dataclass(frozen=True)
class _NewData:
    """New samples, each its own class, and (N,) ids of labels, frames, tracks and cameras if known."""

    samples: Samples
    ids: Mapping[str, Tensor]

    def subset(self, mask: Tensor) -> "_NewData":
        """Returns the samples selected by a mask."""
        return _NewData(self.samples.subset(mask), {name: ids[mask] for name, ids in self.ids.items()})

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
    known: Mapping[str, Labels | None],
    *,
    look: int,
    normalization: CohortNormalization | None,
    rows: Sequence[int] | None,
) -> ThresholdCheck:
    """Implements `ThresholdReport.check`; known: its labels, frames, tracks and cameras."""
    vectors: Tensor = as_tensor(embeddings)
    require_embeddings(vectors, "embeddings", report.embedding_dim)
    check_whole(look, "look", 1)
    given = {name for name, values in known.items() if values is not None}
    if "labels" in given and given & {"frames", "tracks"}:
        raise ValueError("give labels, or frames and tracks; got both")
    if report.is_across_cameras and "labels" in given and "cameras" not in given:
        raise ValueError("the report's FRR is of genuine pairs across cameras. Give cameras, one per embedding")
    if "cameras" in given and not report.is_across_cameras:
        raise ValueError("the report's FRR includes genuine pairs of one camera. Leave cameras out")
    ids, names = dict[str, Tensor](), dict[str, tuple[int | str, ...]]()
    for kind, values in known.items():
        if values is not None:
            ids[kind], names[kind] = number_classes(values, len(vectors), kind)
    require_cohort(report.normalization, normalization)
    offsets = offsets_of_pairs(normalization, vectors, known.get("labels"), rows=rows)
    data = _NewData(Samples(vectors.double(), torch.arange(len(vectors)), offsets=offsets), ids)
    # Spent over all looks: Σ 6 / (π² n²) = 1. Two rates share it.
    confidence = 1 - 0.05 * 6 / (math.pi * look) ** 2 / 2
    far, frr = _rates(report, data, confidence)
    if far is None and frr is None:
        raise ValueError("no pair of these samples is known to be the same or different: every group has one sample")
    with_all = ThresholdCheck(far, frr, look, confidence)
    if "labels" not in given or with_all.verdict == "holds":
        return with_all
    pairs = replace(data.samples, ids=ids["labels"]).pairs()
    doubtful, kept = _find_doubtful_labels(pairs, ids["labels"], names["labels"], report.cosine, rows)
    if not doubtful:
        return with_all
    far, frr = _rates(report, data.subset(kept), confidence)
    if (far is None, frr is None) != (with_all.far is None, with_all.frr is None):
        return with_all
    without = ThresholdCheck(far, frr, look, confidence)
    if _WORST_FIRST.index(without._worst) <= _WORST_FIRST.index(with_all._worst):
        return with_all
    return replace(with_all, doubtful_labels=doubtful, without_doubtful=without)


def _rates(report: ThresholdFields, data: _NewData, confidence: float) -> tuple[RateToday | None, RateToday | None]:
    """Returns FAR of known impostor pairs and FRR of known genuine pairs; None if there are none."""
    far = frr = None
    at = torch.tensor([report.distance], dtype=torch.float64)
    if "labels" in data.ids:
        pairs = data.pairs("labels", "cameras")
        genuine, impostors = (counts[:, 0] for counts in pairs.accepted(at))
        far = _Counts(impostors, pairs.negative_pairs, "identities", is_shared=True)
        frr = _Counts(pairs.positive_pairs - genuine, pairs.positive_pairs, "identities")
    elif "frames" not in data.ids and "tracks" not in data.ids:
        pairs = data.samples.pairs()
        impostors = pairs.accepted(at)[1][:, 0]
        far = _Counts(impostors, pairs.negative_pairs, "samples", is_shared=True, is_bound=True)
    if "frames" in data.ids:  # two crops of one track in a frame are one person
        pairs = data.pairs("frames", "tracks")
        accepted = pairs.accepted(at, positives_only=True)[0][:, 0]
        far = _Counts(accepted, pairs.positive_pairs, "frames")
    promised_frr: ErrorRate | None = report.frr
    if "tracks" in data.ids:
        pairs = data.pairs("tracks", "cameras")
        genuine = pairs.accepted(at, positives_only=True)[0][:, 0]
        frr = _Counts(pairs.positive_pairs - genuine, pairs.positive_pairs, "tracks")
        if report.cameras is not None and report.is_across_cameras and "cameras" not in data.ids:
            promised_frr = report.cameras.within  # a track is of one camera
    classes_with_genuine = sum(errors.genuine_pairs > 0 for errors in report.classes)
    return (
        _judge("FAR", report.far, len(report.classes), far, confidence),
        _judge("FRR", promised_frr, classes_with_genuine, frr, confidence),
    )


def _judge(
    name: str, promised: ErrorRate | None, classes: int, counts: _Counts | None, confidence: float
) -> RateToday | None:
    """Returns one rate's verdict, or None without pairs. classes: number of classes of the promised rate."""
    if promised is None or counts is None or not int(counts.pairs.sum()):
        return None
    share = 2 if counts.is_shared else 1
    errors, pairs = int(counts.errors.sum()) // share, int(counts.pairs.sum()) // share
    groups = int((counts.pairs > 0).sum())
    trials = _independent_trials(promised)
    # Independent trials per pair as in the report, but not more per identity.
    trials_today = trials * min(pairs / promised.pairs, groups / max(1, classes))
    if 0 < errors < pairs:
        low, high = class_rate_interval(
            counts.errors.cpu(), counts.pairs.cpu(), pairs_span_classes=counts.is_shared, confidence=confidence
        )
    else:  # without new errors, only the report's errors show their clustering
        low, high = interval_of_share(trials_today * (errors > 0), trials_today, confidence)
    today = ErrorRate(errors, pairs, float(low), float(high))
    # In odds, so that a rate of 50 % has a limit below 100 % too.
    odds = _TOLERANCE * promised.rate
    limit = max(promised.high, odds / (1 - promised.rate + odds))
    is_as_good = errors == promised.errors == 0 and trials_today >= trials
    verdict: Verdict = "cannot be told"
    if is_as_good or today.high <= limit < 1:
        verdict = "holds"
    elif today.low > limit and not counts.is_bound:
        verdict = "does not hold"
    needed = None
    if verdict == "cannot be told":
        could_decide = limit < 1 and today.rate != limit
        could_confirm = today.rate <= limit or not counts.is_bound
        if could_decide and could_confirm:
            needed = math.ceil(groups * _times_the_data(today, limit, trials_today, confidence))
    return RateToday(
        name=name,
        promised=promised,
        limit=limit,
        today=today,
        is_bound=counts.is_bound,
        verdict=verdict,
        groups=groups,
        unit=counts.unit,
        groups_needed=needed,
    )


def _times_the_data(today: ErrorRate, limit: float, trials: float, confidence: float) -> float:
    """Returns the factor of groups needed for a decision at today's rate; trials: today's independent pairs."""
    if today.errors in (0, today.pairs):
        kept = limit if today.errors else 1 - limit
        return math.log((1 - confidence) / 2) / math.log(kept) / trials
    side = today.high - today.rate if today.rate < limit else today.rate - today.low
    return (side / (limit - today.rate)) ** 2


def _independent_trials(rate: ErrorRate) -> float:
    """Returns the number of independent pairs that gives the rate's 95 % interval."""
    if rate.errors in (0, rate.pairs):
        return math.log(0.025) / math.log1p(-min(rate.high - rate.low, 0.975))
    deviation = (rate.high - rate.low) / (2 * 1.96)
    return min(rate.pairs, rate.rate * (1 - rate.rate) / max(deviation, 1e-9) ** 2)


def _find_doubtful_labels(
    pairs: PairDistances,
    ids: Tensor,
    names: Sequence[int | str],
    threshold: float,
    rows: Sequence[int] | None,
) -> tuple[tuple[DoubtfulLabel, ...], Tensor]:
    """Find samples whose mean score is below the threshold with their own class, and at or above it with another.

    The score with the other class must be in the top 5 % of such scores among samples that their own class accepts. If
    images only became harder, about 5 % of the rejected samples would reach that score. Labels are doubtful only if
    significantly more do (binomial test, 1 %).

    Args:
        ids, names: (N,) ids of the pairs' samples, and the name of each id.
        threshold: a score.
        rows: N row numbers of the samples; None: 0, 1, …
    Returns:
        Doubtful labels, best match first, and an (N,) mask of all other samples, on the CPU.
    """
    from scipy.special import bdtrc  # a dependency of pytorch-metric-learning's scikit-learn

    index, sizes = pairs.index, torch.bincount(pairs.index)
    sums = pairs.other.new_zeros(len(sizes), pairs.other.shape[1])
    sums.index_add_(0, index, pairs.other)
    others = sums[index] - pairs.other
    own = (others * pairs.unit).sum(dim=1) / (sizes[index] - 1)  # nan without other samples
    is_rejected = own < threshold
    best, likely = _best_other_class(pairs, ~is_rejected)
    by_chance = best[own >= threshold].sort().values
    level = threshold
    if len(by_chance):
        rare = by_chance[int((1 - _SHARE_BY_CHANCE) * len(by_chance))]
        level = max(level, float(rare))
    places = torch.nonzero(is_rejected & (best >= level)).flatten()
    if bdtrc(len(places) - 1, int(is_rejected.sum()), _SHARE_BY_CHANCE) > _SIGNIFICANCE:
        places = places[:0]
    places = places[best[places].argsort(descending=True)]
    samples = torch.argsort(ids, stable=True)[places.cpu()]
    doubtful = []
    for sample, place in zip(samples.tolist(), places.tolist(), strict=True):
        row = sample if rows is None else int(rows[sample])
        label, likely_label = names[int(ids[sample])], names[int(likely[place])]
        score, likely_score = float(own[place]), float(best[place])
        doubtful.append(DoubtfulLabel(row, label, score, likely_label, likely_score))
    kept = torch.ones(len(ids), dtype=torch.bool)
    kept[samples] = False
    return tuple(doubtful), kept


def _best_other_class(pairs: PairDistances, is_member: Tensor) -> tuple[Tensor, Tensor]:
    """Returns (N,) mean scores with each sample's best other class, and that class.

    is_member: (N,) mask of the samples in their class's mean, so that wrong labels can be excluded.
    """
    index, classes = pairs.index, len(pairs.classes)
    members = index[is_member]
    counts = torch.bincount(members, minlength=classes)
    sums = pairs.other.new_zeros(classes, pairs.other.shape[1])
    means = sums.index_add(0, members, pairs.other[is_member]) / counts.clamp_min(1)[:, None]
    blocks = []
    for unit, own in zip(pairs.unit.split(_BLOCK_ROWS), index.split(_BLOCK_ROWS), strict=True):
        scores = unit @ means.T
        scores[:, counts == 0] = -torch.inf
        scores.scatter_(1, own[:, None], -torch.inf)
        blocks.append(scores.max(dim=1))
    best, likely = (torch.cat(parts) for parts in zip(*blocks, strict=True))
    return best, likely
