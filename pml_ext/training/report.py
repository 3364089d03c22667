"""What a run leaves for people beside its numbers: the utility figure."""

from pathlib import Path

import torch
from yacs.config import CfgNode as CN

from pml_ext.functional.opis import utility_curves
from pml_ext.metrics.threshold_plots import draw_utilities
from pml_ext.training.datasets import OpenSet
from pml_ext.training.evaluate import Features, test_embeddings
from pml_ext.training.results import results_table as results_table
from pml_ext.training.results import write_metrics as write_metrics


def draw_utility(path: Path, data: OpenSet, features: Features, cfg: CN) -> None:
    """Utility against distance threshold, a line for each test class, the calibration range marked (PNG)."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    thresholds = torch.linspace(0, 2, 201, dtype=torch.float64)
    far_range = tuple(cfg.TEST.OPIS.FAR_RANGE)
    curves = utility_curves(*test_embeddings(data, features), far_range=far_range, thresholds=thresholds)
    figure = Figure(figsize=(8, 5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    low, high = curves.calibration_range.tolist()
    draw_utilities(axes, curves.thresholds, curves.utilities, (low, high), far_range)
    axes.set(title="One threshold, many classes: the spread is what OPIS measures")
    axes.legend()
    figure.savefig(path, dpi=120)
