"""report.html: one page with all pictures in it, which needs no network."""

import base64
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from pml_ext._files import write_atomically
from pml_ext.reports.drawing import WIDTHS, Picture
from pml_ext.runner.evaluation.results import as_text, heading, labels_of

_STYLE = """
body{font:16px/1.5 system-ui,sans-serif;color:#111;max-width:1400px;margin:1.5rem auto;padding:0 1rem}
h1{font-size:1.5rem}h2{font-size:1.2rem;margin:2.2rem 0 .3rem;border-top:1px solid #ccc;padding-top:1rem}
img{max-width:100%;height:auto}figure{margin:0}figcaption{max-width:75ch;color:#333}canvas{display:block;width:100%}
.scroll{overflow-x:auto}table{border-collapse:collapse;margin:.5rem 0;font-variant-numeric:tabular-nums}
td,th{padding:.25rem .7rem;text-align:right;border-bottom:1px solid #ddd;white-space:nowrap}
td:first-child,th:first-child{text-align:left}tr.last td{font-weight:bold}nav a{margin-right:1rem;white-space:nowrap}
table.facts td:last-child{text-align:left;white-space:normal;overflow-wrap:anywhere}
table.narrow{display:none}table.narrow .last{font-weight:bold}
@media(max-width:899px){table.wide{display:none}table.narrow{display:table}td,th{padding:.25rem .4rem}
table.narrow th,table.settings td,table.settings th{white-space:normal;overflow-wrap:anywhere}}
"""


def write_page(
    path: Path, *, title: str, about: str, facts: Mapping[str, str], tables: Sequence[str], pictures: Sequence[Picture]
) -> list[Path]:
    """The page, and each picture as PNG of both widths in a folder `pictures` beside it.

    Args:
        path: of the page; an older one and pictures of the same names are replaced.
        title: of the page; every text is escaped.
        about, facts: heading and rows of the table at its end.
        tables: HTML, as `metrics_table` makes it.
        pictures: in their order.
    Returns:
        the PNG files.
    """
    folder = path.parent / "pictures"
    folder.mkdir(exist_ok=True)
    sections, files = [], []
    for picture in pictures:
        contents = [picture.png(wide) for wide in (True, False)]
        for width, content in zip(WIDTHS, contents, strict=True):
            files.append(folder / f"{picture.name}_{width}.png")
            write_atomically(files[-1], content)
        sections.append(_section(picture, *contents))
    links = " ".join(f'<a href="#{p.name}">{escape(p.title)}</a>' for p in pictures)
    lines = "".join(f"<tr><td>{escape(name)}</td><td>{escape(text)}</td></tr>" for name, text in facts.items())
    write_atomically(
        path,
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body><h1>{escape(title)}</h1>"
        f'<div class="scroll">{"".join(tables)}</div><nav>{links}</nav>{"".join(sections)}'
        f'<h2>{escape(about)}</h2><div class="scroll"><table class="facts">{lines}</table></div></body></html>\n',
    )
    return files


def metrics_table(corner: str, rows: Mapping[str, Mapping[str, float]], *, last_stands_out: bool = True) -> str:
    """Metrics by row as HTML, in the notation of the terminal; on a narrow page by column."""
    labels = labels_of(dict(next(iter(rows.values()))))
    heads = [heading(*item) for item in labels.items()]
    cells = [[as_text(name, values[name]) if name in values else "" for name in labels] for values in rows.values()]
    last = len(rows) - 1 if last_stands_out else -1
    wide = _row("th", [corner, *heads])
    for place, (name, texts) in enumerate(zip(rows, cells, strict=True)):
        wide += _row("td", [name, *texts], attribute=' class="last"' if place == last else "")
    narrow = _row("th", [corner, *rows])
    for i, head in enumerate(heads):
        narrow += _row("td", [head, *(texts[i] for texts in cells)], last=' class="last"' if last >= 0 else "")
    return f'<table class="wide">{wide}</table><table class="narrow">{narrow}</table>'


def _row(tag: str, texts: Sequence[str], attribute: str = "", last: str = "") -> str:
    """A row of a table; `last` is an attribute of its last cell."""
    cells = "".join(f"<{tag}>{escape(text)}</{tag}>" for text in texts[:-1])
    return f"<tr{attribute}>{cells}<{tag}{last}>{escape(texts[-1])}</{tag}></tr>"


def differences_table(settings: Mapping[str, Mapping[str, str]]) -> str:
    """The config keys in which runs differ, a row each, as HTML."""
    keys = dict.fromkeys(key for values in settings.values() for key in values)
    differing = [key for key in keys if len({values.get(key) for values in settings.values()}) > 1]
    rows = _row("th", ["settings that differ", *settings])
    for key in differing:
        rows += _row("td", [key, *(values.get(key, "") for values in settings.values())])
    return f'<table class="settings">{rows}</table>'


def _section(picture: Picture, wide: bytes, narrow: bytes) -> str:
    sources = [f"data:image/png;base64,{base64.b64encode(content).decode('ascii')}" for content in (wide, narrow)]
    return (
        f'<h2 id="{picture.name}">{escape(picture.title)}</h2><figure><picture>'
        f'<source media="(min-width:900px)" srcset="{sources[0]}">'
        f'<img alt="{escape(picture.title)}" src="{sources[1]}"></picture>'
        f"<figcaption>{escape(picture.caption)}</figcaption>{picture.extra}</figure>"
    )
