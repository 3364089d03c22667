"""Writes models.html, a comparison of models on the same samples."""

from pathlib import Path

from pml_ext.metrics.threshold.comparison import ModelComparison, ModelDifference
from pml_ext.metrics.threshold.report import ThresholdReport
from pml_ext.reports.page import Table, write_page
from pml_ext.reports.threshold_text import percent, with_interval


def write_model_page(path: Path, comparison: ModelComparison) -> None:
    """Write an HTML page with the models, their differences, and the classes that lose most."""
    first = next(iter(comparison.reports.values()))
    heads = ["model", "cosine at least", "FAR", "FRR", "OPIS"]
    models = [_model_row(name, report) for name, report in comparison.reports.items()]
    rows, lost = list[list[str]](), list[Table]()
    for difference in comparison.differences:
        points = [f"{100 * value:+.2f}" for value in (difference.value, difference.low, difference.high)]
        rows.append([difference.verdict, *points])
        lost.append(_lost_classes(difference))
    tables = [(heads, models), (["", "FRR, points", "from (95 %)", "to (95 %)"], rows), *lost]
    facts = {
        "in words": "; ".join(difference.summary() for difference in comparison.differences),
        "target": f"FAR <= {first.target.value:g}",
        "measured on": f"{first.samples} samples, {len(first.classes)} classes",
        "intervals": "paired, for identities like these; each model has a separate threshold",
    }
    title, about = "Models at the same rate of false accepts", "What was measured"
    write_page(path, title=title, about=about, facts=facts, tables=tables, figures=[])


def _model_row(name: str, report: ThresholdReport) -> list[str]:
    opis = "–"
    if report.consistency is not None:
        opis = f"{report.consistency.opis:.3e}"
    return [name, f"{report.cosine:.4f}", with_interval(report.far), with_interval(report.frr), opis]


def _lost_classes(difference: ModelDifference) -> Table:
    heads = [f"classes that lose most with {difference.model}", "samples"]
    for rate in ("FRR", "FAR"):
        heads += [f"{rate}, {difference.first}", f"{rate}, {difference.model}"]
    rows = []
    for before, after in difference.lost:
        rates = [before.frr or 0, after.frr or 0, before.far, after.far]
        rows.append([str(after.label), str(after.samples), *map(percent, rates)])
    return heads, rows
