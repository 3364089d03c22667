"""A threshold report as files for the person who decides: an HTML page, a PNG of its pictures, the JSON."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from pml_ext._files import write_atomically
from pml_ext.metrics.threshold.file import write_report
from pml_ext.metrics.threshold.structures import ErrorRate, GroupComparison, Sample, Target, ThresholdFields, WorstPair
from pml_ext.reports.drawing import Picture, as_png
from pml_ext.reports.page import Card, Table, render, require_page, write_html
from pml_ext.reports.searches import searches_table
from pml_ext.reports.thresholds import threshold_pictures
from pml_ext.reports.thumbnails import thumbnail
from pml_ext.reports.wording import (
    cameras_in_words,
    copies,
    facts,
    meaning,
    overall_in_words,
    percent,
    refused_in_words,
    score_in_words,
    target_in_words,
    with_interval,
)

_COPIES = 20
PictureOf = Callable[[Sample], str | None]
"""A sample's picture as the source of an <img>."""


def _of_its_file(sample: Sample) -> str | None:
    return thumbnail(sample.path)


def page_of(report: ThresholdFields, pictures: list[Picture], picture_of: PictureOf = _of_its_file) -> str:
    """The page as text, with the `threshold_pictures` of the report."""
    elsewhere = re.compile("in words|copies|refused|(among|group) .+")  # on the page
    facts_shown = [(name, text) for name, text in facts(report) if not elsewhere.fullmatch(name)]
    if report.copied_rows:
        facts_shown.append(("copies", copies(report, _COPIES)))
    texts = {
        "title": "One threshold, and what it does to each class",
        "meaning": meaning(report),
        "score": score_in_words(report),
        "chosen": target_in_words(report),
        "cameras": cameras_in_words(report),
        "refused": refused_in_words(report),
        "overall": overall_in_words(report),
        "about": "What was measured",
    }
    alternatives, marked = _alternatives(report)
    tables = {"alternatives": alternatives, "searches": searches_table(report), "groups": tables_by_group(report)}
    worst = report.worst_pairs
    pairs = {
        "impostors": _pairs(report, worst.impostors, "accepted", picture_of) if worst else [],
        "genuine": _pairs(report, worst.genuine, "rejected", picture_of) if worst else [],
    }
    shown = {"pictures": pictures, "classes": class_tables(report), "facts": facts_shown, "marked": marked}
    return render("threshold.html", report=report, **texts, **tables, **pairs, **shown)


def png_of(pictures: list[Picture]) -> bytes:
    """The page's pictures, one below the other."""
    return as_png(*(picture.pixels for picture in pictures))


def write_files(report: ThresholdFields, stem: Path, picture_of: PictureOf = _of_its_file) -> list[Path]:
    """The report as <stem>.json, .html and .png; each is whole or not there."""
    files = [stem.with_name(f"{stem.name}{kind}") for kind in (".json", ".html", ".png")]
    require_page(files[1])
    # All are made before the first is written: a report that cannot be drawn leaves no files.
    pictures = threshold_pictures(report)
    text, png = page_of(report, pictures, picture_of), png_of(pictures)
    write_report(report, files[0])
    write_html(files[1], text)
    write_atomically(files[2], png)
    return files


def _alternatives(report: ThresholdFields) -> tuple[Table, int | None]:
    """A row for each threshold, and the row of the chosen one."""
    heads = ["wrongly accepted at most", "cosine at least", "wrongly accepted", "wrongly rejected", "OPIS", "over FAR"]
    rows, chosen = list[list[str]](), None
    for one in report.alternatives:
        at_most = percent(one.target)
        if report.target == Target("far", one.target):
            at_most, chosen = f"{at_most} (chosen)", len(rows)
        opis = "–" if one.opis is None else f"{one.opis:.3e}"
        far_range = f"{one.far_range[0]:g} to {one.far_range[1]:g}"
        rows.append([at_most, f"{one.cosine:.4f}", with_interval(one.far), with_interval(one.frr), opis, far_range])
    return (heads, rows), chosen


def _pairs(report: ThresholdFields, pairs: Sequence[WorstPair], error: str, picture_of: PictureOf) -> list[Card]:
    cards = []
    for pair in pairs:
        sides = [(picture_of(sample), _lines(sample)) for sample in (pair.one, pair.other)]
        is_wrong = (pair.cosine >= report.cosine) == (error == "accepted")
        verdict = f"✗ wrongly {error}" if is_wrong else "✓ decided correctly"
        cards.append(Card(sides, f"cosine {pair.cosine:.4f}", verdict))
    return cards


def _lines(sample: Sample) -> list[str]:
    file = [Path(sample.path).name] if sample.path else []
    return [str(sample.label), f"row {sample.row}", *file]


def class_tables(report: ThresholdFields) -> list[Table]:
    """The classes with the highest FAR, then those with the highest FRR."""
    accepted, rejected = list[list[str]](), list[list[str]]()
    for c in report.worst_classes("far"):
        count = f"{c.false_accepts:,} of {c.impostor_pairs:,}"
        accepted.append([str(c.label), str(c.samples), percent(c.far), count])
    for c in report.worst_classes("frr"):
        count = f"{c.false_rejects:,} of {c.genuine_pairs:,}"
        rejected.append([str(c.label), str(c.samples), percent(c.frr or 0), count])
    return [
        (["class", "samples", "wrongly accepted (FAR)", "of pairs with other classes"], accepted),
        (["class", "samples", "wrongly rejected (FRR)", "of pairs of the class"], rejected),
    ]


def tables_by_group(report: ThresholdFields) -> list[Table]:
    """A row for each group, then one for each pair of them, the highest FAR first; empty where none were named."""
    found = report.groups
    if found is None:
        return []
    heads = ["group", "samples", "identities", "FAR", "FAR to the mean", "FRR", "FRR to the mean"]
    rows, of_pairs = list[list[str]](), list[list[str]]()
    for group in found.groups:
        far = _rate(group.far, group.impostor_pairs, found.needed_impostor_pairs)
        frr = _rate(group.frr, group.genuine_pairs, found.needed_genuine_pairs)
        far_ratio, frr_ratio = (_ratio(ratios, group.label) for ratios in (found.far_ratios, found.frr_ratios))
        counts = [str(group.label), f"{group.samples:,}", f"{group.identities:,}"]
        rows.append([*counts, far, far_ratio, frr, frr_ratio])
    for pair in sorted(found.between, key=lambda pair: -pair.far.rate if pair.far else 1):
        of_pairs.append([*map(str, pair.labels), _rate(pair.far, pair.impostor_pairs, found.needed_impostor_pairs)])
    return [(heads, rows), (["group", "and group", "FAR of pairs of both"], of_pairs)]


def _rate(rate: ErrorRate | None, pairs: int, needed: int) -> str:
    return with_interval(rate) if rate else f"too few pairs: {pairs:,} of {needed:,}"


def _ratio(ratios: Sequence[GroupComparison], label: int | str) -> str:
    """How many times the geometric mean of all groups."""
    own = next((ratio for ratio in ratios if ratio.one == label and ratio.to is None), None)
    return f"{own.value:.3g} × ({own.low:.3g} to {own.high:.3g})" if own else "–"
