import math
from pathlib import Path

import pytest
import torch

from pml_ext.metrics import ThresholdReport
from pml_ext.reports.thresholds import calibration_picture, counts_by_score

LABELS = torch.arange(30).repeat_interleave(4)


def test_line_threshold_and_words(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(30, 6, generator=generator)[LABELS] + torch.randn(120, 6, generator=generator)
    found = ThresholdReport.from_embeddings(x, LABELS, far=0.01, splits=0)
    assert found.curves is not None and found.calibration is not None
    picture = calibration_picture(found, found.curves)
    assert picture is not None
    (ratios,) = picture.figures[0].axes
    lines = {line.get_label(): line for line in ratios.lines}
    scores, drawn = lines["logistic regression"].get_data()
    expected = (found.calibration.intercept + found.calibration.slope * torch.as_tensor(scores)) / math.log(10)
    torch.testing.assert_close(torch.as_tensor(drawn), expected)
    assert f"threshold {found.cosine:.4f}" in lines
    found.save_page(tmp_path / "r.html")
    assert '<h2 id="calibration">' in (tmp_path / "r.html").read_text(encoding="utf-8")


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


def test_no_picture_without_calibration() -> None:
    x, labels = torch.eye(6, dtype=torch.float64) + 0.1, torch.tensor([0, 0, 1, 2, 3, 4])
    found = ThresholdReport.from_embeddings(x, labels, far=0.5, splits=0)
    assert found.calibration is None and found.curves is not None
    assert calibration_picture(found, found.curves) is None
