"""Curves of runs: over the training, and of a run's test sets, which it keeps in its folder."""

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import torch
from torch import Tensor

from pml_ext._errors import UserError
from pml_ext._files import in_file_name, write_atomically
from pml_ext.functional.verification.roc import ROC, roc_auc
from pml_ext.metrics.keys import OPIS, PRECISION_AT_1
from pml_ext.metrics.threshold.structures import ThresholdCurves
from pml_ext.reports import drawing
from pml_ext.reports.drawing import Picture
from pml_ext.runner.evaluation.results import METRICS, NO_RATES, heading

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HARD_TRIPLETS = "epoch/hard_triplets"
_VALIDATION, _OPIS = "validation", heading(OPIS, METRICS[OPIS])
_SHARES = (0.1, 0.5, 0.9)
_POINTS = 400  # of a curve; IJB-C has millions of thresholds

Series = tuple[list[float], list[float]]
"""Steps and values."""


@dataclass(frozen=True)
class RunCurves:
    """Of a test set. Only sets with queries have utilities.

    impostors: the number of impostor pairs; fars, tars: rates as fractions, FAR ascending; distances: (M,), ascending;
    utilities: (3, M), the utility that 10, 50 and 90 % of the classes stay below at each distance.
    """

    impostors: int
    fars: list[float]
    tars: list[float]
    distances: list[float]
    utilities: list[list[float]]


def curves_of_pairs(roc: ROC) -> RunCurves:
    """Of listed pairs."""
    fars, tars = tars_at_fars(roc)
    return RunCurves(roc.impostors, fars.tolist(), tars.tolist(), [], [])


def curves_of_set(curves: ThresholdCurves, genuine: int, impostors: int) -> RunCurves:
    """Of all pairs of a set; genuine, impostors: how many there are."""
    found = curves.impostors > 0
    fars, tars = curves.impostors[found] / impostors, curves.genuine[found] / genuine
    classes = curves.utilities.numpy()
    utilities = np.quantile(classes, _SHARES, axis=0).tolist() if len(classes) else []
    return RunCurves(impostors, fars.tolist(), tars.tolist(), curves.distances.tolist(), utilities)


def curves_file(run: Path, test_set: str) -> Path:
    """Where a run keeps the curves of a test set."""
    return run / f"curves_{in_file_name(test_set)}.json"


def save_curves(path: Path, curves: RunCurves) -> None:
    """As JSON, which `read_curves` reads."""
    write_atomically(path, msgspec.json.encode(curves))


def read_curves(path: Path) -> RunCurves:
    """UserError: not a file of `save_curves`."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=RunCurves)
    except (OSError, msgspec.DecodeError) as error:
        raise UserError(f"{path} is not a file that a run writes: {error}") from error


def compared_curves(test_set: str, runs: Mapping[str, Path]) -> Picture:
    """ROC of every run, beside the utility of its classes; ValueError where a run has kept no curves of the set."""
    files = {name: curves_file(run, test_set) for name, run in runs.items()}
    if missing := [name for name, path in files.items() if not path.is_file()]:
        raise ValueError(
            f"{', '.join(missing)}: no {next(iter(files.values())).name}, which a run with TEST.REPORT writes, and "
            "`pml-ext report` for one that is finished"
        )
    curves = {name: read_curves(path) for name, path in files.items()}

    def draw_utility(axes: "Axes") -> None:
        for place, (name, found) in enumerate(curves.items()):
            style = drawing.look(place) | {"marker": "", "linewidth": 1.8}
            lower, median, upper = found.utilities
            axes.fill_between(found.distances, lower, upper, color=style["color"], alpha=0.2, linewidth=0)
            axes.plot(found.distances, median, label=drawing.in_legend(name), **style)
        axes.set(ylim=(0, 1.02), xlabel="distance d (L2, unit-norm embeddings)", ylabel="utility U(d)")
        drawing.add_legend(axes)

    def draw_roc(axes: "Axes") -> None:
        for place, (name, found) in enumerate(curves.items()):
            style = drawing.look(place) | {"marker": "", "linewidth": 1.8}
            axes.plot(found.fars, found.tars, label=drawing.in_legend(name), **style)
        drawing.format_roc(axes, max(found.impostors for found in curves.values()))
        drawing.add_legend(axes)

    name, roc = (
        f"set_curves_{in_file_name(test_set)}",
        "Accepted pairs of one class against accepted pairs of two",
    )
    if not all(found.utilities for found in curves.values()):
        return Picture(name, f"{test_set}: ROC", f"{roc}, at every threshold.", [draw_roc])
    caption = (
        "Utility against the threshold: the line is the median class, the band holds 10 to 90 % of the classes. "
        f"The narrower a band, the better one threshold suits all classes. Then the ROC: {roc.lower()}."
    )
    return Picture(name, f"{test_set}: utility and ROC", caption, [draw_utility, draw_roc])


def pair_roc_picture(rocs: Mapping[str, ROC]) -> Picture:
    """True against false accepts of each model, with the area under its curve; of the same listed pairs."""
    impostors = next(iter(rocs.values())).impostors

    def draw(axes: "Axes") -> None:
        for place, (name, roc) in enumerate(rocs.items()):
            style = drawing.look(place) | {"marker": "", "drawstyle": "steps-post", "linewidth": 1.8}
            axes.plot(*tars_at_fars(roc), label=f"{name}: AUC {100 * float(roc_auc(roc)):.2f} %", **style)
        drawing.format_roc(axes, impostors)
        drawing.add_legend(axes)

    caption = f"Accepted pairs of one person against accepted pairs of two, {impostors:,} of these, at every threshold."
    return Picture("pair_roc", "ROC of the pairs", caption, [draw])


def tars_at_fars(roc: ROC) -> tuple[Tensor, Tensor]:
    """False accept rates from one impostor pair to all, and the largest true accept rate at each."""
    counts = torch.logspace(0, math.log10(roc.impostors), _POINTS, dtype=torch.float64).round().unique()
    last = torch.searchsorted(roc.false_accepts.double(), counts, right=True) - 1
    return counts / roc.impostors, roc.tar[last]


def read_series(run: Path) -> dict[str, Series]:
    """Each column of the run's newest csv/version_*/metrics.csv against the step; none where there is no such file.

    UserError: the file is damaged.
    """
    files = sorted(run.glob("csv/version_*/metrics.csv"), key=lambda path: int(path.parent.name.split("_")[1]))
    series: dict[str, Series] = {}
    if not files:
        return series
    try:
        with files[-1].open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                for name, value in row.items():
                    if name not in ("step", "epoch") and value and row.get("step"):
                        steps, values = series.setdefault(name, ([], []))
                        steps.append(float(row["step"]))
                        values.append(float(value))
    except (OSError, ValueError, TypeError, csv.Error) as error:  # TypeError: a row has more cells than the heading
        raise UserError(f"{files[-1]} is not a file that a run writes: {error}") from error
    return series


def training_curves(series: dict[str, Series]) -> Picture:
    """Losses, learning rate, validation metrics and throughput against the step."""
    losses = {name.removeprefix("loss/"): s for name, s in series.items() if name.startswith("loss/")}
    shown_rates = METRICS.keys() - set(NO_RATES)
    rates = {name: s for name, s in series.items() if name.rpartition("/")[2] in shown_rates}
    opis = {name: s for name, s in series.items() if name.rpartition("/")[2] == OPIS}
    steady = {"learning rate": "learning_rate", "images a second": "images_per_second"}
    panels = {"loss": losses, _VALIDATION: rates, _OPIS: opis}
    panels |= {what: {name: series[name]} for what, name in steady.items() if name in series}
    shown = [partial(_draw_series, what, found) for what, found in panels.items() if found]
    caption = "Losses, the metrics of every validation, learning rate and throughput, against training steps."
    return Picture("curves", "While it trained", caption, shown)


def _draw_series(what: str, shown: Mapping[str, Series], axes: "Axes") -> None:
    for place, (name, (steps, values)) in enumerate(shown.items()):
        prefix, _, metric = name.rpartition("/")
        label = f"{prefix} {heading(metric, METRICS[metric])}".strip() if metric in METRICS else name
        drawing.plot_series(axes, steps, values, label, place)
    axes.set(xlabel="step", ylim=(0, 1.08 * max(axes.dataLim.y1, 1e-12)))
    drawing.label_above(axes, what)
    if what in (_VALIDATION, _OPIS):
        drawing.format_axis(axes.yaxis, OPIS if what == _OPIS else PRECISION_AT_1)
    if len(shown) > 1:
        drawing.add_legend(axes)
