"""The curves of a run's test sets: kept in its folder, and those of several runs drawn in one picture."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pml_ext._errors import UserError
from pml_ext._files import in_file_name, write_atomically
from pml_ext.functional.verification.roc import ROC
from pml_ext.metrics.threshold.fields import ThresholdCurves
from pml_ext.reports import drawing
from pml_ext.reports.drawing import Picture
from pml_ext.reports.pair_roc import tars_at_fars

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

_SHARES = (0.1, 0.5, 0.9)


class RunCurves(NamedTuple):
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
    write_atomically(path, json.dumps(curves._asdict(), allow_nan=False) + "\n")


def read_curves(path: Path) -> RunCurves:
    """UserError: not a file of `save_curves`."""
    try:
        found = RunCurves(**json.loads(path.read_text(encoding="utf-8")))
        lengths = {len(found.fars), len(found.tars)}, {*map(len, found.utilities), len(found.distances)}
        if any(len(same) > 1 for same in lengths):
            raise ValueError("its columns differ in length")
        np.asarray([*found.fars, *found.tars, *found.distances, *np.ravel(found.utilities)], float)
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise UserError(f"{path} is not a file that a run writes: {error}") from error
    return found


def compared_curves(test_set: str, runs: Mapping[str, Path]) -> Picture:
    """ROC of every run, beside the utility of its classes; ValueError where a run has kept no curves of the set."""
    files = {name: curves_file(run, test_set) for name, run in runs.items()}
    if missing := [name for name, path in files.items() if not path.is_file()]:
        raise ValueError(
            f"{', '.join(missing)}: no {next(iter(files.values())).name}, which a run with TEST.REPORT writes, and "
            "`pml-ext report` for one that is finished"
        )
    curves = {name: read_curves(path) for name, path in files.items()}
    has_utility = all(found.utilities for found in curves.values())

    def draw(figure: "Figure") -> None:
        *utility, roc = drawing.row_of_axes(figure, 1 + has_utility)
        lines: list[Line2D] = []
        for i, (name, found) in enumerate(curves.items()):
            style = drawing.look(i) | {"marker": "", "linewidth": 1.8}
            lines += roc.plot(found.fars, found.tars, label=drawing.in_legend(name), **style)
            for axes in utility:
                lower, median, upper = found.utilities
                axes.fill_between(found.distances, lower, upper, color=style["color"], alpha=0.2, linewidth=0)
                axes.plot(found.distances, median, **style)
                axes.set(ylim=(0, 1.02), xlabel="distance d (L2, unit-norm embeddings)", ylabel="utility U(d)")
        drawing.format_roc(roc, max(found.impostors for found in curves.values()))
        drawing.add_shared_legend(figure, lines)

    caption = "Accepted pairs of one identity against accepted pairs of two, at every threshold."
    if has_utility:
        caption = (
            "Utility against the threshold: the line is the median class, the band holds 10 to 90 % of the classes. "
            "The narrower a band, the better one threshold suits all classes. Then the ROC: " + caption.lower()
        )
    what = "utility and ROC" if has_utility else "ROC"
    name, height = drawing.picture_name("set_curves", test_set), 3.8 + drawing.legend_height([*curves])
    return Picture(name, f"{test_set}: {what}", caption, draw, height)
