"""A threshold report as files for the person who decides: an HTML page, a PNG of its pictures, the JSON."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pml_ext._files import write_atomically
from pml_ext.metrics.threshold.fields import Sample, Target, ThresholdFields
from pml_ext.metrics.threshold.json_file import write_report
from pml_ext.reports.drawing import Picture, as_png
from pml_ext.reports.group_tables import tables_by_group
from pml_ext.reports.page import render, require_page, write_html
from pml_ext.reports.searches import searches_table
from pml_ext.reports.thresholds import threshold_pictures
from pml_ext.reports.thumbnails import thumbnail
from pml_ext.reports.wording import (
    cameras_in_words,
    copies,
    facts,
    meaning,
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
    chosen = [report.target == Target("far", one.target) for one in report.alternatives]
    return render(
        "threshold.html",
        title="One threshold, and what it does to each class",
        report=report,
        meaning=meaning(report),
        score=score_in_words(report),
        chosen=target_in_words(report),
        cameras=cameras_in_words(report),
        refused=refused_in_words(report),
        **_alternatives(report),
        marked=chosen.index(True) if True in chosen else None,
        pictures=pictures,
        picture_of=picture_of,
        classes=_classes(report),
        searches=searches_table(report),
        groups=tables_by_group(report),
        about="What was measured",
        facts=facts_shown,
    )


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


def _alternatives(report: ThresholdFields) -> dict[str, Any]:
    rows = [
        [
            percent(one.target) + (" (chosen)" if report.target == Target("far", one.target) else ""),
            f"{one.cosine:.4f}",
            with_interval(one.far),
            with_interval(one.frr),
            "–" if one.opis is None else f"{one.opis:.3e}",
            f"{one.far_range[0]:g} to {one.far_range[1]:g}",
        ]
        for one in report.alternatives
    ]
    heads = ["wrongly accepted at most", "cosine at least", "wrongly accepted", "wrongly rejected", "OPIS", "over FAR"]
    return {"alternative_heads": heads, "alternatives": rows}


def _classes(report: ThresholdFields) -> list[tuple[list[str], list[list[str]]]]:
    accepted = [
        [str(c.label), str(c.samples), percent(c.far), f"{c.false_accepts:,} of {c.impostor_pairs:,} impostor pairs"]
        for c in report.worst_classes("far")
    ]
    rejected = [
        [str(c.label), str(c.samples), percent(c.frr or 0), f"{c.false_rejects:,} of {c.genuine_pairs:,} genuine pairs"]
        for c in report.worst_classes("frr")
    ]
    return [(["class", "samples", rate, "count"], rows) for rate, rows in (("FAR", accepted), ("FRR", rejected))]
