"""Figures of a threshold report against its numbers."""

from typing import Any

import torch

from pml_ext.metrics import SearchPlan, ThresholdReport
from pml_ext.reports.threshold_figures import gallery_figure
from pml_ext.reports.threshold_page import searches_table

LABELS = torch.arange(40).repeat_interleave(4)


def report(**options: Any) -> ThresholdReport:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 6, generator=generator)[LABELS] + 0.6 * torch.randn(160, 6, generator=generator)
    return ThresholdReport.from_embeddings(x, LABELS, **{"far": 1e-2, **options})


def test_the_curves_are_the_rates_of_the_report() -> None:
    found = report(search=SearchPlan(10))
    assert found.searches is not None
    sizes = found.searches.sizes
    figure = gallery_figure(found)
    assert figure is not None
    fpir, fnir = (panel.axes[0] for panel in figure.panel_figures)
    drawn = [[list(values) for values in axes.lines[0].get_data()] for axes in (fpir, fnir)]
    enrolled = [1, 2, 5, 10, 20]
    assert drawn[0] == [enrolled, [one.fpir.rate for one in sizes]]
    assert drawn[1] == [enrolled, [one.fnir.rate for one in sizes if one.fnir]]


def test_no_curves_without_sizes() -> None:
    assert gallery_figure(report()) is None and searches_table(report()) is None
