"""A threshold report as one HTML page without outside resources, for the person who decides."""

import base64
from collections.abc import Sequence
from html import escape
from pathlib import Path

from pml_ext.metrics.threshold.fields import ClassErrors, Sample, ThresholdFields, WorstPair
from pml_ext.reports.threshold_plots import Panel
from pml_ext.reports.thumbnails import thumbnail
from pml_ext.reports.wording import chosen_so_that, copies, facts, meaning, percent, with_interval

_COPIES = 20
_STYLE = (
    "body{font:16px/1.5 sans-serif;max-width:76rem;margin:1.5rem auto;padding:0 1rem;color:#111;background:#fff}"
    "h1{font-size:1.5rem;line-height:1.25}h2{font-size:1.15rem;margin:2rem 0 .5rem}"
    ".say{font-size:1.3rem;line-height:1.4;border-left:.35rem solid #111;padding:.2rem 0 .2rem 1rem;margin:1rem 0}"
    ".wide{overflow-x:auto}table{border-collapse:collapse;margin:.5rem 0}caption{text-align:left}"
    "td,th{padding:.25rem .7rem;text-align:left;vertical-align:top;border-bottom:1px solid #ccc}"
    "td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}"
    "tr.chosen td{font-weight:bold;border-top:2px solid #111;border-bottom:2px solid #111}"
    # On narrow screens each row of a table becomes a card.
    "@media(max-width:52rem){.stack tr:first-child{display:none}.stack,.stack tbody,.stack tr,.stack td{display:block}"
    ".stack tr{border:1px solid #888;border-radius:.3rem;margin:.5rem 0}.stack td.n{display:flex;gap:1rem;"
    "justify-content:space-between;white-space:normal;border:0!important}.stack td::before{content:attr(data-name)}"
    ".stack tr.chosen{border:3px solid #111}}"
    "table.facts td{overflow-wrap:anywhere}"
    ".grid{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,27rem),1fr));gap:1rem}"
    "figure{margin:0}figure>img{width:100%;height:auto}figcaption{font-size:.9rem}"
    ".pairs{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,17rem),1fr));gap:.8rem}"
    ".pair{border:1px solid #888;border-radius:.3rem;padding:.5rem}.pair div{display:flex;gap:.6rem}"
    ".pair span{flex:1;font-size:.85rem;overflow-wrap:anywhere}"
    ".pair img{display:block;max-width:100%;min-width:min(100%,4rem)}"
)


def page(report: ThresholdFields, panels: list[Panel]) -> str:
    """The page; every text from the data is escaped, the pictures are embedded.

    Args:
        panels: `plots.panels` of the report.
    """
    sections = [_alternatives(report), _figures(panels), _worst_pairs(report), _classes(report), _facts(report)]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Threshold report</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style></head><body><h1>One threshold, and what it does to each class</h1>"
        f'<p class="say">{escape(meaning(report))}</p>'
        f"<p>Two samples count as one identity when their cosine similarity is at least <b>{report.cosine:.4f}</b> "
        f"(L2 distance at most {report.distance:.4f}). Chosen {escape(chosen_so_that(report))}.{_cameras(report)}</p>"
        f"{''.join(sections)}</body></html>\n"
    )


def _cameras(report: ThresholdFields) -> str:
    cameras = report.cameras
    if cameras is None or not cameras.across:
        return ""
    refused = f" Refused are {with_interval(cameras.across)} of the pairs of one identity seen by two cameras"
    within = f", and {with_interval(cameras.within)} of those seen by one" if cameras.within else ""
    counted = "both kinds count" if cameras.same_camera_pairs else "the latter are left out of all figures here"
    return f"{refused}{within}; {counted}."


def _alternatives(report: ThresholdFields) -> str:
    if not report.alternatives:
        return ""
    heads = ("wrongly accepted at most", "cosine at least", "wrongly accepted", "wrongly refused", "OPIS", "over FAR")
    rows = []
    for one in report.alternatives:
        chosen = report.target.kind == "far" and report.target.value == one.target
        opis = "–" if one.opis is None else f"{one.opis:.3e}"
        low, high = one.far_range
        cells = (
            percent(one.target), f"{one.cosine:.4f}", with_interval(one.far), with_interval(one.frr), opis,
            f"{low:g} to {high:g}",
        )  # fmt: skip
        mark = " ◀ chosen" if chosen else ""
        numbers = "".join(
            f'<td class="n" data-name="{head}">{cell}{mark if head == heads[0] else ""}</td>'
            for head, cell in zip(heads, cells, strict=True)
        )
        rows.append(f"<tr{' class=chosen' if chosen else ''}>{numbers}</tr>")
    head = "".join(f'<th class="n">{name}</th>' for name in heads)
    return (
        '<h2>Other thresholds</h2><div class="wide"><table class="stack">'
        f"<tr>{head}</tr>{''.join(rows)}</table></div>"
        "<p>In brackets: 95 % intervals for other classes of the same kind. OPIS: how unevenly one threshold treats "
        "the classes around that rate; 0 is even. Rates that the set has too few pairs for are not listed.</p>"
    )


def _figures(panels: list[Panel]) -> str:
    figures = "".join(
        f'<figure><img alt="{escape(panel.says)}" src="data:image/png;base64,'
        f'{base64.b64encode(panel.png).decode("ascii")}"><figcaption>{escape(panel.says)}</figcaption></figure>'
        for panel in panels
    )
    return f'<h2>In pictures</h2><div class="grid">{figures}</div>'


def _worst_pairs(report: ThresholdFields) -> str:
    worst = report.worst_pairs
    if worst is None:
        return ""
    parts = (
        ("Different identities that look most alike", worst.impostors, "accepted"),
        ("Samples of one identity that look least alike", worst.genuine, "refused"),
    )
    text = ""
    for title, pairs, wrong in parts:
        cards = "".join(_card(pair, report, wrong) for pair in pairs)
        text += f'<h2>{title}</h2><div class="pairs">{cards}</div>'
    return f"{text}<p>Look at these first: some may be mistakes in the labels.</p>"


def _card(pair: WorstPair, report: ThresholdFields, wrong: str) -> str:
    is_wrong = (pair.cosine >= report.cosine) == (wrong == "accepted")
    decision = f"✗ wrongly {wrong}" if is_wrong else "✓ decided rightly"
    samples = "".join(f"<span>{_sample(sample)}</span>" for sample in (pair.one, pair.other))
    return f'<div class="pair">cosine {pair.cosine:.4f}, {decision}<div>{samples}</div></div>'


def _sample(sample: Sample) -> str:
    source = thumbnail(sample.path) if sample.path else None
    picture = f'<img alt="" src="{source}">' if source else ""
    file = f"<br>{escape(Path(sample.path).name)}" if sample.path else ""
    return f"{picture}{escape(str(sample.label))}<br>row {sample.row}{file}"


def _classes(report: ThresholdFields) -> str:
    accepted = [
        (c, c.far, f"{c.false_accepts:,} of {c.impostor_pairs:,} impostor pairs") for c in report.worst_classes("far")
    ]
    refused = [
        (c, c.frr, f"{c.false_rejects:,} of {c.genuine_pairs:,} genuine pairs") for c in report.worst_classes("frr")
    ]
    tables = "".join(
        f"<section><h2>Classes wrongly {what} most often</h2>{_class_table(rate, classes)}</section>"
        for what, rate, classes in (("accepted", "FAR", accepted), ("refused", "FRR", refused))
    )
    return f'<div class="grid">{tables}</div>'


def _class_table(rate: str, classes: Sequence[tuple[ClassErrors, float | None, str]]) -> str:
    rows = "".join(
        f'<tr><td>{escape(str(c.label))}</td><td class="n">{c.samples}</td>'
        f'<td class="n">{percent(value or 0.0)}</td><td>{counts}</td></tr>'
        for c, value, counts in classes
    )
    heads = f'<th>class</th><th class="n">samples</th><th class="n">{rate}</th><th>which is</th>'
    return f'<div class="wide"><table><tr>{heads}</tr>{rows}</table></div>'


def _facts(report: ThresholdFields) -> str:
    lines = [(name, text) for name, text in facts(report) if name not in ("in words", "copies")]
    if report.copied_rows:
        lines.append(("copies", copies(report, _COPIES)))
    rows = "".join(f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>" for name, text in lines)
    return (
        f'<h2>What was measured</h2><table class="facts">{rows}</table>'
        "<p>A pair is accepted when its cosine is at least the threshold. FAR: share of impostor pairs (two classes) "
        "accepted; FRR: share of genuine pairs (one class) refused; of a class, over the pairs with a sample of it. "
        "Intervals are for other classes of the same kind, at this threshold.</p>"
    )
