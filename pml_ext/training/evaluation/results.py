"""Measured numbers as a table and as a file."""

import json
import math
from pathlib import Path
from typing import Any

# the name in metrics.json -> what the table calls it
METRICS = {
    "precision_at_1": "R@1",
    "mean_average_precision_at_r": "mAP@R",
    "reid_mean_average_precision": "mAP",
    "mean_inverse_negative_penalty": "mINP",
    "opis": "OPIS",
    "epsilon_opis": "ε-OPIS",
    "NMI": "NMI",
}
ALL_PAIRS = {
    "verification_auc": "AUC",
    "equal_error_rate": "EER",
    "tar_at_far_1e-2": "TAR@1e-2",
    "tar_at_far_1e-3": "TAR@1e-3",
    "tar_at_far_1e-4": "TAR@1e-4",
}
VERIFICATION = {"accuracy": "accuracy", "accuracy_std": "± std", "auc": "AUC", "eer": "EER"}

TEMPLATES = {"eer": "EER", "auc": "AUC"}

LOWER_IS_BETTER = ("opis", "epsilon_opis", "eer", "equal_error_rate")


def as_text(name: str, value: float) -> str:
    """A metric for the table: percent, but for the threshold-inconsistency metrics."""
    if math.isnan(value):
        return "nan"
    return f"{value:.2e}" if name in ("opis", "epsilon_opis") else f"{100 * value:.2f} %"


def results_table(results: dict[str, dict[str, float]], files: dict[str, Path]) -> str:
    """The metrics of every test set, a row each, a table for each kind of set; and where the files are."""
    kinds: dict[tuple[str, ...], list[str]] = {}
    for name, values in results.items():
        kinds.setdefault(tuple(_labels(values)), []).append(name)
    lines: list[str] = []
    for columns, names in kinds.items():
        lines += [*_table(columns, {name: results[name] for name in names}), ""]
    width = max(len(label) for label in files)
    return "\n".join([*lines, *(f"{label.ljust(width)}  {path}" for label, path in files.items())])


def write_metrics(path: Path, results: dict[str, dict[str, float]], **about: Any) -> None:
    """JSON: what was measured (fractions) by test set, and what it was measured on."""
    path.write_text(json.dumps({**about, "results": results}, indent=2) + "\n", encoding="utf-8")


def _labels(values: dict[str, float]) -> dict[str, str]:
    """What is shown of a test set's metrics, and how it is called; thresholds and counts are in the file alone."""
    known = {**METRICS, **VERIFICATION, **ALL_PAIRS}
    rates = {name: name.replace("tar_at_far_", "TAR@") for name in values if name.startswith("tar_at_far_")}
    return {name: label for name, label in known.items() if name in values and name not in rates} | rates


def _table(columns: tuple[str, ...], results: dict[str, dict[str, float]]) -> list[str]:
    labels = _labels(dict.fromkeys(columns, 0.0))
    header = ["", *labels.values()]
    rows = [[name, *(as_text(m, values[m]) for m in labels)] for name, values in results.items()]
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = ["  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)) for row in [header, *rows]]
    return [lines[0], "-" * len(lines[0]), *lines[1:]]
