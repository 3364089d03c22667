"""A threshold report as text: sentences for readers without background, and the summary lines."""

from decimal import Decimal

from pml_ext.thresholds.fields import (
    CAUTION,
    FEW_ERRORS,
    ErrorRate,
    GalleryRates,
    GroupComparison,
    MeanRate,
    NormalizationRecord,
    Searches,
    Target,
    ThresholdFields,
    cosine_of,
)

Line = tuple[str, str]
"""Name and text."""

_SHOWN = 3  # classes in a line
_ERRORS = {"far": "false accepts", "frr": "false rejects", "fpir": "searches with a wrong match"}
_ROUNDING = 0.1  # relative error of a share that is written as "a of b"
_ROUND_RATES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)


def percent(value: float) -> str:
    """Formats a fraction with three significant digits: 0.1 %, 63.3 %, 0.00123 %."""
    return f"{Decimal(f'{100 * value:.3g}'):f} %"


def with_interval(rate: ErrorRate | MeanRate) -> str:
    """Formats a rate with its 95 % interval."""
    return f"{percent(rate.rate)} ({percent(rate.low)} to {percent(rate.high)})"


def as_counts(rate: float, trials: int) -> tuple[int, int]:
    """Returns (a, b): the rate as a of b trials. b is the smallest power of ten for which a is right within a tenth.

    The same holds for b − a. If the rate is 0 or 1, b is the number of trials.
    """
    if rate in (0, 1):
        return round(rate) * trials, trials
    total = 10
    while not (_is_close(rate, total) and _is_close(1 - rate, total)):
        total *= 10
    return round(rate * total), total


def _is_close(share: float, total: int) -> bool:
    return abs(round(share * total) / total / share - 1) <= _ROUNDING


def meaning(report: ThresholdFields) -> str:
    """Returns the error rates in one sentence without jargon; about searches if the threshold was chosen for them."""
    if report.searches is not None and report.target.kind == "fpir":
        return _meaning_of_searches(report.searches)
    far, frr = report.far, report.frr
    accepted = _share(far, far.pairs, "comparisons of two different identities", "wrongly accepted")
    rejected = _share(frr, frr.pairs, "comparisons of the same identity", "wrongly rejected")
    return f"Of {accepted}; of {rejected}."


def _meaning_of_searches(searches: Searches) -> str:
    planned = searches.planned
    unknown = f"searches for identities not in the gallery ({_enrolled(searches)})"
    sentence = f"Of {_share(planned.fpir, searches.probes, unknown, 'answered with a wrong match')}"
    if planned.fnir is not None:
        sentence += f"; of {_share(planned.fnir, searches.mated, 'searches for enrolled identities', 'missed')}"
    return f"{sentence}."


def _enrolled(searches: Searches) -> str:
    """Returns the planned size, and how it is measured if it is that of all identities."""
    enrolled = searches.planned.enrolled
    if enrolled == searches.gallery_size:
        return f"{enrolled:,} enrolled"
    return f"{enrolled:,} enrolled: all {searches.gallery_size:,} but the probe's own"


def _share(rate: ErrorRate | MeanRate, trials: int, kind: str, outcome: str) -> str:
    count, total = as_counts(rate.rate, trials)
    shown = f"about {count:,}"
    if count in (0, total):
        shown = f"{count:,}" if count else "none"
    low, high = (_two_digits(end * total) for end in (rate.low, rate.high))
    return f"{total:,} {kind}, {shown} {'is' if count <= 1 else 'are'} {outcome} (between {low} and {high})"


def _two_digits(value: float) -> str:
    """Formats a count with two significant digits: 0.6, 12, 1,200."""
    return f"{Decimal(f'{value:.2g}'):,f}"


def target_in_words(report: ThresholdFields) -> str:
    """Returns the threshold's target without jargon."""
    kind, value, sure = report.target.kind, report.target.value, _sure(report.target)
    if value is None:
        return "so that both kinds of errors together are fewest"
    if report.searches is not None and kind == "fpir":
        unknown = f"identities not in the gallery ({_enrolled(report.searches)})"
        return f"so that at most {percent(value)} of searches for {unknown} return a match{sure}"
    return f"so that at most {percent(value)} are wrongly {'accepted' if kind == 'far' else 'rejected'}{sure}"


def _sure(target: Target) -> str:
    sure = target.confidence
    return "" if sure is None else f", for other identities with {percent(sure)} confidence"


def support_in_words(report: ThresholdFields) -> str:
    """Returns what the choice of the threshold rests on; empty for utility."""
    support, target = report.support, report.target
    if support is None or target.value is None:
        return ""
    limit, confidence = percent(target.value), target.confidence
    errors = f"{support.errors:,.0f} {_ERRORS[target.kind]}, as many as {support.independent:.3g} independent ones"
    if confidence is None:
        return f"{errors}. Other identities exceed {limit} about as often as not, unless a confidence is given"
    return f"{errors}. Other identities exceed {limit} in at most {percent(1 - confidence)} of cases"


def uncertainty_in_words(report: ThresholdFields) -> str:
    """Returns what a choice by few independent errors leaves open, and what a confidence gives; empty if many."""
    support, target = report.support, report.target
    if support is None or support.cautious is None:
        return ""
    cautious, name, what = support.cautious, target.kind.upper(), _ERRORS[target.kind]
    few = f"{support.independent:.2g} independent {what}, fewer than {FEW_ERRORS}"
    text = f"{name} is uncertain: the choice rests on {few}"
    if isinstance(cautious, str):
        return f"{text}. --confidence {CAUTION:g} is impossible: {cautious}"
    rates = f"FAR {cautious.far.rate:.3g}, FRR {cautious.frr.rate:.3g}"
    return f"{text}. --confidence {CAUTION:g} gives {report.score_name} >= {cautious.cosine:.4f} ({rates})"


def cameras_in_words(report: ThresholdFields) -> str:
    """Returns the error rates of genuine pairs by camera as a sentence; empty if cameras are unknown."""
    cameras = report.cameras
    if cameras is None or not cameras.across:
        return ""
    rejected = f"Of the pairs of one identity seen by two cameras, {with_interval(cameras.across)} are rejected"
    if cameras.within:
        rejected += f"; of those seen by one camera, {with_interval(cameras.within)}"
    return f"{rejected}; pairs of one camera do not count in this report."


def rejected_in_words(report: ThresholdFields) -> str:
    """Returns how many classes have more than twice the overall FRR, rounded up to a simple rate."""
    rates = [c.frr for c in report.classes if c.frr is not None]
    limit = next((rate for rate in _ROUND_RATES if rate >= 2 * report.frr.rate), _ROUND_RATES[-1])
    rejected = sum(rate > limit for rate in rates)
    have = "has" if rejected == 1 else "have"
    return f"{rejected} of {len(rates)} classes {have} more than {percent(limit)} of their genuine pairs rejected"


def plain_in_words(report: ThresholdFields) -> str:
    """Returns the rates of plain cosines beside those of a report on normalised scores; empty if they are not known."""
    plain = report.plain
    if plain is None:
        return ""
    opis = "not measurable" if plain.opis is None else f"{plain.opis:.3e}"
    return f"FRR {with_interval(plain.frr)} at the same FAR, OPIS {opis}"


def score_in_words(report: ThresholdFields) -> str:
    """Returns a description of the score that is compared with the threshold."""
    cohort = report.normalization
    if cohort is None:
        return "cosine similarity"
    nearest = f"{cohort.k} nearest samples of a cohort of {cohort.samples:,}"
    return f"normalised score (cosine similarity less how close both are to their {nearest})"


def ratio_in_words(ratio: GroupComparison) -> str:
    """Returns the ratio of two groups' rates in words."""
    if ratio.value is None or ratio.high is None:
        return f"of {ratio.one} is at least {ratio.low:.3g} times that of {ratio.to}, which has no error"
    return f"of {ratio.one} is {ratio.value:.3g} times that of {ratio.to} [{ratio.low:.3g}, {ratio.high:.3g}]"


def summary_lines(report: ThresholdFields) -> list[Line]:
    """Returns the lines of the text report."""
    highest_far = [f"{c.label} ({c.far:.3g})" for c in report.worst_classes("far", _SHOWN)]
    highest_frr = [f"{c.label} ({c.frr:.3g})" for c in report.worst_classes("frr", _SHOWN)]
    lines = [
        ("in words", meaning(report)),
        ("threshold", _threshold(report)),
        ("chosen for", _target(report)),
        ("FAR", _rate(report.far, "impostor")),
        ("FRR", _rate(report.frr, "genuine", across=report.is_across_cameras)),
    ]
    if support := support_in_words(report):
        lines.insert(3, ("rests on", support))
    if uncertainty := uncertainty_in_words(report):
        lines.insert(0, ("uncertain", uncertainty))
    if cameras := cameras_in_words(report):
        lines.append(("cameras", cameras))
    if report.searches is not None:
        if report.searches.images is not None:
            lines.append(("enrolled", f"median number of images of the searched identity: {report.searches.images}"))
        lines += [(f"among {size.enrolled:,}", _search(size)) for size in report.searches.sizes]
    lines += [
        *_groups(report),
        ("highest FAR", ", ".join(highest_far)),
        ("highest FRR", ", ".join(highest_frr)),
        ("rejected", rejected_in_words(report)),
        ("OPIS", consistency_in_words(report)),
    ]
    if plain := plain_in_words(report):
        lines.append(("plain cosines", plain))
    return lines + origin_lines(report)


def origin_lines(report: ThresholdFields) -> list[Line]:
    """Returns the lines about the cohort, the data, the checkpoint and the version."""
    checkpoint = report.checkpoint
    copied = f", {report.copies} of them copies" if report.copies else ""
    samples = f"{report.samples} samples{copied}, {len(report.classes)} classes, {report.embedding_dim} dimensions"
    lines = list[Line]()
    if report.normalization is not None:
        lines.append(("cohort", _cohort(report.normalization)))
    lines += [
        ("measured on", samples),
        ("data", report.data or "not named"),
        ("checkpoint", f"{checkpoint.file}, SHA-256 {checkpoint.sha256}" if checkpoint else "not named"),
        ("made", f"{report.made or 'at an unknown time'} by pml_ext {report.version}"),
    ]
    return lines


def _target(report: ThresholdFields) -> str:
    target = report.target
    if target.value is None:
        return "the best utility"
    text = f"{target.kind.upper()} <= {target.value:g}{_sure(target)}"
    if report.searches is not None and target.kind == "fpir":
        return f"{text} ({_enrolled(report.searches)})"
    return text


def _threshold(report: ThresholdFields) -> str:
    cohort = report.normalization
    if cohort is None:
        return f"cosine >= {report.cosine:.6f} (L2 distance <= {report.distance:.6f})"
    samples = f"the {cohort.k} nearest of {cohort.samples} samples of a cohort, SHA-256 {cohort.sha256[:12]}…"
    return f"normalised score >= {report.cosine:.6f}, by {samples}; strength {cohort.strength:g}"


def _cohort(cohort: NormalizationRecord) -> str:
    if cohort.identities is None:
        return f"{cohort.samples:,} samples without labels: whether it holds measured identities is not known"
    return f"{cohort.samples:,} samples of {cohort.identities:,} identities, none of which is measured here"


def _rate(rate: ErrorRate, kind: str, *, across: bool = False) -> str:
    interval = f"95 % interval {rate.low:.3g} to {rate.high:.3g} for other classes"
    cameras = " across cameras" if across else ""
    return f"{rate.rate:.4g} ({rate.errors} of {rate.pairs} {kind} pairs{cameras}; {interval})"


def _search(rates: GalleryRates) -> str:
    """Returns the rates of searches in a gallery of one size."""
    text = f"{'extrapolated: ' if rates.is_extrapolated else ''}FPIR {rates.fpir}"
    if rates.fnir:
        text += f", FNIR {rates.fnir}"
    if rates.cmc:
        text += f", rank 1 {rates.cmc[0]:.3g}"
    return text


def _groups(report: ThresholdFields) -> list[Line]:
    """Returns one line per group, and one with the largest ratios."""
    groups = report.groups
    if groups is None:
        return []
    lines = []
    for group in groups.groups:
        far = _group_rate("FAR", group.far, group.impostor_pairs, groups.needed_impostor_pairs)
        frr = _group_rate("FRR", group.frr, group.genuine_pairs, groups.needed_genuine_pairs)
        lines.append((f"group {group.label}", f"{far}, {frr} ({group.identities} identities)"))
    apart = []
    for name, ratios in (("FAR", groups.far_ratios), ("FRR", groups.frr_ratios)):
        if ratios:
            apart.append(f"{name} {ratio_in_words(ratios[-1])}")
    lines.append(("groups", "; ".join(apart) or "no two groups have enough pairs"))
    return lines


def _group_rate(name: str, rate: ErrorRate | None, pairs: int, needed: int) -> str:
    if rate is None:
        return f"{name} not given: {pairs:,} pairs, at least {needed:,} are needed"
    return f"{name} {rate}"


def consistency_in_words(report: ThresholdFields) -> str:
    """Returns OPIS and ε-OPIS with their range, or why they are not known."""
    consistency = report.consistency
    if consistency is None:
        return "not measurable: fewer than two classes have a genuine and an impostor pair"
    far, cosines = consistency.far_range, [cosine_of(distance) for distance in consistency.distances]
    over = f"over FAR {far[0]:g} to {far[1]:g} ({report.score_name} {cosines[0]:.4f} to {cosines[1]:.4f})"
    epsilon = f"ε-OPIS (ε = {consistency.epsilon:g}) {consistency.epsilon_opis:.3e}"
    return f"{consistency.opis:.3e}, {epsilon}, {over}"
