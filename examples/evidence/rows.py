"""Measurements as rows of one schema: results/*.csv, which results/README.md describes."""

import csv
import io
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy import stats
from statistics_of_pairs import Difference

from pml_ext._shared.files import write_atomically

SCALES = {"r1": 100, "map_at_r": 100, "opis": 1000, "tar": 100}
UNITS = {"r1": "%", "map_at_r": "%", "opis": "x1000", "tar": "%"}


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


def means(study: str, set_name: str, method: str, values: Mapping[str, np.ndarray], note: str) -> Iterator[Row]:
    """The mean of each measure over seeds, with its 95 % interval by t; the note is in the first row only."""
    for measure, by_seed in values.items():
        scaled = SCALES[measure] * by_seed
        half = np.nan
        if len(scaled) > 1:
            half = stats.t.ppf(0.975, len(scaled) - 1) * scaled.std(ddof=1) / np.sqrt(len(scaled))
        mean = float(scaled.mean())
        yield Row(study, set_name, method, measure, UNITS[measure], mean, mean - half, mean + half, note=note)
        note = ""


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
