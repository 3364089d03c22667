"""The utility of a run's test classes against the threshold: found once, drawn for the folder and for the report."""

import logging
from collections.abc import Mapping
from pathlib import Path

import torch

from pml_ext._files import replacing
from pml_ext.functional import UtilityCurves
from pml_ext.functional.operating_points.calibration import TooFewClassesError
from pml_ext.metrics.opis_settings import OPISSettings
from pml_ext.reports.threshold_plots import draw_utilities
from pml_ext.runner.data.datasets import OpenSet, TestSet
from pml_ext.runner.evaluation.evaluate import Features, query_and_gallery_embeddings

log = logging.getLogger("pml_ext")


def utility_of_sets(
    test_sets: Mapping[str, TestSet], features: Mapping[str, Features], opis: OPISSettings
) -> dict[str, UtilityCurves]:
    """Of each set with queries; one with too few classes or pairs is left out, with a warning in the log.

    Args:
        test_sets, features: by name.
        opis: the rates that bound the calibration range, and which pairs are compared.
    """
    thresholds = torch.linspace(0, 2, 201, dtype=torch.float64)
    found = {}
    for name, data in test_sets.items():
        if isinstance(data, OpenSet):
            try:
                found[name] = opis.curves_at(thresholds, *query_and_gallery_embeddings(data, features[name]))
            except TooFewClassesError as error:
                log.warning("no pictures of thresholds of %s: %s", name, error)
    return found


def draw_utility(path: Path, curves: UtilityCurves, far_range: tuple[float, float]) -> None:
    """Utility against distance threshold, a line for each test class, the calibration range marked (PNG)."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    low, high = curves.calibration_range.tolist()
    draw_utilities(axes, curves.thresholds, curves.utilities, (low, high), far_range)
    axes.set(title="One threshold, many classes: the spread is what OPIS measures")
    axes.legend()
    with replacing(path) as file:
        figure.savefig(file, dpi=120, format="png")
