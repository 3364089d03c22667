"""HTML pages in one file each, with every image embedded; text is escaped by the templates."""

import base64
import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from torch import Tensor

from pml_ext._shared.errors import LaterErrors, UserError
from pml_ext._shared.files import read_regular, write_atomically
from pml_ext.metrics.headings import as_text, heading, labels_of_rows
from pml_ext.reports.drawing import ReportFigure, as_png

_MARK = b'<meta name="generator" content="pml_ext">'  # in base.html
_SIDE = 112  # pixels of a thumbnail

Table = tuple[list[str], list[list[str]]]
"""Column headings and rows."""


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
    loader = PackageLoader("pml_ext.reports")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.globals.update(data_uri=data_uri, zip=zip)
    return environment


def render(template: str, **values: Any) -> str:
    """Render a template of the folder `templates`."""
    return _templates().get_template(template).render(values)


def as_html(*, cards: Mapping[str, Sequence[Card]] | None = None, tables: Sequence[Table] = ()) -> str:
    """Returns rows of cards below their headings, then tables, for `ReportFigure.extra`."""
    return render("extra.html", cards=cards or {}, tables=tables)


def require_page(path: Path) -> None:
    """Raise a UserError if the file exists and is not a pml_ext page, so that a typo overwrites no other file."""
    if not path.is_file():
        return
    with path.open("rb") as file:
        start = file.read(1000)
    if start and _MARK not in start:
        raise UserError(f"{path} is there, and is no page of pml_ext: give the page another name, or remove that file")


def write_html(path: Path, text: str) -> None:
    """Write a page; overwrites only pml_ext pages."""
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
    figures: Sequence[ReportFigure],
) -> None:
    """Write the page of one or several runs, and each figure as a PNG file in a folder next to it.

    The folder is `pictures` for report.html and `PAGE_pictures` for other pages, so that none overwrites a run's.

    Args:
        about, facts: heading and rows of the table at the page's end.
        notes: the first paragraphs.
        marked: a row of the tables to mark.
    Raises:
        OutputError: at the end, if an unforeseen error stands in place of a figure.
    """
    folder = path.parent / ("pictures" if path.stem == "report" else f"{path.stem}_pictures")
    if figures:
        folder.mkdir(exist_ok=True)
    shown = {"notes": notes, "tables": tables, "marked": marked, "figures": figures}
    text = render("run.html", title=title, about=about, facts=facts.items(), **shown)
    write_html(path, text)  # it refuses to replace another program's page; the figures follow
    for figure in figures:
        if figure.panels:
            write_atomically(folder / f"{figure.name}.png", as_png(figure.pixels))
    later = LaterErrors()
    for figure in figures:
        if figure.error is not None:
            later.add(f"the figures of {path}", figure.error)
    later.raise_together()


def metrics_table(corner: str, rows: Mapping[str, Mapping[str, float]]) -> Table:
    """Returns a table of metrics by row, formatted as on the terminal."""
    labels = labels_of_rows(rows.values())
    heads = [corner, *(heading(*item) for item in labels.items())]
    cells = []
    for row, values in rows.items():
        texts = [as_text(name, values[name]) if name in values else "" for name in labels]
        cells.append([row, *texts])
    return heads, cells


def data_uri(content: bytes, kind: str = "png") -> str:
    """Returns the content of an image file as the source of an <img>."""
    return f"data:image/{kind};base64,{base64.b64encode(content).decode('ascii')}"


def thumbnail(image: str | Path | Tensor | None) -> str | None:
    """Returns a thumbnail of at most 112 pixels per side as the source of an <img>; None for unreadable images.

    A file (regular, up to Pillow's limit of pixels) or (1 or 3, h, w) uint8 pixels.
    """
    from PIL import Image

    from pml_ext._shared.images import decode

    if not isinstance(image, Tensor):
        if image is None or not os.path.isfile(image):
            return None
        try:
            image = decode(read_regular(image), str(image), least_side=_SIDE)
        except (OSError, UserError):
            return None
    content = io.BytesIO()
    Image.fromarray(shrink(image, _SIDE)).save(content, "JPEG", quality=85)
    return data_uri(content.getvalue(), "jpeg")


def shrink(image: Tensor, side: int) -> np.ndarray:
    """Shrink (1 or 3, h, w) uint8 to (h', w', 3) uint8 with no side above `side`."""
    from PIL import Image

    pixels = image.permute(1, 2, 0).expand(-1, -1, 3)
    small = Image.fromarray(pixels.contiguous().numpy())
    small.thumbnail((side, side))
    return np.asarray(small)
