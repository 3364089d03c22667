"""Reads the user's data from a table, CSV or Parquet, with the columns path, identity, camera (optional) and split."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from pml_ext._errors import UserError, import_library
from pml_ext._files import require_regular
from pml_ext.runner.data.datasets.image_files import ImageFiles, paths_of, require_inside
from pml_ext.runner.data.datasets.image_set import ImageSet, Lazy, OpenSet

SPLITS = ("train", "query", "gallery")
COLUMNS = ("path", "identity", "split")  # and optionally:
CAMERA = "camera"


def table_set(file: Path, grey: bool) -> OpenSet:
    """Reads a .csv (UTF-8, with a heading) or .parquet table with a row per image.

    Columns: `path`, relative to the table's folder and inside it; `identity`, the same in every split; `camera`
    (optional); `split`: train, query or gallery. Without gallery rows every query searches all other queries. Raises
    UserError with the number of the first invalid row.
    """
    table = read_table(file)
    _require_cells(table, file)
    paths = paths_of(_paths(table, file))
    names, identities = _numbered(table["identity"])
    splits, split_of_row = _numbered(table["split"])
    # Without cameras each image gets a unique one, so that the camera protocol removes nothing.
    cameras = _numbered(table[CAMERA])[1] if CAMERA in table.column_names else np.arange(len(paths))
    parts = []
    for split in SPLITS if "gallery" in splits else SPLITS[:2]:
        rows = np.flatnonzero(split_of_row == (splits.index(split) if split in splits else -1))
        part = Lazy(rows, paths.__getitem__)
        images = ImageFiles(part, grey)
        parts.append(ImageSet(images, identities[rows], cameras[rows], part, dict(enumerate(names))))
    return OpenSet(*parts)


def read_table(file: Path) -> Any:
    """Returns a table's known columns as a pyarrow Table of strings, "" for null; raises UserError if one is missing.

    7 in Parquet and "7" in CSV are the same. Does not read other columns: in Parquet they may contain the images.
    """
    if file.suffix not in (".csv", ".parquet"):
        raise UserError(f"table {file}: expected a file that ends in .csv or .parquet")
    import_library("pyarrow", needed_for=f"table {file}", install="pyarrow")
    import pyarrow

    try:
        require_regular(file)
        table = _read_csv(file) if file.suffix == ".csv" else _read_parquet(file)
        known = [name for name in (*COLUMNS, CAMERA) if name in table.column_names]
        columns = [table[name].cast(pyarrow.string()).fill_null("") for name in known]
    except (OSError, ValueError) as error:  # pyarrow's errors are one of them
        raise UserError(f"table {file} cannot be read: {error}") from error
    if not len(table):
        raise UserError(f"{file} has no rows below its heading")
    return pyarrow.table(columns, known)


def _read_csv(file: Path) -> Any:
    import pyarrow
    from pyarrow import csv

    types = dict.fromkeys((*COLUMNS, CAMERA), pyarrow.string())
    table = csv.read_csv(
        file,
        csv.ReadOptions(use_threads=False),  # errors then contain the row
        parse_options=csv.ParseOptions(newlines_in_values=True),
        convert_options=csv.ConvertOptions(column_types=types),
    )
    _require_columns(table.column_names)
    return table


def _read_parquet(file: Path) -> Any:
    from pyarrow.parquet import ParquetFile

    with file.open("rb") as content:
        table = ParquetFile(content)
        names = table.schema_arrow.names
        _require_columns(names)
        return table.read([name for name in names if name in (*COLUMNS, CAMERA)])


def _require_columns(heading: list[str]) -> None:
    if len(set(heading)) < len(heading):
        raise ValueError(f"its heading has a duplicate column: {', '.join(heading)}")
    if not set(COLUMNS) <= set(heading):
        raise ValueError(
            f"expected the columns {', '.join(COLUMNS)} and optionally {CAMERA}; it has {', '.join(heading)}"
        )


def _require_cells(table: Any, file: Path) -> None:
    """Raises a UserError with the number of the first row that has an empty cell or an unknown split."""
    import pyarrow
    from pyarrow import compute

    for name in table.column_names:
        is_empty = compute.equal(compute.utf8_trim_whitespace(table[name]), "")
        if (row := is_empty.index(True).as_py()) >= 0:
            raise UserError(f"{file}, row {row + 1}: {name} is empty")
    is_known = compute.is_in(table["split"], pyarrow.array(SPLITS))
    if (row := is_known.index(False).as_py()) >= 0:
        given = table["split"][row].as_py()
        raise UserError(f"{file}, row {row + 1}: split must be one of {', '.join(SPLITS)}; got {given!r}")


def _paths(table: Any, file: Path) -> Iterator[str]:
    row = 0
    for chunk in table["path"].chunks:
        for path in chunk.to_pylist():
            row += 1
            require_inside(path, file.parent, f"{file}, row {row}")
            yield f"{file.parent}/{path}"


def _numbered(column: Any) -> tuple[list[str], np.ndarray]:
    """Returns the sorted unique strings of a column, and each row's index among them."""
    encoded = column.combine_chunks().dictionary_encode()
    texts = encoded.dictionary.to_pylist()
    names = sorted(texts)
    place = {name: number for number, name in enumerate(names)}
    places = np.array([place[text] for text in texts], dtype=np.int64)
    return names, places[encoded.indices.to_numpy()]
