"""A user's own data from one table: CSV or Parquet with the columns path, identity, camera (optional) and split."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from pml_ext._errors import UserError
from pml_ext.runner.data.datasets.data_set import OpenSet
from pml_ext.runner.data.datasets.image_files import file_set, open_set_of, paths_of, require_inside
from pml_ext.runner.data.datasets.image_set import Lazy
from pml_ext.runner.data.datasets.table_rows import CAMERA, COLUMNS, Columns, rows_in_parts

SPLITS = ("train", "query", "gallery")


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
    with_cameras = bool(numbers[CAMERA].known)
    cameras = numbers[CAMERA].in_order()[1] if with_cameras else np.zeros_like(identities)
    called, parts = dict(enumerate(names)), []
    for split in SPLITS if "gallery" in splits else SPLITS[:2]:
        rows = np.flatnonzero(split_of_row == splits.index(split)) if split in splits else np.arange(0)
        parts.append(file_set(Lazy(rows, paths.__getitem__), identities[rows], cameras[rows], grey, called))
    return open_set_of(parts, cameras=with_cameras)


def _paths(file: Path, numbers: "dict[str, _Numbers]") -> Iterator[str]:
    """The paths of all rows, whose other columns become numbers on the way."""
    first = 1  # the number of the next row
    for columns in rows_in_parts(file):
        _require_filled(columns, file, first)
        for name in numbers.keys() & columns.keys():
            numbers[name].add(columns[name])
        for row, path in enumerate(columns["path"], start=first):
            require_inside(path, file.parent, f"{file}, row {row}")
            yield f"{file.parent}/{path}"
        first += len(columns["path"])
    if first == 1:
        raise UserError(f"{file} has no rows below its heading")


def _require_filled(columns: Columns, file: Path, first: int) -> None:
    for name in filter(columns.__contains__, (*COLUMNS, CAMERA)):
        if not all(map(str.strip, columns[name])):
            row = next(row for row, cell in enumerate(columns[name], start=first) if not cell.strip())
            raise UserError(f"{file}, row {row}: {name} is empty")
    if not set(columns["split"]) <= set(SPLITS):
        row, cell = next((row, cell) for row, cell in enumerate(columns["split"], start=first) if cell not in SPLITS)
        raise UserError(f"{file}, row {row}: split must be one of {', '.join(SPLITS)}; got {cell!r}")


class _Numbers:
    """A column of texts as numbers."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}
        self._parts: list[np.ndarray] = []

    def add(self, cells: Sequence[str]) -> None:
        for cell in set(cells).difference(self.known):
            self.known[cell] = len(self.known)
        self._parts.append(np.fromiter(map(self.known.__getitem__, cells), dtype=np.int32, count=len(cells)))

    def in_order(self) -> tuple[list[str], np.ndarray]:
        """The different texts in order, and each row's place among them."""
        texts = sorted(self.known)
        places = np.empty(len(texts), dtype=np.int64)
        places[[self.known[text] for text in texts]] = np.arange(len(texts))
        return texts, places[np.concatenate(self._parts)]
