"""What a run leaves for people: the table, metrics.json, the utility figure."""

import json
from pathlib import Path
from typing import Any

import torch
from yacs.config import CfgNode as CN

from pml_ext.functional.opis import utility_curves
from pml_ext.training.datasets import OpenSet
from pml_ext.training.evaluate import METRICS, Features, as_text, test_embeddings


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


def draw_utility(path: Path, data: OpenSet, features: Features, cfg: CN) -> None:
    """Utility against distance threshold, a line for each test class, the calibration range marked (PNG)."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    thresholds = torch.linspace(0, 2, 201, dtype=torch.float64)
    far_range = tuple(cfg.TEST.OPIS.FAR_RANGE)
    curves = utility_curves(*test_embeddings(data, features), far_range=far_range, thresholds=thresholds)
    figure = Figure(figsize=(8, 5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot(xlabel="distance threshold d (L2, unit-norm embeddings)", ylabel="utility U(d)")
    low, high = curves.calibration_range.tolist()
    fars = " to ".join(f"{far:g}" for far in far_range)
    axes.axvspan(low, high, color="tab:orange", alpha=0.2, label=f"calibration range: FAR {fars}")
    for utility in curves.utilities:
        axes.plot(curves.thresholds, utility, color="tab:blue", alpha=max(0.15, min(0.8, 8 / len(curves.utilities))))
    axes.plot([], [], color="tab:blue", label=f"{len(curves.utilities)} test classes")
    axes.plot(curves.thresholds, curves.utilities.mean(dim=0), color="black", linewidth=2, label="mean")
    axes.set(xlim=(0, 2), ylim=(0, 1), title="One threshold, many classes: the spread is what OPIS measures")
    axes.legend()
    figure.savefig(path, dpi=120)
