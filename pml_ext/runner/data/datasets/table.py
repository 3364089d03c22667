"""Reads the user's data from a table (CSV, TSV, Parquet) with the columns path, identity, split and maybe camera."""

import os
from pathlib import Path
from typing import Any

from pml_ext._shared.errors import UserError, import_library
from pml_ext._shared.files import TABLE_SUFFIXES, require_regular
from pml_ext._shared.identities import find_columns, read_ids
from pml_ext.runner.data.datasets.image_files import ImageFile, open_set, require_inside
from pml_ext.runner.data.datasets.image_set import OpenSet

SPLITS = ("train", "query", "gallery")
COLUMNS = {name: name for name in ("path", "identity", "split", "camera")}
REQUIRED = ("path", "identity", "split")
_DELIMITERS = {".csv": ",", ".tsv": "\t"}


def table_set(file: Path, grey: bool) -> OpenSet:
    """Reads a .csv or .tsv (UTF-8, with a heading) or .parquet table with a row per image.

    Columns, by any of the names in COLUMN_NAMES: `path`, relative to the table's folder and inside it; `identity`, the
    same in every split, −1 for junk; `camera` (optional); `split`: train, query or gallery. Without gallery rows every
    query searches all other queries. Raises UserError with the number of the first invalid row, from 1.
    """
    table = read_table(file)
    columns = {name: table[name].to_pylist() for name in table.column_names}
    for name in {*columns} - {"path"}:
        ids = read_ids(columns[name], len(table), f"{file}: {name}", first_row=1)
        columns[name] = ids.astype(str).tolist()  # 7 in Parquet is "7" in CSV
    cameras = columns.get("camera", [None] * len(table))
    parts: dict[str, list[ImageFile]] = {split: [] for split in SPLITS}
    rows = zip(columns["path"], columns["identity"], cameras, columns["split"], strict=True)
    for row, (path, identity, camera, split) in enumerate(rows, 1):
        where = f"{file}, row {row}"
        if split.lower() not in parts:
            raise UserError(f"{where}: split must be one of {', '.join(SPLITS)}; got {split!r}")
        if not path:
            raise UserError(f"{where}: path is empty")
        require_inside(path, file.parent, where)
        if "\\" in path and not os.path.lexists(file.parent / path):
            raise UserError(f"{where}: no image at {path}: write / between folders, backslashes work on Windows only")
        parts[split.lower()].append(ImageFile(f"{file.parent}/{path}", identity, camera))
    return open_set([parts[split] for split in (SPLITS if parts["gallery"] else SPLITS[:2])], grey)


def read_table(file: Path) -> Any:
    """Returns a table's known columns as a pyarrow Table; raises UserError if one is missing.

    Does not read other columns: in Parquet they may contain the images.
    """
    suffix = file.suffix.lower()
    if suffix not in TABLE_SUFFIXES:
        raise UserError(f"table {file}: expected a file that ends in {', '.join(TABLE_SUFFIXES)}")
    import_library("pyarrow", needed_for=f"table {file}", install="pyarrow")
    try:
        require_regular(file)
        table = _read_parquet(file) if suffix == ".parquet" else _read_text(file, _DELIMITERS[suffix])
    except UserError:
        raise
    except (OSError, ValueError) as error:  # pyarrow's errors are one of them
        raise UserError(f"table {file} cannot be read: {error}") from error
    if not len(table):
        raise UserError(f"{file} has no rows below its heading")
    return table


def _read_text(file: Path, delimiter: str) -> Any:
    import pyarrow
    from pyarrow import csv

    options = {
        "read_options": csv.ReadOptions(use_threads=False),  # errors then contain the row
        "parse_options": csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
    }
    with file.open("rb") as content, csv.open_csv(content, **options) as reader:
        places = find_columns(file, reader.schema.names, COLUMNS, REQUIRED)
    types = dict.fromkeys(places.values(), pyarrow.string())
    options["convert_options"] = csv.ConvertOptions(include_columns=list(types), column_types=types)
    with file.open("rb") as content:
        return csv.read_csv(content, **options).rename_columns(list(places))


def _read_parquet(file: Path) -> Any:
    from pyarrow.parquet import ParquetFile

    with file.open("rb") as content:
        table = ParquetFile(content)
        places = find_columns(file, table.schema_arrow.names, COLUMNS, REQUIRED)
        return table.read(list(places.values())).select(list(places.values())).rename_columns(list(places))
