"""A threshold report for people: lines of text, and one HTML page without outside resources."""

import base64
from html import escape

from pml_ext.metrics.threshold.fields import ClassErrors, ErrorRate, ThresholdFields

_NAMED = 3
_STYLE = (
    "body{font:15px/1.45 sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem}img{max-width:100%}"
    "table{border-collapse:collapse;margin:.5rem 0}"
    "td,th{padding:.2rem .7rem;text-align:left;border-bottom:1px solid #ddd}"
    "td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}div.two{display:flex;flex-wrap:wrap;gap:2rem}"
)


def facts(report: ThresholdFields) -> list[tuple[str, str]]:
    """The report as (name, text) lines."""
    target, consistency, stability = report.target, report.consistency, report.stability
    chosen = "the best utility" if target.value is None else f"{target.kind.upper()} <= {target.value:g}"
    rows = [
        ("threshold", f"cosine >= {report.cosine:.6f}, which is L2 distance <= {report.distance:.6f}"),
        ("chosen for", chosen),
        ("FAR", _rate_text(report.far, "impostor")),
        ("FRR", _rate_text(report.frr, "genuine")),
        ("worst by FAR", _names(report.worst_classes("far", _NAMED), "far")),
        ("worst by FRR", _names(report.worst_classes("frr", _NAMED), "frr")),
    ]
    if consistency is None:
        rows.append(("OPIS", "not measurable: fewer than two classes with a genuine and an impostor pair"))
    else:
        far, d = consistency.far_range, consistency.distances
        over = f"over FAR {far[0]:g} to {far[1]:g} (distance {d[0]:.4f} to {d[1]:.4f})"
        values = f"{consistency.opis:.2e}, ε-OPIS (ε = {consistency.epsilon:g}) {consistency.epsilon_opis:.2e}"
        rows.append(("OPIS", f"{values}, {over}"))
    rows.append(
        (
            "between halves",
            "not measured: half of the classes has too few pairs"
            if stability is None
            else f"the threshold differs by {stability.mean_shift:.4f} in distance (mean; at most "
            f"{stability.max_shift:.4f}) between random halves of the classes, {stability.splits} splits",
        )
    )
    copies = f", {report.copies} of them copies" if report.copies else ""
    size = f"{report.samples} samples{copies}, {len(report.classes)} classes, {report.embedding_dim} dimensions"
    checkpoint = report.checkpoint
    rows += [
        ("measured on", size),
        ("checkpoint", f"{checkpoint.file}, SHA-256 {checkpoint.sha256}" if checkpoint else "none named"),
        ("made by", f"pml_ext {report.version}"),
    ]
    return rows


def page(report: ThresholdFields, png: bytes) -> str:
    """The HTML page; every text from the data is escaped, the figure is embedded."""
    figure = base64.b64encode(png).decode("ascii")
    lines = "".join(f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>" for name, text in facts(report))
    tables = "".join(
        f"<section><h2>Highest {name}</h2>{_class_table(classes)}</section>"
        for name, classes in (("FAR", report.worst_classes("far")), ("FRR", report.worst_classes("frr")))
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Threshold report</title>'
        f"<style>{_STYLE}</style></head><body><h1>One threshold, and what it does to each class</h1>"
        f'<table>{lines}</table><img alt="utilities, ROC, distances and the worst classes" '
        f'src="data:image/png;base64,{figure}"><div class="two">{tables}</div>'
        "<p>A pair is accepted when its cosine is at least the threshold. FAR: share of impostor pairs (two classes) "
        "accepted; FRR: share of genuine pairs (one class) refused; of a class, over the pairs with a sample of it. "
        "Intervals are for other classes of the same kind, at this threshold.</p></body></html>\n"
    )


def _class_table(classes: tuple[ClassErrors, ...]) -> str:
    columns = ("samples", "FAR", "accepted", "of impostors", "FRR", "refused", "of genuine")
    heads = "".join(f'<th class="n">{column}</th>' for column in columns)
    rows = []
    for c in classes:
        frr = "–" if c.frr is None else f"{c.frr:.4g}"
        cells = (c.samples, f"{c.far:.4g}", c.false_accepts, c.impostor_pairs, frr, c.false_rejects, c.genuine_pairs)
        numbers = "".join(f'<td class="n">{cell}</td>' for cell in cells)
        rows.append(f"<tr><td>{escape(str(c.label))}</td>{numbers}</tr>")
    return f"<table><tr><th>class</th>{heads}</tr>{''.join(rows)}</table>"


def _rate_text(rate: ErrorRate, kind: str) -> str:
    interval = f"95 % interval {rate.low:.3g} to {rate.high:.3g} for other classes"
    return f"{rate.rate:.4g} ({rate.errors} of {rate.pairs} {kind} pairs; {interval})"


def _names(classes: tuple[ClassErrors, ...], rate: str) -> str:
    return ", ".join(f"{c.label} ({getattr(c, rate):.3g})" for c in classes)
