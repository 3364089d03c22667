"""HTML pages in one file each, with every picture embedded; text is escaped by the templates."""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from pml_ext._errors import UserError
from pml_ext._files import write_atomically
from pml_ext.reports.drawing import Picture, as_png
from pml_ext.reports.thumbnails import data_uri, thumbnail
from pml_ext.runner.evaluation.results import as_text, heading, labels_of

_MARK = b'<meta name="generator" content="pml_ext">'  # in base.html


@cache
def _templates() -> Environment:
    environment = Environment(
        loader=PackageLoader("pml_ext.reports"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.globals.update(data_uri=data_uri, thumbnail=thumbnail, zip=zip)
    environment.filters["basename"] = lambda path: Path(path).name
    return environment


def render(template: str, **values: Any) -> str:
    """A template of the folder `templates`, filled in."""
    return _templates().get_template(template).render(values)


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
    tables: Sequence[Mapping[str, Any]],
    pictures: Sequence[Picture],
) -> list[Path]:
    """The page of a run or of several, and each picture as PNG in a folder beside it.

    The folder is `pictures` for report.html, else it has the page's name too: runs keep theirs. about and facts are
    heading and rows of the table at the page's end. Returns the PNG files.
    """
    folder = path.parent / ("pictures" if path.stem == "report" else f"{path.stem}_pictures")
    folder.mkdir(exist_ok=True)
    files = []
    shown = {"tables": tables, "pictures": pictures}
    text = render("run.html", title=title, about=about, facts=facts.items(), **shown)
    for picture in pictures:
        if picture.draw:
            files.append(folder / f"{picture.name}.png")
            write_atomically(files[-1], as_png(picture.pixels))
    write_html(path, text)
    return files


def metrics_table(corner: str, rows: Mapping[str, Mapping[str, float]], *, mark_last: bool = True) -> dict[str, Any]:
    """Metrics by row, written as on the terminal."""
    labels = labels_of(dict(next(iter(rows.values()))))
    cells = [
        [row, *(as_text(name, values[name]) if name in values else "" for name in labels)]
        for row, values in rows.items()
    ]
    heads = [corner, *(heading(*item) for item in labels.items())]
    return {"heads": heads, "rows": cells, "marked": len(rows) - 1 if mark_last else None}


def differences_table(settings: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    """The config keys in which runs differ, a row each."""
    keys = dict.fromkeys(key for values in settings.values() for key in values)
    rows = [[key, *(values.get(key, "") for values in settings.values())] for key in keys]
    differing = [row for row in rows if len(set(row[1:])) > 1]
    return {"heads": ["settings that differ", *settings], "rows": differing, "marked": None}
