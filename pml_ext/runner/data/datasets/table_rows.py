"""The rows of a CSV or Parquet table, some thousands at a time."""

import csv
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

from pml_ext._errors import UserError
from pml_ext._files import require_regular

KINDS = (".csv", ".parquet")
COLUMNS = ("path", "identity", "split")  # and, where known:
CAMERA = "camera"
_AT_A_TIME = 512  # rows; a third of the time of 32,768, which the cache does not hold

Columns = Mapping[str, Sequence[str]]
"""The cells of some rows by column, "" where there is none."""


def rows_in_parts(file: Path) -> Iterator[Columns]:
    """These columns of some rows after the other; a UserError where the file cannot be read or has not all of them.

    Others of a Parquet file are not read: they may hold the images themselves.
    """
    if file.suffix not in KINDS:
        raise UserError(f"table {file}: expected a file that ends in {' or '.join(KINDS)}")
    try:
        require_regular(file)
        yield from (_csv_parts if file.suffix == ".csv" else _parquet_parts)(file)
    except ModuleNotFoundError as error:
        raise UserError(f"table {file}: reading Parquet needs pyarrow: pip install pyarrow") from error
    except (OSError, ValueError, csv.Error) as error:
        raise UserError(f"table {file} cannot be read: {error}") from error


def _csv_parts(file: Path) -> Iterator[Columns]:
    with file.open(encoding="utf-8-sig", newline="") as text:
        reader = csv.reader(text, strict=True)
        heading = _checked(next(reader, []))
        before = 0
        while rows := list(islice(filter(None, reader), _AT_A_TIME)):
            lengths = set(map(len, rows))
            if max(lengths) > len(heading):
                number = before + 1 + next(i for i, row in enumerate(rows) if len(row) > len(heading))
                raise ValueError(f"row {number} has more cells than the heading, {len(heading)}")
            if min(lengths) < len(heading):
                rows = [row + [""] * (len(heading) - len(row)) for row in rows]
            yield dict(zip(heading, zip(*rows, strict=True), strict=True))
            before += len(rows)


def _parquet_parts(file: Path) -> Iterator[Columns]:
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    try:
        with file.open("rb") as content:
            table = ParquetFile(content)
            known = [name for name in _checked(table.schema_arrow.names) if name in (*COLUMNS, CAMERA)]
            for batch in table.iter_batches(batch_size=_AT_A_TIME, columns=known):
                yield {
                    name: ["" if cell is None else str(cell) for cell in batch.column(name).to_pylist()]
                    for name in known
                }
    except ArrowException as error:
        raise ValueError(str(error)) from error


def _checked(heading: list[str]) -> list[str]:
    if len(set(heading)) < len(heading):
        raise ValueError(f"its heading names a column twice: {', '.join(heading)}")
    if not set(COLUMNS) <= set(heading):
        raise ValueError(
            f"expected the columns {', '.join(COLUMNS)} and, where known, {CAMERA}; "
            f"it has {'the columns ' + ', '.join(heading) if heading else 'none'}"
        )
    return heading
