"""A user's own data from one table: CSV or Parquet with the columns path, identity, camera (optional) and split."""

import csv
from array import array
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import count, islice
from pathlib import Path

import numpy as np

from pml_ext._errors import UserError
from pml_ext._files import require_regular
from pml_ext.runner.data.datasets.image_files import ImageFiles, paths_of, require_inside
from pml_ext.runner.data.datasets.image_set import ImageSet, Lazy, OpenSet

SPLITS = ("train", "query", "gallery")
COLUMNS = ("path", "identity", "split")  # and, where known:
CAMERA = "camera"
_AT_A_TIME = 512  # rows; a third of the time of 32,768, which the cache does not hold

Columns = Mapping[str, Sequence[str]]
"""The cells of some rows by column, "" where there is none."""


def table_set(file: Path, grey: bool) -> OpenSet:
    """The data set of a .csv (UTF-8, with a heading) or .parquet table, a row an image; a UserError names a wrong row.

    Columns: `path`, relative to the table's folder and inside it; `identity`, the same in every split; `camera`, if
    any; `split`: train, query or gallery. Without gallery rows every query searches all other queries.
    """
    numbers = {name: _Numbers() for name in ("identity", CAMERA, "split")}
    paths = paths_of(_paths(file, numbers))
    # Texts and numbers become numbers from 0; 7 of Parquet and "7" of a CSV are the same.
    names, identities = numbers["identity"].in_order()
    splits, split_of_row = numbers["split"].in_order()
    # Without cameras each image gets one of its own, so that the camera protocol removes nothing.
    cameras = numbers[CAMERA].in_order()[1] if numbers[CAMERA].known else np.arange(len(paths))
    parts = []
    for split in SPLITS if "gallery" in splits else SPLITS[:2]:
        rows = np.flatnonzero(split_of_row == (splits.index(split) if split in splits else -1))
        part = Lazy(rows, paths.__getitem__)
        images = ImageFiles(part, grey)
        parts.append(ImageSet(images, identities[rows], cameras[rows], part, dict(enumerate(names))))
    return OpenSet(*parts)


def _paths(file: Path, numbers: "dict[str, _Numbers]") -> Iterator[str]:
    """The paths of all rows, whose other columns become numbers on the way."""
    first = 1  # the number of the next row
    for columns in rows_in_parts(file):
        for name, cells in columns.items():
            if name in numbers:
                numbers[name].add(cells)
            if name in (*COLUMNS, CAMERA) and not all(map(str.strip, cells)):
                row = next(row for row, cell in enumerate(cells, start=first) if not cell.strip())
                raise UserError(f"{file}, row {row}: {name} is empty")
        if unknown := set(columns["split"]).difference(SPLITS):
            row = first + next(row for row, cell in enumerate(columns["split"]) if cell in unknown)
            raise UserError(f"{file}, row {row}: split must be one of {', '.join(SPLITS)}; got {sorted(unknown)[0]!r}")
        for row, path in enumerate(columns["path"], start=first):
            require_inside(path, file.parent, f"{file}, row {row}")
            yield f"{file.parent}/{path}"
        first += len(columns["path"])
    if first == 1:
        raise UserError(f"{file} has no rows below its heading")


class _Numbers:
    """A column of texts as numbers."""

    def __init__(self) -> None:
        self.known: defaultdict[str, int] = defaultdict(count().__next__)
        self._rows = array("i")

    def add(self, cells: Sequence[str]) -> None:
        self._rows.extend(map(self.known.__getitem__, cells))

    def in_order(self) -> tuple[list[str], np.ndarray]:
        """The different texts in order, and each row's place among them."""
        texts = sorted(self.known)
        places = np.empty(len(texts), dtype=np.int64)
        places[[self.known[text] for text in texts]] = np.arange(len(texts))
        return texts, places[np.frombuffer(self._rows, dtype=np.int32)]


def rows_in_parts(file: Path) -> Iterator[Columns]:
    """The columns of some rows after the other; a UserError if the file cannot be read or lacks one of them.

    Others of a Parquet file are not read: they may hold the images themselves.
    """
    readers = {".csv": _csv_parts, ".parquet": _parquet_parts}
    if file.suffix not in readers:
        raise UserError(f"table {file}: expected a file that ends in {' or '.join(readers)}")
    try:
        require_regular(file)
        yield from readers[file.suffix](file)
    except ModuleNotFoundError as error:
        raise UserError(f"table {file}: reading Parquet needs pyarrow: pip install pyarrow") from error
    except (OSError, ValueError, csv.Error) as error:  # pyarrow's errors are one of the first two
        raise UserError(f"table {file} cannot be read: {error}") from error


def _csv_parts(file: Path) -> Iterator[Columns]:
    with file.open(encoding="utf-8-sig", newline="") as text:
        reader = csv.reader(text, strict=True)
        heading, first = _checked(next(reader, [])), 1
        while rows := list(islice(filter(None, reader), _AT_A_TIME)):
            if max(map(len, rows)) > len(heading):
                row = next(row for row, cells in enumerate(rows, start=first) if len(cells) > len(heading))
                raise ValueError(f"row {row} has more cells than the heading, {len(heading)}")
            rows = [row + [""] * (len(heading) - len(row)) for row in rows]
            yield dict(zip(heading, zip(*rows, strict=True), strict=True))
            first += len(rows)


def _parquet_parts(file: Path) -> Iterator[Columns]:
    from pyarrow.parquet import ParquetFile

    with file.open("rb") as content:
        table = ParquetFile(content)
        known = [name for name in _checked(table.schema_arrow.names) if name in (*COLUMNS, CAMERA)]
        for batch in table.iter_batches(batch_size=_AT_A_TIME, columns=known):
            yield {name: list(map(_text, cells)) for name, cells in batch.to_pydict().items()}


def _text(cell: object) -> str:
    return "" if cell is None else str(cell)


def _checked(heading: list[str]) -> list[str]:
    if len(set(heading)) < len(heading):
        raise ValueError(f"its heading names a column twice: {', '.join(heading)}")
    if not set(COLUMNS) <= set(heading):
        raise ValueError(
            f"expected the columns {', '.join(COLUMNS)} and, where known, {CAMERA}; "
            f"it has {', '.join(heading) or 'none'}"
        )
    return heading
