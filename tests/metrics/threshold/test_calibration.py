"""Probabilities of a report, of scores whose law is known."""

import pytest
import torch
from torch.nn.functional import normalize
from torch.testing import assert_close

from pml_ext.metrics import ScoreCalibration, ThresholdReport

LABELS = torch.arange(600) % 150


def embeddings():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(150, 8, generator=generator)[LABELS] + 0.6 * torch.randn(600, 8, generator=generator)


def test_the_report_has_calibrated_probabilities():
    report = ThresholdReport.from_embeddings(embeddings(), LABELS, far=0.01)
    assert "times as likely for pairs of one class" in report.summary()
    unit = normalize(embeddings())
    rows, columns = torch.triu_indices(600, 600, 1)
    calibration = ScoreCalibration((unit @ unit.T)[rows, columns], LABELS[rows] == LABELS[columns])
    scores = torch.linspace(-1, 1, 21)
    for prior in (0.5, 0.01):  # of all pairs, where the report takes a sample
        expected = calibration.probability(scores, prior=prior)
        assert_close(report.probability(scores, prior=prior), expected, atol=0.05, rtol=0)
    with pytest.raises(ValueError, match=r"prior must be in \(0, 1\)"):
        report.probability(torch.tensor(0.3), prior=1.0)


def test_without_calibration_a_probability_is_an_error():
    few, enough = (
        ThresholdReport.from_embeddings(torch.randn(4 * n, 8), torch.arange(4 * n) // 4, frr=0.5) for n in (3, 4)
    )
    assert 0 < enough.probability(torch.tensor(0.3), prior=0.1) < 1
    with pytest.raises(ValueError, match=r"the report has no calibration\. Create it again"):
        few.probability(torch.tensor(0.3), prior=0.1)
