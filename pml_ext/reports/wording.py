"""A threshold report in words: what it means for the person who decides, and its facts line by line."""

from decimal import Decimal

from pml_ext.functional.verification.roc import ROC, equal_error_rate, roc_auc
from pml_ext.metrics.threshold.structures import (
    ClassErrors,
    ErrorRate,
    ExtrapolationCheck,
    GalleryRates,
    GroupComparison,
    MeanRate,
    ThresholdFields,
)

NOT_EXTRAPOLATED = "because its 95 % interval spans 0 to 1: measure more identities"
_NAMED = 3
# A share is written as "a of b" where a is off by no more than this.
_ROUNDING = 0.1
# From how many times the pooled FRR the mean over classes is told beside it.
_UNLIKE = 1.5
# Rates that read easily, for counts of classes above one.
_ROUND = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)


def meaning(report: ThresholdFields) -> str:
    """One sentence for a reader who does not know FAR."""
    accepted = _share(report.far, "comparisons of two different identities", "accepted")
    rejected = _share(report.frr, "comparisons of the same identity", "rejected")
    mean = report.mean_frr
    if max(mean, report.frr.rate) > _UNLIKE * min(mean, report.frr.rate):
        rejected += f", but {percent(mean)} on average over the identities: some have far more samples than others"
    return f"O{accepted[1:]}; {rejected}."


def _share(rate: ErrorRate, kind: str, error: str) -> str:
    errors, pairs = as_counts(rate)
    count = f"{errors:,}" if errors in (0, pairs) else f"about {errors:,}"
    count = count if errors else "none"
    return f"of {pairs:,} {kind}, {count} {'is' if errors <= 1 else 'are'} wrongly {error}"


def as_counts(rate: ErrorRate) -> tuple[int, int]:
    """(a, b): the rate as a of b comparisons, b the smallest power of ten for which a is right within a tenth.

    The same holds for the share of the rest. Where no pair is an error, or every one, b is the number of pairs.
    """
    if rate.errors in (0, rate.pairs):
        return rate.errors, rate.pairs
    of = 10
    while any(abs(round(share * of) / of / share - 1) > _ROUNDING for share in (rate.rate, 1 - rate.rate)):
        of *= 10
    return round(rate.rate * of), of


def percent(value: float) -> str:
    """Three significant digits: 0.1 %, 63.3 %, 0.00123 %."""
    return f"{Decimal(f'{100 * value:.3g}'):f} %"


def with_interval(rate: ErrorRate | MeanRate) -> str:
    """The rate with its 95 % interval."""
    return f"{percent(rate.rate)} ({percent(rate.low)} to {percent(rate.high)})"


def target_in_words(report: ThresholdFields) -> str:
    """What the threshold was chosen for, for a reader who does not know FAR."""
    target = report.target
    if target.value is None:
        return "so that both kinds of errors together are fewest"
    if report.searches is not None and target.kind == "fpir":
        enrolled = f"{report.searches.gallery_size:,} identities"
        return (
            f"so that at most {percent(target.value)} of searches with an unknown probe among {enrolled} return a match"
        )
    return f"so that at most {percent(target.value)} are wrongly {'accepted' if target.kind == 'far' else 'rejected'}"


def cameras_in_words(report: ThresholdFields) -> str:
    """The error rates of genuine pairs by camera, as a sentence; empty where cameras are not known."""
    cameras = report.cameras
    if cameras is None or not cameras.across:
        return ""
    rejected = f"Of the pairs of one identity seen by two cameras, {with_interval(cameras.across)} are rejected"
    within = f"; of those seen by one camera, {with_interval(cameras.within)}" if cameras.within else ""
    counted = "both kinds count" if cameras.same_camera_pairs else "pairs of one camera do not count on this page"
    return f"{rejected}{within}; {counted}."


def refused_in_words(report: ThresholdFields) -> str:
    """How many classes are rejected more than twice as often as all pairs are, that rate rounded up to a simple one."""
    rates = [c.frr for c in report.classes if c.frr is not None]
    limit = next((rate for rate in _ROUND if rate >= 2 * report.frr.rate), _ROUND[-1])
    refused = sum(rate > limit for rate in rates)
    are = "is" if refused == 1 else "are"
    return f"{refused} of {len(rates)} classes {are} refused in more than {percent(limit)} of their own pairs"


def overall_in_words(report: ThresholdFields) -> str:
    """Equal error rate and area under the ROC curve; empty for a loaded report, which has no curves."""
    if report.curves is None:
        return ""
    roc = ROC(report.curves.distances, report.curves.genuine, report.curves.impostors)
    eer, auc = percent(float(equal_error_rate(roc).far)), percent(float(roc_auc(roc)))
    return (
        f"The equal error rate (EER) is {eer}: the rate of both errors where they are equal. The area under the ROC "
        f"curve (AUC) is {auc}: how often a pair of one class scores higher than a pair of two classes."
    )


def facts(report: ThresholdFields) -> list[tuple[str, str]]:
    """The report as (name, text) lines."""
    target, checkpoint = report.target, report.checkpoint
    across = report.cameras is not None and not report.cameras.same_camera_pairs
    copied = f", {report.copies} of them copies" if report.copies else ""
    rows = [
        ("in words", meaning(report)),
        ("threshold", _threshold(report)),
        ("chosen for", "the best utility" if target.value is None else f"{target.kind.upper()} <= {target.value:g}"),
        ("FAR", _rate(report.far, "impostor")),
        ("FRR", _rate(report.frr, "genuine, across cameras," if across else "genuine")),
        *_cameras(report),
        *_searches(report),
        *_groups(report),
        ("highest FAR", _names(report.worst_classes("far", _NAMED), "far")),
        ("highest FRR", _names(report.worst_classes("frr", _NAMED), "frr")),
        ("refused", refused_in_words(report)),
        ("OPIS", _consistency(report)),
        ("stability", _stability(report)),
        *_calibration(report),
        (
            "measured on",
            f"{report.samples} samples{copied}, {len(report.classes)} classes, {report.embedding_dim} dimensions",
        ),
        ("data", report.data or "not named"),
        ("checkpoint", f"{checkpoint.file}, SHA-256 {checkpoint.sha256}" if checkpoint else "not named"),
        ("made", f"{report.made or 'at an unknown time'} by pml_ext {report.version}"),
    ]
    return [*rows, ("copies", copies(report, _NAMED))] if report.copied_rows else rows


def score_in_words(report: ThresholdFields) -> str:
    """What is compared with the threshold, for a reader of the page."""
    cohort = report.normalization
    if cohort is None:
        return "cosine similarity"
    of = "the gallery" if cohort.cohort == "gallery" else f"a cohort of {cohort.samples:,}"
    return f"normalised score (cosine similarity less how close both are to their {cohort.k} nearest samples of {of})"


def _threshold(report: ThresholdFields) -> str:
    cohort = report.normalization
    if cohort is None:
        return f"cosine >= {report.cosine:.6f}, which is L2 distance <= {report.distance:.6f}"
    of = "the gallery itself" if cohort.cohort == "gallery" else f"a cohort, SHA-256 {str(cohort.sha256)[:12]}…"
    return (
        f"normalised score >= {report.cosine:.6f}, by the {cohort.k} nearest of {cohort.samples} samples of {of}; "
        f"strength {cohort.strength:g}"
    )


def copies(report: ThresholdFields, shown: int) -> str:
    """Which rows are copies of which."""
    (row, first), *others = report.copied_rows[:shown]
    named = "".join(f", {row} of {first}" for row, first in others)
    more = len(report.copied_rows) - shown
    return f"row {row} is a copy of row {first}{named}" + (f" and {more:,} more" if more > 0 else "")


def _cameras(report: ThresholdFields) -> list[tuple[str, str]]:
    cameras = report.cameras
    if cameras is None:
        return []
    kinds = [
        f"FRR {percent(rate.rate)} {where} ({rate.errors} of {rate.pairs} genuine pairs)"
        for where, rate in (("across cameras", cameras.across), ("within one camera", cameras.within))
        if rate
    ]
    counted = "both kinds count" if cameras.same_camera_pairs else "pairs within one camera do not count above"
    return [("cameras", f"{cameras.cameras}; {'; '.join(kinds)}; {counted}")]


def _searches(report: ThresholdFields) -> list[tuple[str, str]]:
    """A line for each size of gallery."""
    found = report.searches
    if found is None:
        return []
    lines = [(f"among {one.enrolled:,}", search_in_words(one)) for one in found.sizes]
    return [*lines, ("extrapolation", held_out_in_words(found.held_out))] if found.held_out else lines


def held_out_in_words(check: ExtrapolationCheck) -> str:
    """How far extrapolation from some identities is from what all of them give."""
    said, measured = check.predicted, check.measured
    verdict = "inside" if said.low <= measured <= said.high else "outside"
    return (
        f"from {check.identities:,} identities FPIR among {check.enrolled:,} at cosine {check.cosine:.4f} would be "
        f"{said.rate:.3g} [{said.low:.3g}, {said.high:.3g}]; measured {measured:.3g}, {verdict}"
    )


def search_in_words(one: GalleryRates) -> str:
    """What a search in a gallery of a size gives, in one line."""

    def rate(of: MeanRate) -> str:
        return f"{of.rate:.3g} [{of.low:.3g}, {of.high:.3g}]"

    extrapolated = "extrapolated: " if one.extrapolated else ""
    fpir = rate(one.fpir) if one.fpir else f"unknown, {NOT_EXTRAPOLATED}"
    alike = f"{extrapolated}FPIR {fpir} ({one.fpir_if_alike:.3g} if all probes were alike)"
    miss = f", FNIR {rate(one.fnir)}" if one.fnir else ""
    first = f", rank 1 {one.cmc[0]:.3g}" if one.cmc else ""
    own = "" if one.cosine is None else f"; the threshold of this size is {one.cosine:.4f}"
    own += "" if one.cosine_fnir is None else f", with FNIR {one.cosine_fnir:.3g}"
    return f"{alike}{miss}, {one.selectivity.rate:.3g} matches of an unknown probe{first}{own}"


def _groups(report: ThresholdFields) -> list[tuple[str, str]]:
    """A line for each group, and one for how far they lie apart."""
    found = report.groups
    if found is None:
        return []
    lines = []
    for group in found.groups:
        far = _group_rate("FAR", group.far, group.impostor_pairs, found.needed_impostor_pairs)
        frr = _group_rate("FRR", group.frr, group.genuine_pairs, found.needed_genuine_pairs)
        lines.append((f"group {group.label}", f"{far}, {frr} ({group.identities} identities)"))
    kinds_of_ratio = [("FAR", found.far_ratios), ("FRR", found.frr_ratios)]
    apart = [f"{name} {ratio_in_words(ratios[-1])}" for name, ratios in kinds_of_ratio if ratios]
    if found.garbe:
        apart.append(f"GARBE {found.garbe.value:.3g} [{found.garbe.low:.3g}, {found.garbe.high:.3g}]")
    if found.opis is not None and report.consistency is not None:
        apart.append(f"OPIS over groups {found.opis:.3e}, over classes {report.consistency.opis:.3e}")
    return [*lines, ("groups", "; ".join(apart) or "no two of them have enough pairs")]


def _group_rate(name: str, rate: ErrorRate | None, pairs: int, needed: int) -> str:
    if rate is None:
        return f"{name} not given: {pairs:,} pairs, at least {needed:,} are needed"
    return f"{name} {rate.rate:.3g} [{rate.low:.3g}, {rate.high:.3g}]"


def ratio_in_words(ratio: GroupComparison) -> str:
    """How many times the rate of one group is that of another."""
    if ratio.value is None or ratio.high is None:
        return f"of {ratio.one} is at least {ratio.low:.3g} times that of {ratio.to}, which has no error"
    to = "the geometric mean of all" if ratio.to is None else str(ratio.to)
    return f"of {ratio.one} is {ratio.value:.3g} times that of {to} [{ratio.low:.3g}, {ratio.high:.3g}]"


def _consistency(report: ThresholdFields) -> str:
    consistency = report.consistency
    if consistency is None:
        return "not measurable: fewer than two classes have a genuine and an impostor pair"
    far, d = consistency.far_range, consistency.distances
    over = f"over FAR {far[0]:g} to {far[1]:g} (distance {d[0]:.4f} to {d[1]:.4f})"
    return f"{consistency.opis:.3e}, ε-OPIS (ε = {consistency.epsilon:g}) {consistency.epsilon_opis:.3e}, {over}"


def _calibration(report: ThresholdFields) -> list[tuple[str, str]]:
    found = report.calibration
    if found is None:
        return []
    cost, least = (f"{of.rate:.3g} [{of.low:.3g}, {of.high:.3g}]" for of in (found.cllr, found.min_cllr))
    line = f"log-likelihood ratio {found.slope:.4g} · cosine {found.intercept:+.4g}"
    return [("evidence", f"C_llr {cost} bits on other classes, at best {least}; {line}")]


def _stability(report: ThresholdFields) -> str:
    stability = report.stability
    if stability is None:
        return "not measured: half of the classes have too few pairs"
    return (
        f"thresholds of two random halves of the classes differ by {stability.mean_shift:.4f} in distance (mean of "
        f"{stability.splits} splits; at most {stability.max_shift:.4f})"
    )


def _rate(rate: ErrorRate, kind: str) -> str:
    interval = f"95 % interval {rate.low:.3g} to {rate.high:.3g} for other classes"
    return f"{rate.rate:.4g} ({rate.errors} of {rate.pairs} {kind} pairs; {interval})"


def _names(classes: tuple[ClassErrors, ...], rate: str) -> str:
    return ", ".join(f"{c.label} ({getattr(c, rate):.3g})" for c in classes)
