"""Measured numbers as a table and as a file."""

import json
import math
from pathlib import Path
from typing import Any

# the calculator's name -> what the table calls it
METRICS = {
    "precision_at_1": "R@1",
    "mean_average_precision_at_r": "mAP@R",
    "reid_mean_average_precision": "mAP",
    "mean_inverse_negative_penalty": "mINP",
    "opis": "OPIS",
    "epsilon_opis": "ε-OPIS",
    "NMI": "NMI",
}


def as_text(name: str, value: float) -> str:
    """A metric for the table: percent, but for the threshold-inconsistency metrics."""
    if math.isnan(value):
        return "nan"
    return f"{value:.2e}" if name in ("opis", "epsilon_opis") else f"{100 * value:.2f} %"


def results_table(results: dict[str, dict[str, float]], files: dict[str, Path]) -> str:
    """The metrics of every test set, a row each, and where the files are."""
    header = ["", *METRICS.values()]
    rows = [[name, *(as_text(m, values[m]) for m in METRICS)] for name, values in results.items()]
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = ["  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)) for row in [header, *rows]]
    lines.insert(1, "-" * len(lines[0]))
    width = max(len(label) for label in files)
    return "\n".join([*lines, "", *(f"{label.ljust(width)}  {path}" for label, path in files.items())])


def write_metrics(path: Path, results: dict[str, dict[str, float]], **about: Any) -> None:
    """JSON: what was measured (fractions) by test set, and what it was measured on."""
    path.write_text(json.dumps({**about, "results": results}, indent=2) + "\n", encoding="utf-8")
