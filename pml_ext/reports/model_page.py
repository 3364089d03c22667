"""A comparison of models at the same rate of false accepts, as a page."""

from pathlib import Path

from pml_ext.metrics.threshold.comparison import ModelComparison
from pml_ext.metrics.threshold.report import ThresholdReport
from pml_ext.reports.page import render, write_html
from pml_ext.reports.wording import percent, with_interval


def write_model_page(path: Path, found: ModelComparison) -> None:
    """One HTML page: the models, their differences, and the classes that lose most."""
    first = next(iter(found.reports.values()))
    heads = ["model", "cosine at least", "FAR", "FRR", "OPIS"]
    if first.searches:
        heads += ["FPIR", "FNIR"]
    tables = [(heads, [_row(name, report) for name, report in found.reports.items()])]
    differences = []
    for one in found.differences:
        points = [f"{100 * value:+.2f}" for value in (one.value, one.low, one.high)]
        differences.append([one.verdict, one.misses, *points])
    tables.append((["", "misses", "points", "from (95 %)", "to (95 %)"], differences))
    for one in found.differences:
        heads = [f"classes that lose most with {one.model}", "samples"]
        heads += [f"{rate}, {name}" for rate in ("FRR", "FAR") for name in (one.first, one.model)]
        rows = []
        for before, after in one.lost:
            rates = [before.frr or 0, after.frr or 0, before.far, after.far]
            rows.append([str(after.label), str(after.samples), *map(percent, rates)])
        tables.append((heads, rows))
    target = f"{first.target.kind.upper()} <= {first.target.value:g}" if first.target.value else ""
    facts = [
        ("in words", "; ".join(difference.summary() for difference in found.differences)),
        ("target", target),
        ("measured on", f"{first.samples} samples, {len(first.classes)} classes"),
        ("intervals", "paired, for identities like these; each model has a threshold of its own"),
    ]
    title, about = "Models at the same rate of false accepts", "What was measured"
    shown = {"tables": tables, "marked": None, "pictures": []}
    text = render("run.html", title=title, about=about, facts=facts, notes=[], **shown)
    write_html(path, text)


def _row(name: str, report: ThresholdReport) -> list[str]:
    opis = "–" if report.consistency is None else f"{report.consistency.opis:.3e}"
    row = [name, f"{report.cosine:.4f}", with_interval(report.far), with_interval(report.frr), opis]
    if report.searches:
        planned = report.searches.planned
        row += ["–" if rate is None else with_interval(rate) for rate in (planned.fpir, planned.fnir)]
    return row
