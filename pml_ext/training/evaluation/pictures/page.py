"""report.html: one page with all pictures in it, which needs no network."""

import base64
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from pml_ext._files import write_atomically
from pml_ext.training.evaluation.pictures.drawing import WIDTHS, Picture
from pml_ext.training.evaluation.results import as_text, heading, labels_of

_STYLE = """
body{font:16px/1.5 system-ui,sans-serif;color:#111;max-width:1400px;margin:1.5rem auto;padding:0 1rem}
h1{font-size:1.5rem}h2{font-size:1.2rem;margin:2.2rem 0 .3rem;border-top:1px solid #ccc;padding-top:1rem}
img{max-width:100%;height:auto}figure{margin:0}figcaption{max-width:75ch;color:#333}canvas{display:block;width:100%}
.scroll{overflow-x:auto}table{border-collapse:collapse;margin:.5rem 0;font-variant-numeric:tabular-nums}
td,th{padding:.25rem .7rem;text-align:right;border-bottom:1px solid #ddd;white-space:nowrap}
td:first-child,th:first-child{text-align:left}tr.last td{font-weight:bold}nav a{margin-right:1rem;white-space:nowrap}
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
        f'<h2>{escape(about)}</h2><div class="scroll"><table>{lines}</table></div></body></html>\n',
    )
    return files


def metrics_table(corner: str, rows: Mapping[str, Mapping[str, float]], *, last_stands_out: bool = True) -> str:
    """Metrics by row as HTML, in the notation of the terminal."""
    labels = labels_of(dict(next(iter(rows.values()))))
    head = "".join(f"<th>{escape(text)}</th>" for text in (corner, *(heading(*item) for item in labels.items())))
    body = []
    for place, (name, values) in enumerate(rows.items()):
        cells = "".join(f"<td>{as_text(metric, values[metric]) if metric in values else ''}</td>" for metric in labels)
        emphasis = ' class="last"' if last_stands_out and place == len(rows) - 1 else ""
        body.append(f"<tr{emphasis}><td>{escape(name)}</td>{cells}</tr>")
    return f"<table><tr>{head}</tr>{''.join(body)}</table>"


def differences_table(settings: Mapping[str, Mapping[str, str]]) -> str:
    """The config keys in which runs differ, a row each, as HTML."""
    keys = dict.fromkeys(key for values in settings.values() for key in values)
    differing = [key for key in keys if len({values.get(key) for values in settings.values()}) > 1]
    head = "".join(f"<th>{escape(name)}</th>" for name in ("settings that differ", *settings))
    rows = "".join(
        f"<tr><td>{escape(key)}</td>"
        + "".join(f"<td>{escape(values.get(key, ''))}</td>" for values in settings.values())
        + "</tr>"
        for key in differing
    )
    return f"<table><tr>{head}</tr>{rows}</table>"


def _section(picture: Picture, wide: bytes, narrow: bytes) -> str:
    sources = [f"data:image/png;base64,{base64.b64encode(content).decode('ascii')}" for content in (wide, narrow)]
    return (
        f'<h2 id="{picture.name}">{escape(picture.title)}</h2><figure><picture>'
        f'<source media="(min-width:900px)" srcset="{sources[0]}">'
        f'<img alt="{escape(picture.title)}" src="{sources[1]}"></picture>'
        f"<figcaption>{escape(picture.caption)}</figcaption>{picture.extra}</figure>"
    )
