"""What a search has found as one HTML page without outside resources."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from pml_ext._files import write_atomically
from pml_ext.reports.thumbnails import thumbnail

MOST = 100
"""Queries on a page."""

_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;color:#111;background:#fff;max-width:1400px;margin:1.5rem auto;"
    "padding:0 1rem}h1{font-size:1.5rem}section{border-top:1px solid #ccc;margin-top:1.2rem;padding-top:.8rem}"
    ".row{display:flex;flex-wrap:wrap;gap:.7rem}.hit{width:8.2rem;border:1px solid #888;border-radius:.3rem;"
    "padding:.4rem;font-size:.85rem;overflow-wrap:anywhere}.hit img{display:block;max-width:100%}"
    ".accept{border:3px solid #111}.reject{border-style:dashed;color:#444}.query{border:3px double #111}"
    "td{padding:.2rem .8rem .2rem 0;vertical-align:top;overflow-wrap:anywhere}"
)


@dataclass(frozen=True)
class Hit:
    """A row that was found.

    Attributes:
        path: of its picture, as in the index.
        picture: the file to show; None where it cannot be shown.
        accepted: the threshold's decision; None without a threshold.
    """

    row: int
    cosine: float
    path: str
    picture: Path | None
    accepted: bool | None


@dataclass(frozen=True)
class Answer:
    """What a query has found; the query's own picture where there is one."""

    query: str
    picture: Path | None
    hits: Sequence[Hit]


def write_hits(path: str | Path, answers: Sequence[Answer], facts: Mapping[str, str]) -> None:
    """Write the page; text is escaped and the pictures are embedded.

    Raises:
        OSError: it cannot be written.
    """
    left_out = f"<p>The first {MOST} of {len(answers)} queries.</p>" if len(answers) > MOST else ""
    rows = "".join(f"<tr><td>{escape(name)}</td><td>{escape(text)}</td></tr>" for name, text in facts.items())
    write_atomically(
        path,
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Search</title>'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<style>{_STYLE}</style></head><body><h1>The closest pictures</h1>{left_out}"
        f"{''.join(map(_section, answers[:MOST]))}<section><table>{rows}</table></section></body></html>\n",
    )


def _section(answer: Answer) -> str:
    query = _card("query", answer.picture, f"<b>query</b><br>{escape(answer.query)}")
    hits = []
    for place, hit in enumerate(answer.hits, start=1):
        decision = "" if hit.accepted is None else "accept" if hit.accepted else "reject"
        text = f"{place}. cosine {hit.cosine:.4f} <b>{decision}</b><br>{escape(hit.path or f'row {hit.row}')}"
        hits.append(_card(decision, hit.picture, text))
    return f'<section><div class="row">{query}{"".join(hits)}</div></section>'


def _card(kind: str, picture: Path | None, text: str) -> str:
    source = thumbnail(str(picture)) if picture else None
    image = f'<img alt="" src="{source}">' if source else ""
    return f'<div class="hit {kind}">{image}{text}</div>'
