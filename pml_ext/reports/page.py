"""HTML pages in one file each, with every picture embedded; text is escaped by the templates."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from pml_ext._errors import UserError
from pml_ext._files import write_atomically
from pml_ext.reports.drawing import Picture, as_png
from pml_ext.reports.thumbnails import data_uri
from pml_ext.runner.evaluation.results import as_text, heading, labels_of

_MARK = b'<meta name="generator" content="pml_ext">'  # in base.html

Table = tuple[list[str], list[list[str]]]
"""Heads and rows."""


@dataclass(frozen=True)
class Card:
    """One or two thumbnails in a frame.

    sides: the source of each thumbnail's <img>, None if it cannot be shown, and the lines below it, a name first.
    text, verdict: a score, and what it means; kind: a frame of `base.html`, "query", "right" or "wrong".
    """

    sides: Sequence[tuple[str | None, Sequence[str]]]
    text: str = ""
    verdict: str = ""
    kind: str = ""


@cache
def _templates() -> Environment:
    environment = Environment(
        loader=PackageLoader("pml_ext.reports"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.globals.update(data_uri=data_uri, zip=zip)
    return environment


def render(template: str, **values: Any) -> str:
    """A template of the folder `templates`, filled in."""
    return _templates().get_template(template).render(values)


def as_html(*, cards: Mapping[str, Sequence[Card]] | None = None, tables: Sequence[Table] = ()) -> str:
    """Rows of cards below their headings, then tables, for `Picture.extra`."""
    return render("extra.html", cards=cards or {}, tables=tables)


def require_page(path: Path) -> None:
    """Raises a UserError where a file is there that is no page of ours: a slip in a name must not cost anything."""
    if not path.is_file():
        return
    with path.open("rb") as file:
        start = file.read(1000)
    if start and _MARK not in start:
        raise UserError(f"{path} is there, and is no page of pml_ext: give the page another name, or remove that file")


def write_html(path: Path, text: str) -> None:
    """Write a page, over one of ours at most."""
    require_page(path)
    write_atomically(path, text)


def write_page(
    path: Path,
    *,
    title: str,
    about: str,
    facts: Mapping[str, str],
    notes: Sequence[str] = (),
    tables: Sequence[Table],
    marked: int | None = None,
    pictures: Sequence[Picture],
) -> list[Path]:
    """The page of a run or of several, and each drawing as PNG in a folder beside it.

    The folder is `pictures` for report.html, else it has the page's name too: runs keep theirs. about and facts are
    heading and rows of the table at the page's end; notes: the first paragraphs; marked: a row of the tables to mark.
    Returns the PNG files.
    """
    folder = path.parent / ("pictures" if path.stem == "report" else f"{path.stem}_pictures")
    folder.mkdir(exist_ok=True)
    files = []
    shown = {"tables": tables, "marked": marked, "pictures": pictures}
    text = render("run.html", title=title, about=about, facts=facts.items(), notes=notes, **shown)
    for picture in pictures:
        if picture.panels:
            files.append(folder / f"{picture.name}.png")
            write_atomically(files[-1], as_png(picture.pixels))
    write_html(path, text)
    return files


def metrics_table(corner: str, rows: Mapping[str, Mapping[str, float]]) -> Table:
    """Metrics by row, written as on the terminal."""
    labels = labels_of(next(iter(rows.values())))
    heads = [corner, *(heading(*item) for item in labels.items())]
    cells = []
    for row, values in rows.items():
        cells.append([row, *(as_text(name, values[name]) if name in values else "" for name in labels)])
    return heads, cells


def differences_table(settings: Mapping[str, Mapping[str, str]]) -> Table:
    """The config keys in which runs differ, a row each."""
    rows = []
    for key in dict.fromkeys(key for values in settings.values() for key in values):
        row = [values.get(key, "") for values in settings.values()]
        if len(set(row)) > 1:
            rows.append([key, *row])
    return ["settings that differ", *settings], rows
