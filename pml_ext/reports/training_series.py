"""Losses and metrics over a training, from its metrics.csv."""

import csv
from pathlib import Path
from typing import TYPE_CHECKING

from pml_ext._errors import UserError
from pml_ext.metrics.keys import OPIS, PRECISION_AT_1
from pml_ext.reports.drawing import Picture, add_legend, format_axis, label_above, plot_series, row_of_axes
from pml_ext.runner.evaluation.results import METRICS, NO_RATES, heading

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HARD_TRIPLETS = "epoch/hard_triplets"
_VALIDATION, _OPIS = "validation", heading(OPIS, METRICS[OPIS])

Series = tuple[list[float], list[float]]
"""Steps and values."""


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
    panels = {what: shown for what, shown in panels.items() if shown}

    def draw(figure: "Figure") -> None:
        for axes, (what, shown) in zip(row_of_axes(figure, len(panels)), panels.items(), strict=True):
            for i, (name, (steps, values)) in enumerate(shown.items()):
                prefix, _, metric = name.rpartition("/")
                label = f"{prefix} {heading(metric, METRICS[metric])}".strip() if metric in METRICS else name
                plot_series(axes, steps, values, label, i)
            axes.set(xlabel="step", ylim=(0, 1.08 * max(axes.dataLim.y1, 1e-12)))
            label_above(axes, what)
            if what in (_VALIDATION, _OPIS):
                format_axis(axes.yaxis, OPIS if what == _OPIS else PRECISION_AT_1)
            if len(shown) > 1:
                longest = max(len(str(line.get_label())) for line in axes.lines)
                add_legend(axes, beside=False, columns=2 if longest <= 20 else 1)

    caption = "Losses, the metrics of every validation, learning rate and throughput, against training steps."
    return Picture("curves", "While it trained", caption, draw, 3.8)
