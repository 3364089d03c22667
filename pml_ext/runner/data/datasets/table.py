"""A user's own data from one table: CSV or Parquet with the columns path, identity, camera (optional) and split."""

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np

from pml_ext._errors import UserError
from pml_ext._files import read_regular
from pml_ext.runner.data.datasets.data_set import OpenSet
from pml_ext.runner.data.datasets.image_files import ImageFile, open_set

SPLITS = ("train", "query", "gallery")
COLUMNS = ("path", "identity", "split")
KINDS = (".csv", ".parquet")


def table_set(file: Path, grey: bool) -> OpenSet:
    """The data set of a .csv (UTF-8, with a heading) or .parquet table, a row an image; a UserError names a wrong row.

    Columns: `path`, relative to the table's folder and inside it; `identity`, the same in every split; `camera`, if
    any; `split`: train, query or gallery. Without gallery rows every query searches all other queries.
    """
    rows = _rows(file)
    if not rows or any(name not in rows[0] for name in COLUMNS):
        there = f"the columns {', '.join(rows[0])}" if rows else "no rows"
        raise UserError(f"{file}: expected the columns {', '.join(COLUMNS)} and, where known, camera; it has {there}")
    with_cameras = "camera" in rows[0]
    # Texts and numbers become numbers from 0; 7 of Parquet and "7" of a CSV are the same.
    names, identities = np.unique([str(row["identity"]) for row in rows], return_inverse=True)
    cameras = np.unique([str(row.get("camera")) for row in rows], return_inverse=True)[1]
    parts: dict[str, list[ImageFile]] = {split: [] for split in SPLITS}
    for number, (row, identity, camera) in enumerate(zip(rows, identities, cameras, strict=True), start=1):
        for name in (*COLUMNS, *(["camera"] if with_cameras else [])):
            if row[name] is None or str(row[name]).strip() == "":
                raise UserError(f"{file}, row {number}: {name} is empty")
        if row["split"] not in SPLITS:
            raise UserError(f"{file}, row {number}: split must be one of {', '.join(SPLITS)}; got {row['split']!r}")
        parts[row["split"]].append(ImageFile(_inside(file, str(row["path"]), number), int(identity), int(camera)))
    files = [parts["train"], parts["query"], *filter(None, [parts["gallery"]])]
    return open_set(files, grey, dict(enumerate(names.tolist())), cameras=with_cameras)


def _rows(file: Path) -> list[dict[str, Any]]:
    if file.suffix not in KINDS:
        raise UserError(f"table {file}: expected a file that ends in {' or '.join(KINDS)}")
    try:
        content = read_regular(file)
        if file.suffix == ".csv":
            return _csv_rows(content.decode("utf-8-sig"))
        from pyarrow import ArrowException
        from pyarrow.parquet import read_table
    except ModuleNotFoundError as error:
        raise UserError(f"table {file}: reading Parquet needs pyarrow: pip install pyarrow") from error
    except (OSError, ValueError, csv.Error) as error:
        raise UserError(f"table {file} cannot be read: {error}") from error
    try:
        rows: list[dict[str, Any]] = read_table(io.BytesIO(content)).to_pylist()
    except (OSError, ValueError, ArrowException) as error:
        raise UserError(f"table {file} cannot be read: {error}") from error
    return rows


def _csv_rows(text: str) -> list[dict[str, Any]]:
    if "\0" in text:
        raise ValueError("it holds a NUL character")
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True, restkey="")
    heading = reader.fieldnames or []
    if len(set(heading)) < len(heading):
        raise ValueError(f"its heading names a column twice: {', '.join(heading)}")
    rows = list(reader)
    for number, row in enumerate(rows, start=1):
        if "" in row and "" not in heading:
            raise ValueError(f"row {number} has more cells than the heading, {len(heading)}")
    return rows


def _inside(file: Path, path: str, number: int) -> Path:
    """The path under the table's folder; links that lead out of it are refused too."""
    folder = file.parent.resolve()
    try:
        resolved = (folder / path).resolve()
    except (OSError, RuntimeError, ValueError) as error:  # a circle of links; a character that no path has
        raise UserError(f"{file}, row {number}: {path!r} is no path that can be followed: {error}") from error
    if Path(path).is_absolute() or not resolved.is_relative_to(folder):
        raise UserError(f"{file}, row {number}: paths must lie inside {folder}, the table's folder; got {path!r}")
    return resolved
