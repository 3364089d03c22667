"""Figures of a threshold report against its numbers."""

import math
from typing import Any

import pytest
import torch

from pml_ext.metrics import SearchPlan, ThresholdReport
from pml_ext.reports.threshold_figures import calibration_picture, counts_by_score, gallery_picture
from pml_ext.reports.threshold_page import searches_table
from pml_ext.reports.threshold_text import percent, with_interval

LABELS = torch.arange(40).repeat_interleave(4)


def report(**options: Any) -> ThresholdReport:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 6, generator=generator)[LABELS] + 0.6 * torch.randn(160, 6, generator=generator)
    return ThresholdReport.from_embeddings(x, LABELS, **{"splits": 0, "far": 1e-2, **options})


def test_the_line_and_the_threshold_of_the_calibration() -> None:
    found = report()
    assert found.curves is not None and found.calibration is not None
    picture = calibration_picture(found, found.curves)
    assert picture is not None
    lines = {line.get_label(): line for line in picture.figures[0].axes[0].lines}
    scores, drawn = lines["logistic regression"].get_data()
    expected = (found.calibration.intercept + found.calibration.slope * torch.as_tensor(scores)) / math.log(10)
    torch.testing.assert_close(torch.as_tensor(drawn), expected)
    assert f"threshold {found.cosine:.4f}" in lines


def test_counts_by_score_are_those_of_the_pairs() -> None:
    generator = torch.Generator().manual_seed(0)
    cosines = torch.rand(500, generator=generator, dtype=torch.float64) * 2 - 1
    same = torch.rand(500, generator=generator) < 0.3
    distances = torch.linspace(0, 2, 101, dtype=torch.float64)
    within = (2 - 2 * cosines).sqrt() <= distances[:, None]
    scores, genuine, impostors = counts_by_score(distances, (within & same).sum(1), (within & ~same).sum(1))
    assert (int(genuine.sum()), int(impostors.sum())) == (int(same.sum()), int((~same).sum()))
    assert bool((scores.diff() > 0).all()) and bool((genuine + impostors > 0).all())
    assert float((scores * genuine).sum() / genuine.sum()) == pytest.approx(float(cosines[same].mean()), abs=1e-2)


def test_the_curves_are_the_rates_of_the_report() -> None:
    found = report(search=SearchPlan(10))
    assert found.searches is not None
    sizes = found.searches.sizes
    picture = gallery_picture(found)
    assert picture is not None
    fpir, fnir = (figure.axes[0] for figure in picture.figures)
    drawn = {line.get_label(): [list(values) for values in line.get_data()] for line in fpir.lines + fnir.lines}
    enrolled = [1, 2, 5, 10, 20]
    assert drawn["FPIR, 95 % interval"] == [enrolled, [one.fpir.rate for one in sizes]]
    assert drawn["if all probes were alike"] == [enrolled, [one.fpir_if_alike for one in sizes]]
    assert drawn["FNIR, 95 % interval"] == [enrolled, [one.fnir.rate for one in sizes if one.fnir]]
    assert "planned: 10" in drawn and "extrapolated" not in drawn


def test_extrapolated_sizes_are_marked() -> None:
    found = report(far=None, search=SearchPlan(30, fpir=0.2, extrapolate=True))
    assert found.searches is not None and found.searches.sizes[-1].extrapolated
    beyond = [one.enrolled for one in found.searches.sizes if one.extrapolated]
    picture, table = gallery_picture(found), searches_table(found)
    assert picture is not None and table is not None
    lines = {line.get_label(): line for line in picture.figures[0].axes[0].lines}
    assert list(lines["extrapolated"].get_xdata()) == beyond
    marked = [row[0] for row in table[1] if row[0].endswith("(extrapolated)")]
    assert marked == [f"{size:,} (extrapolated)" for size in beyond]
    first = found.searches.sizes[0]
    assert table[1][0][:3] == [f"{first.enrolled}", with_interval(first.fpir), percent(first.fpir_if_alike)]
    assert ("Checked: from" in picture.caption) == (found.searches.held_out is not None)


@pytest.mark.parametrize("plan", [None, SearchPlan(1)])
def test_no_curves_without_sizes(plan: SearchPlan | None) -> None:
    found = report(search=plan)
    if found.searches is not None:
        object.__setattr__(found.searches, "sizes", found.searches.sizes[:1])
    assert gallery_picture(found) is None
    assert (searches_table(found) is None) == (plan is None)
