"""A comparison of models at the same rate of false accepts, as a page."""

from pathlib import Path

from pml_ext.metrics.threshold.model_comparison import ModelComparison, difference_in_words
from pml_ext.metrics.threshold.search_fields import GalleryRates
from pml_ext.reports.page import render, write_html
from pml_ext.reports.wording import percent, with_interval


def write_model_page(path: Path, found: ModelComparison) -> None:
    """One HTML page: the models, their differences, and the classes that lose most."""
    first = next(iter(found.reports.values()))
    models = [
        [
            name,
            f"{report.cosine:.4f}",
            with_interval(report.far),
            with_interval(report.frr),
            "–" if report.consistency is None else f"{report.consistency.opis:.3e}",
            *([] if report.searches is None else _of_searches(report.searches.planned)),
        ]
        for name, report in found.reports.items()
    ]
    heads = ["model", "cosine at least", "FAR", "FRR", "OPIS", *(["FPIR", "FNIR"] if first.searches else [])]
    differences = [
        [one.verdict, one.misses, *(f"{100 * value:+.2f}" for value in (one.value, one.low, one.high))]
        for one in found.differences
    ]
    tables = [
        {"heads": heads, "rows": models, "marked": None},
        {"heads": ["", "misses", "points", "from (95 %)", "to (95 %)"], "rows": differences, "marked": None},
    ]
    for one in found.differences:
        rows = [
            [str(after.label), str(after.samples), *(percent(c.frr or 0) for c in (before, after)),
             *(percent(c.far) for c in (before, after))]
            for before, after in one.lost
        ]  # fmt: skip
        rates = [f"{rate}, {name}" for rate in ("FRR", "FAR") for name in (one.first, one.model)]
        heads = [f"classes that lose most with {one.model}", "samples", *rates]
        tables.append({"heads": heads, "rows": rows, "marked": None})
    facts = [
        ("in words", "; ".join(map(difference_in_words, found.differences))),
        ("target", f"{first.target.kind.upper()} <= {first.target.value:g}" if first.target.value else ""),
        ("measured on", f"{first.samples} samples, {len(first.classes)} classes"),
        ("intervals", "paired, for identities like these; each model has a threshold of its own"),
    ]
    write_html(path, render("run.html", title="Models at the same rate of false accepts", about="What was measured",
                            facts=facts, notes=[], tables=tables, pictures=[]))  # fmt: skip


def _of_searches(one: GalleryRates) -> list[str]:
    return ["–" if rate is None else with_interval(rate) for rate in (one.fpir, one.fnir)]
