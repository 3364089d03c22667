"""Whether a threshold still holds: today's error rates against those of its report."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from pml_ext._checks import check_embeddings, check_finite, check_number, check_whole
from pml_ext.functional.pairwise.pair_distances import PairDistances
from pml_ext.functional.verification.class_interval import class_rate_interval
from pml_ext.metrics.cohort_normalization import CohortNormalization
from pml_ext.metrics.threshold.class_ids import Labels, number_classes
from pml_ext.metrics.threshold.fields import ThresholdFields
from pml_ext.metrics.threshold.measure import check_directions
from pml_ext.metrics.threshold.normalized import offsets_of_report
from pml_ext.metrics.threshold.rate_fields import ErrorRate

Verdict = Literal["holds", "does not hold", "cannot be told"]


@dataclass(frozen=True)
class RateToday:
    """One error rate, then and now.

    promised: of the report; limit: up to where the rate counts as kept; today: with the interval of the verdict.
    is_bound: today's rate bounds the true one from above: all pairs were taken for impostor pairs.
    verdict: "holds" if the interval lies at or below the limit, "does not hold" if it lies above.
    pairs_needed: about how many pairs would tell; None where it is told, or no number of pairs would.
    """

    name: str
    promised: ErrorRate
    limit: float
    today: ErrorRate
    is_bound: bool
    verdict: Verdict
    pairs_needed: int | None


@dataclass(frozen=True)
class ThresholdCheck:
    """What `ThresholdReport.check` found.

    far, frr: None where the data has no pairs known to be different, or the same.
    look: which of repeated checks this was; confidence: of the intervals, all checks together 95 %.
    """

    far: RateToday | None
    frr: RateToday | None
    look: int
    confidence: float

    @property
    def verdict(self) -> Verdict:
        """Of all rates that were checked: one that does not hold decides, then one that cannot be told."""
        found = {rate.verdict for rate in (self.far, self.frr) if rate is not None}
        return next(v for v in ("does not hold", "cannot be told", "holds") if v in found)

    @property
    def status(self) -> int:
        """Exit status of the command: 0 holds, 1 does not hold, 3 cannot be told."""
        return {"holds": 0, "does not hold": 1, "cannot be told": 3}[self.verdict]

    def summary(self) -> str:
        """The verdict in one sentence, then a line for each rate."""
        checked = [rate for rate in (self.far, self.frr) if rate is not None]
        missing = " FRR was not checked: no pairs are known to be the same." if self.frr is None else ""
        missing = " FAR was not checked: no pairs are known to be different." if self.far is None else missing
        told = {
            "holds": "The threshold holds.",
            "does not hold": "The threshold does not hold: choose it again on data of today.",
            "cannot be told": "Too few pairs to tell whether the threshold holds.",
        }
        return "\n".join([told[self.verdict] + missing, *map(_line, checked)])


def check_threshold(
    report: ThresholdFields,
    embeddings: Tensor,
    labels: Labels | None,
    frames: Labels | None,
    tracks: Labels | None,
    *,
    tolerance: float,
    look: int,
    normalization: CohortNormalization | None,
) -> ThresholdCheck:
    """Does the work of `ThresholdReport.check`; see there."""
    check_embeddings(embeddings)
    check_finite(embeddings)
    check_directions(embeddings, "embeddings")
    check_number(tolerance, "tolerance")
    if not tolerance >= 1:
        raise ValueError(f"tolerance must be at least 1, the report's own rate; got {tolerance!r}")
    check_whole(look, "look", 1)
    count = len(embeddings)
    if embeddings.shape[1] != report.embedding_dim:
        raise ValueError(
            f"embeddings must have {report.embedding_dim} columns, as those that the threshold is from; got "
            f"{embeddings.shape[1]}: is it another model's?"
        )
    if count < 2:
        raise ValueError(f"a check needs at least two embeddings; got {count}")
    if labels is not None and (frames is not None or tracks is not None):
        raise ValueError("give labels, or frames and tracks; got both")
    ids = {
        name: None if given is None else number_classes(given, count, name)[0]
        for name, given in (("labels", labels), ("frames", frames), ("tracks", tracks))
    }
    # Spent over all looks: Σ 6 / (π² n²) = 1. Two rates share it.
    confidence = 1 - 0.05 * 6 / (math.pi * look) ** 2 / 2
    at = torch.tensor([report.distance], dtype=torch.float64)
    wide = embeddings.double()
    offsets = offsets_of_report(report.normalization, normalization, embeddings)

    def known_same(groups: Tensor) -> tuple[Tensor, Tensor]:
        """Accepted pairs and all pairs of each group."""
        pairs = PairDistances(wide, groups, offsets=offsets)
        return pairs.accepted(at, positives_only=True)[0][:, 0].cpu(), pairs.positive_pairs.cpu()

    def rate(name: str, promised: ErrorRate, errors: Tensor, pairs: Tensor, spans: bool, is_bound: bool) -> RateToday:
        return _judge(name, promised, errors, pairs, spans, is_bound, tolerance, confidence)

    far = frr = None
    if ids["labels"] is not None:
        pairs = PairDistances(wide, ids["labels"], offsets=offsets)
        genuine, impostors = (counts[:, 0].cpu() for counts in pairs.accepted(at))
        if pairs.total_negative_pairs:
            far = rate("FAR", report.far, impostors, pairs.negative_pairs.cpu(), True, False)
        if pairs.total_positive_pairs:
            same = pairs.positive_pairs.cpu()
            frr = rate("FRR", report.frr, same - genuine, same, False, False)
    elif ids["frames"] is None and ids["tracks"] is None:
        pairs = PairDistances(wide, torch.arange(count), offsets=offsets)
        far = rate("FAR", report.far, pairs.accepted(at)[1][:, 0].cpu(), pairs.negative_pairs.cpu(), True, True)
    if ids["frames"] is not None:
        accepted, different = known_same(ids["frames"])
        if ids["tracks"] is not None:  # two crops of one track in a frame are one person
            both = ids["frames"] * (int(ids["tracks"].max()) + 1) + ids["tracks"]
            frame_of = torch.zeros(int(both.max()) + 1, dtype=torch.int64).scatter_(0, both, ids["frames"])
            same_accepted, same = known_same(both)
            frame = frame_of[both.unique()]
            accepted = accepted.index_add(0, frame, -same_accepted)
            different = different.index_add(0, frame, -same)
        if int(different.sum()):
            far = rate("FAR", report.far, accepted, different, False, False)
    if ids["tracks"] is not None:
        accepted, same = known_same(ids["tracks"])
        if int(same.sum()):
            frr = rate("FRR", report.frr, same - accepted, same, False, False)
    if far is None and frr is None:
        raise ValueError("no pair of these samples is known to be the same or different: every group has one sample")
    return ThresholdCheck(far, frr, look, confidence)


def _judge(
    name: str, promised: ErrorRate, errors: Tensor, pairs: Tensor, spans: bool, is_bound: bool, tolerance: float,
    confidence: float,
) -> RateToday:  # fmt: skip
    low, high = class_rate_interval(errors, pairs, pairs_span_classes=spans, confidence=confidence)
    share = 2 if spans else 1
    today = ErrorRate(int(errors.sum()) // share, int(pairs.sum()) // share, low, high)
    limit = min(1.0, max(promised.high, tolerance * promised.rate))
    verdict: Verdict = "cannot be told"
    if high <= limit:
        verdict = "holds"
    elif low > limit and not is_bound:
        verdict = "does not hold"
    needed = None
    if verdict == "cannot be told" and today.rate != limit and not (is_bound and today.rate > limit):
        side = high - today.rate if today.rate < limit else today.rate - low
        needed = math.ceil(today.pairs * (side / (limit - today.rate)) ** 2)
    return RateToday(name, promised, limit, today, is_bound, verdict, needed)


def _line(rate: RateToday) -> str:
    today = rate.today
    at_most = "at most " if rate.is_bound else ""
    text = (
        f"{rate.name} {at_most}{today.rate:.3g} today [{today.low:.3g}, {today.high:.3g}], {today.errors:,} of "
        f"{today.pairs:,} pairs; {rate.promised.rate:.3g} in the report, kept up to {rate.limit:.3g}: {rate.verdict}"
    )
    if rate.pairs_needed is not None:
        text += f"; about {rate.pairs_needed:,} pairs would tell"
    elif rate.verdict == "cannot be told" and rate.is_bound:
        text += "; some of these pairs may be of one person: name frames (samples known to be different)"
    return text
