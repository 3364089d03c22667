"""Writes a threshold report as an HTML page, a PNG with its figures, and JSON."""

from collections.abc import Callable, Sequence
from pathlib import Path

from pml_ext._shared.errors import after_results
from pml_ext._shared.files import write_atomically
from pml_ext.reports.drawing import ReportFigure, as_png
from pml_ext.reports.page import Card, Table, render, thumbnail, write_html
from pml_ext.thresholds.fields import (
    ErrorRate,
    GalleryRates,
    GroupPair,
    Sample,
    ThresholdFields,
    WorstPair,
)
from pml_ext.thresholds.figures import threshold_figures
from pml_ext.thresholds.file import write_report
from pml_ext.thresholds.text import (
    cameras_in_words,
    consistency_in_words,
    meaning,
    origin_lines,
    percent,
    plain_in_words,
    ratio_in_words,
    rejected_in_words,
    score_in_words,
    support_in_words,
    target_in_words,
    uncertainty_in_words,
    with_interval,
)

ImageOf = Callable[[Sample], str | None]
"""Returns a sample's image as the source of an <img>, or None."""


def _thumbnail_of_path(sample: Sample) -> str | None:
    return thumbnail(sample.path)


def page_of(report: ThresholdFields, figures: list[ReportFigure], image_of: ImageOf = _thumbnail_of_path) -> str:
    """Returns the HTML page of a report and its `threshold_figures`."""
    cards = {}
    if (pairs := report.worst_pairs) is not None:
        cards["Most similar samples of different classes"] = _cards(report, pairs.impostors, "accepted", image_of)
        cards["Least similar samples of one class"] = _cards(report, pairs.genuine, "rejected", image_of)
    plain = plain_in_words(report)
    sentences = [f"Plain cosines: {plain}." if plain else ""]
    sentences += [cameras_in_words(report), f"{rejected_in_words(report)}."]
    texts = {
        "title": "One threshold and its errors in each class",
        "uncertainty": uncertainty_in_words(report),
        "meaning": meaning(report),
        "score": score_in_words(report),
        "chosen": target_in_words(report),
        "support": support_in_words(report),
        "ratios": _ratios(report),
        "about": "What was measured",
        "opis": consistency_in_words(report),
        "facts": origin_lines(report),
    }
    tables = {
        "rates": rates_table(report),
        "points": points_table(report),
        "searches": searches_table(report),
        "groups": group_tables(report),
        "classes": class_tables(report),
    }
    shown = {"report": report, "sentences": sentences, "figures": figures, "cards": cards}
    return render("threshold.html", **shown, **texts, **tables)


def png_of(figures: list[ReportFigure]) -> bytes:
    """Returns a PNG with the page's figures, one below the other."""
    return as_png(*(figure.pixels for figure in figures))


def write_files(report: ThresholdFields, stem: Path, image_of: ImageOf = _thumbnail_of_path) -> list[Path]:
    """Writes the report as <stem>.json, .html and .png; returns the paths. Each file is complete or missing.

    Raises:
        OutputError: the page or its figures cannot be drawn or written; the JSON file is.
    """
    json, html, png = (stem.with_name(f"{stem.name}{suffix}") for suffix in (".json", ".html", ".png"))
    write_report(report, json)
    with after_results(html):
        figures = threshold_figures(report)
        write_html(html, page_of(report, figures, image_of))
        write_atomically(png, png_of(figures))
    return [json, html, png]


def _cards(
    report: ThresholdFields,
    pairs: Sequence[WorstPair],
    error: str,
    image_of: ImageOf,
) -> list[Card]:
    cards = []
    for pair in pairs:
        is_wrong = (pair.cosine >= report.cosine) == (error == "accepted")
        verdict = f"✗ wrongly {error}" if is_wrong else "✓ decided correctly"
        sides = []
        for sample in (pair.one, pair.other):
            lines = [str(sample.label), f"row {sample.row}"]
            if sample.path:
                lines.append(Path(sample.path).name)
            sides.append((image_of(sample), lines))
        cards.append(Card(sides, f"{report.score_name} {pair.cosine:.4f}", verdict))
    return cards


def rates_table(report: ThresholdFields) -> Table:
    """Returns a table with the error rates at the threshold, and the counts behind them."""
    rows = []
    for name, rate in (("FAR (FMR), wrongly accepted", report.far), ("FRR (FNMR), wrongly rejected", report.frr)):
        rows.append([name, percent(rate.rate), _interval(rate), f"{rate.errors:,}", f"{rate.pairs:,}"])
    return ["at the threshold", "rate", "95 % interval", "errors", "of pairs"], rows


def points_table(report: ThresholdFields) -> Table:
    """Returns a table of thresholds, strictest first."""
    heads = [report.score_name, "FAR (FMR)", "FAR, 95 % interval", "false accepts"]
    heads += ["FRR (FNMR)", "FRR, 95 % interval", "false rejects"]
    rows = []
    for point in report.points:
        cells = [f"{point.cosine:.4f}"]
        for rate in (point.far, point.frr):
            cells += [percent(rate.rate), _interval(rate), f"{rate.errors:,}"]
        rows.append(cells)
    return heads, rows


def _interval(rate: ErrorRate) -> str:
    return f"{percent(rate.low)} to {percent(rate.high)}"


def class_tables(report: ThresholdFields) -> list[Table]:
    """Returns two tables: the classes with the highest FAR, and the classes with the highest FRR."""
    accepted, rejected = list[list[str]](), list[list[str]]()
    for c in report.worst_classes("far"):
        name, count = str(c.label), f"{c.false_accepts:,} of {c.impostor_pairs:,}"
        accepted.append([name, str(c.samples), percent(c.far), count])
    for c in report.worst_classes("frr"):
        name, count = str(c.label), f"{c.false_rejects:,} of {c.genuine_pairs:,}"
        rejected.append([name, str(c.samples), percent(c.frr or 0), count])
    return [
        (["class", "samples", "wrongly accepted (FAR)", "of pairs with other classes"], accepted),
        (["class", "samples", "wrongly rejected (FRR)", "of pairs of the class"], rejected),
    ]


def group_tables(report: ThresholdFields) -> list[Table]:
    """Returns a table of the groups, and one of their pairs, highest FAR first; empty without groups."""
    groups = report.groups
    if groups is None:
        return []
    heads = ["group", "samples", "identities", "wrongly accepted", "wrongly rejected"]
    rows, pair_rows = list[list[str]](), list[list[str]]()
    for group in groups.groups:
        far = _group_rate(group.far, group.impostor_pairs, groups.needed_impostor_pairs)
        frr = _group_rate(group.frr, group.genuine_pairs, groups.needed_genuine_pairs)
        rows.append([str(group.label), f"{group.samples:,}", f"{group.identities:,}", far, frr])
    for pair in sorted(groups.between, key=_by_falling_far):
        far = _group_rate(pair.far, pair.impostor_pairs, groups.needed_impostor_pairs)
        pair_rows.append([*map(str, pair.labels), far])
    return [(heads, rows), (["group", "and group", "pairs of both wrongly accepted"], pair_rows)]


def _by_falling_far(pair: GroupPair) -> float:
    return -pair.far.rate if pair.far else 1.0


def _group_rate(rate: ErrorRate | None, pairs: int, needed: int) -> str:
    return with_interval(rate) if rate else f"too few pairs: {pairs:,} of {needed:,}"


def _ratios(report: ThresholdFields) -> list[str]:
    """Returns the ratio between groups, one sentence per kind of error."""
    groups = report.groups
    if groups is None:
        return []
    kinds = ("false accepts", groups.far_ratios), ("false rejects", groups.frr_ratios)
    return [f"The rate of {kind} {ratio_in_words(ratios[-1])}." for kind, ratios in kinds if ratios]


def searches_table(report: ThresholdFields) -> Table | None:
    """Returns a table with a row for each gallery size; None without searches."""
    searches = report.searches
    if searches is None:
        return None
    heads = ["enrolled", "not enrolled, but matched (FPIR)", f"enrolled, but not in the top {searches.rank} (FNIR)"]
    heads += ["enrolled and first"]
    return heads, [_size_row(size, searches.planned) for size in searches.sizes]


def _size_row(size: GalleryRates, planned: GalleryRates) -> list[str]:
    enrolled = f"{size.enrolled:,}"
    if size is planned:
        enrolled += " (planned, extrapolated)" if size.is_extrapolated else " (planned)"
    fnir = with_interval(size.fnir) if size.fnir else "–"
    first = percent(size.cmc[0]) if size.cmc else "–"
    return [enrolled, with_interval(size.fpir), fnir, first]
