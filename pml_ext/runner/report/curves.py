"""Training curves of runs, and curves of test sets, which are stored in a run's folder."""

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

from pml_ext._shared.errors import UserError
from pml_ext._shared.files import in_file_name, write_atomically
from pml_ext.functional.verification.roc import ROC, roc_auc
from pml_ext.metrics.headings import METRICS, heading
from pml_ext.reports import drawing
from pml_ext.reports.drawing import ReportFigure
from pml_ext.thresholds.fields import ThresholdCurves, cosine_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_RATES = ("learning_rate", "images_per_second")
_SHARES = (0.1, 0.5, 0.9)
_POINTS = 400  # of a curve; IJB-C has millions of thresholds

Series = tuple[list[float], list[float]]
"""Steps and values."""


@dataclass(frozen=True)
class RunCurves:
    """Curves of a test set. Only sets with queries have utilities.

    impostors: the number of impostor pairs; fars, tars: rates as fractions, FAR ascending; distances: (M,), ascending;
    utilities: (3, M), the utility that 10, 50 and 90 % of the classes stay below at each distance.
    """

    impostors: int
    fars: list[float]
    tars: list[float]
    distances: list[float]
    utilities: list[list[float]]


def curves_of_pairs(roc: ROC) -> RunCurves:
    """Curves of listed pairs."""
    fars, tars = tars_at_fars(roc)
    return RunCurves(
        roc.impostors,
        fars.tolist(),
        tars.tolist(),
        [],
        [],
    )


def curves_of_set(curves: ThresholdCurves, genuine: int, impostors: int) -> RunCurves:
    """Returns the curves of all pairs of a set; genuine, impostors: numbers of pairs."""
    has_far = curves.impostors > 0
    fars = curves.impostors[has_far] / impostors
    tars = curves.genuine[has_far] / genuine
    utilities = []
    if len(curves.utilities):
        utilities = np.quantile(curves.utilities.numpy(), _SHARES, axis=0).tolist()
    return RunCurves(
        impostors,
        fars.tolist(),
        tars.tolist(),
        curves.distances.tolist(),
        utilities,
    )


def tars_at_fars(roc: ROC) -> tuple[Tensor, Tensor]:
    """False accept rates from one impostor pair to all, and the largest true accept rate at each."""
    counts = torch.logspace(0, math.log10(roc.impostors), _POINTS, dtype=torch.float64)
    counts = counts.round().unique()
    last = torch.searchsorted(roc.false_accepts.double(), counts, right=True) - 1
    return counts / roc.impostors, roc.tar[last]


def curves_file(run: Path, test_set: str) -> Path:
    """Returns the file with a run's curves of a test set."""
    return run / f"curves_{in_file_name(test_set)}.json"


def save_curves(path: Path, curves: RunCurves) -> None:
    """Write curves as JSON."""
    write_atomically(path, msgspec.json.encode(curves))


def read_curves(path: Path) -> RunCurves:
    """Read a file of `save_curves`; UserError for any other file."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=RunCurves)
    except (OSError, msgspec.DecodeError) as error:
        raise UserError(f"{path} is not a file that a run writes: {error}") from error


def compared_curves(test_set: str, runs: Mapping[str, Path]) -> list[ReportFigure]:
    """ROC of every run, next to the utility of its classes; ValueError if a run has kept no curves of the set."""
    files = {name: curves_file(run, test_set) for name, run in runs.items()}
    if missing := [name for name, path in files.items() if not path.is_file()]:
        raise ValueError(
            f"{', '.join(missing)}: no {next(iter(files.values())).name}, which a run with TEST.REPORT writes"
        )
    curves = dict(zip(drawing.legend_labels(files), map(read_curves, files.values()), strict=True))
    panels = [partial(_draw_rocs, curves, "default")]
    name = f"set_curves_{in_file_name(test_set)}"
    roc = "Accepted pairs of one class against accepted pairs of two"
    if not all(curve.utilities for curve in curves.values()):
        return [ReportFigure(name, f"{test_set}: ROC", f"{roc}, at every threshold.", panels)]
    caption = (
        "Utility against the threshold: the line is the median class, the band holds 10 to 90 % of the classes. "
        f"The narrower a band, the better one threshold suits all classes. Then the ROC: {roc.lower()}."
    )
    panels.insert(0, partial(_draw_utilities, curves))
    return [ReportFigure(name, f"{test_set}: utility and ROC", caption, panels)]


def pair_roc_figure(rocs: Mapping[str, ROC]) -> ReportFigure:
    """True against false accepts of each model, with the area under its curve; of the same listed pairs."""
    curves = {}
    for name, roc in rocs.items():
        curves[f"{name}: AUC {100 * float(roc_auc(roc)):.2f} %"] = curves_of_pairs(roc)
    impostors = next(iter(rocs.values())).impostors
    caption = f"Accepted pairs of one person against accepted pairs of two, {impostors:,} of these, at every threshold."
    return ReportFigure("pair_roc", "ROC of the pairs", caption, [partial(_draw_rocs, curves, "steps-post")])


def _draw_rocs(curves: Mapping[str, RunCurves], drawstyle: str, axes: "Axes") -> None:
    for place, (label, curve) in enumerate(curves.items()):
        style = drawing.line_style(place) | {"marker": "", "linewidth": 1.8, "drawstyle": drawstyle}
        axes.plot(curve.fars, 1 - np.asarray(curve.tars), label=label, **style)
    drawing.format_det(axes, max(curve.impostors for curve in curves.values()))
    drawing.add_legend(axes)


def _draw_utilities(curves: Mapping[str, RunCurves], axes: "Axes") -> None:
    for place, (label, curve) in enumerate(curves.items()):
        style = drawing.line_style(place) | {"marker": "", "linewidth": 1.8}
        lower, median, upper = curve.utilities
        cosines = cosine_of(np.asarray(curve.distances))
        axes.fill_between(cosines, lower, upper, color=style["color"], alpha=0.2, linewidth=0)
        axes.plot(cosines, median, label=label, **style)
    axes.set(ylim=(0, 1.02), xlabel="cosine of two embeddings (1: equal)", ylabel="utility of a class (1: no errors)")
    drawing.add_legend(axes)


def read_series(run: Path) -> dict[str, Series]:
    """Each column of the run's newest csv/version_*/metrics.csv against the step; none where there is no such file.

    UserError: the file is damaged.
    """
    files = sorted(run.glob("csv/version_*/metrics.csv"), key=_version)
    series: dict[str, Series] = {}
    if not files:
        return series
    try:
        with files[-1].open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                _add_row(series, row)
    except (OSError, ValueError, TypeError, csv.Error) as error:  # TypeError: a row has more cells than the heading
        raise UserError(f"{files[-1]} is not a file that a run writes: {error}") from error
    return series


def _version(file: Path) -> int:
    return int(file.parent.name.removeprefix("version_"))


def _add_row(series: dict[str, Series], row: dict[str, str]) -> None:
    for name, value in row.items():
        if name not in ("step", "epoch") and value and row.get("step"):
            steps, values = series.setdefault(name, ([], []))
            steps.append(float(row["step"]))
            values.append(float(value))


def training_curves(series: Mapping[str, Mapping[str, Series]]) -> list[ReportFigure]:
    """A panel for each loss, metric, learning rate and throughput, with a line for each run that has it.

    series: of each run, by column.
    """
    columns = list(dict.fromkeys(column for columns_of_run in series.values() for column in columns_of_run))
    terms = [column for column in columns if column.startswith("loss/")]
    wanted = ["loss", *_RATES, *METRICS]
    if any(len(columns_of_run.keys() & terms) > 1 for columns_of_run in series.values()):
        wanted += terms
    shown = [column for column in columns if column in wanted or column.rpartition("/")[2] in METRICS]
    panels = [partial(_draw_column, column, series) for column in shown]
    caption = "The metrics are those of every validation. Losses of different kinds are not comparable with each other."
    return [ReportFigure("curves", "Over the training", caption, panels)] if panels else []


def _draw_column(column: str, series: Mapping[str, Mapping[str, Series]], axes: "Axes") -> None:
    labels = drawing.legend_labels(series)
    for place, (label, columns_of_run) in enumerate(zip(labels, series.values(), strict=True)):
        steps, values = columns_of_run.get(column, ([], []))
        marks = 1 if len(steps) < 20 else (0, len(steps))  # at each of a few points, or at the first of many
        axes.plot(steps, values, label=label, markevery=marks, **drawing.line_style(place))
    axes.set(xlabel="step")
    prefix, _, metric = column.rpartition("/")
    if metric in METRICS:
        column = f"{prefix} {heading(metric, METRICS[metric])}".strip()
        drawing.format_axis(axes.yaxis, metric)
    drawing.label_above(axes, column)
    if len(series) > 1:
        drawing.add_legend(axes)
