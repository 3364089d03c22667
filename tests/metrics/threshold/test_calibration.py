"""Probabilities of a report, of scores whose law is known."""

import pytest
import torch

from pml_ext.metrics import ThresholdReport

LABELS = torch.arange(600) % 150


def embeddings() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(150, 8, generator=generator)[LABELS] + 0.6 * torch.randn(600, 8, generator=generator)


def test_the_report_has_calibrated_probabilities() -> None:
    report = ThresholdReport.from_embeddings(embeddings(), LABELS, far=0.01, splits=0)
    assert "times as likely for pairs of one class" in report.summary()
    unit = torch.nn.functional.normalize(embeddings())
    rows, columns = torch.triu_indices(600, 600, 1)
    scores, same = (unit @ unit.T)[rows, columns], LABELS[rows] == LABELS[columns]
    said = report.probability(scores, prior=0.5)
    weight = torch.where(same, 0.5 / same.sum(), 0.5 / (~same).sum()).double()  # as many of each kind
    for low, high in ((0.1, 0.3), (0.3, 0.7), (0.7, 0.9)):
        inside = (said > low) & (said < high)
        share = float(weight[inside & same].sum() / weight[inside].sum())
        assert share == pytest.approx(float((said * weight)[inside].sum() / weight[inside].sum()), abs=0.15)
    likely, rare = (report.probability(torch.tensor(0.9), prior=prior) for prior in (0.5, 0.01))
    assert likely / (1 - likely) == pytest.approx(99 * float(rare / (1 - rare)))
    with pytest.raises(ValueError, match=r"prior must be in \(0, 1\)"):
        report.probability(torch.tensor(0.3), prior=1.0)


def test_without_calibration_a_probability_is_an_error() -> None:
    few = ThresholdReport.from_embeddings(torch.eye(4), torch.arange(4) // 2, frr=0.5, splits=0)
    with pytest.raises(ValueError, match="the report has no calibration: make it again"):
        few.probability(torch.tensor(0.3), prior=0.1)
