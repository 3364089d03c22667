"""Measurements as rows of one schema: results/*.csv, which results/README.md describes."""

import csv
import io
import math
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from statistics_of_pairs import Difference

from pml_ext._files import write_atomically

SCALES = {"r1": 100, "map_at_r": 100, "tar": 100, "opis": 1000, "epsilon_opis": 1000, "mean_utility": 100}
UNITS = dict.fromkeys(SCALES, "%") | {"opis": "x1000", "epsilon_opis": "x1000"}


class Row(NamedTuple):
    """A method's value, or its difference from a base."""

    study: str
    set: str
    method: str
    measure: str
    unit: str
    value: float
    low: float = math.nan
    high: float = math.nan
    base: str = ""
    base_value: float = math.nan
    expected: str = ""
    verdict: str = ""
    note: str = ""


def of_difference(
    study: str, set_name: str, pair: tuple[str, str], measure: str, difference: Difference, **more: str
) -> Row:
    """A row of base and method; OPIS in per cent of the base's, others in points."""
    unit = "%" if difference.is_log_ratio else "points"
    base_value = SCALES[measure] * difference.base
    return Row(study, set_name, pair[1], measure, unit, *difference.shown(), pair[0], base_value, **more)


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(Row._fields)
    for row in rows:
        writer.writerow([_cell(value) for value in row])
    write_atomically(path, text.getvalue())


def _cell(value: str | float) -> str:
    if isinstance(value, str):
        return value
    return "" if math.isnan(value) else f"{value:.5g}"
