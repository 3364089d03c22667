import math

import pytest
import torch
from pytest import approx

from pml_ext.metrics import ScoreCalibration


def pairs(seed, count=20_000):
    """Normal scores, one apart: their log-likelihood ratio is s − ½."""
    generator = torch.Generator().manual_seed(seed)
    same = torch.rand(count, generator=generator) < 0.1
    return torch.randn(count, generator=generator) + same, same


def test_ratios_are_finite_for_pairs_that_one_score_parts():
    apart = ScoreCalibration(torch.tensor([0.1, 0.2, 0.8, 0.9]), torch.tensor([False, False, True, True]))
    low, high = apart.log_ratio(torch.tensor([0.0, 1.0])).tolist()
    assert -math.inf < low < 0 < high < math.inf


def test_a_probability_follows_from_the_prior():
    calibration = ScoreCalibration(*pairs(0))
    ratio = float(calibration.log_ratio(torch.tensor(1.0)))
    expected = 1 / (1 + math.exp(-ratio) * 99)
    assert float(calibration.probability(torch.tensor(1.0), prior=0.01)) == approx(expected)
    with pytest.raises(ValueError, match=r"prior must be in \(0, 1\)"):
        calibration.probability(torch.tensor(1.0), prior=0)


def test_pairs_of_one_kind_are_an_error():
    with pytest.raises(ValueError, match="same must have genuine and impostor pairs; got 3 genuine of 3"):
        ScoreCalibration(torch.rand(3), torch.ones(3, dtype=torch.bool))


@pytest.mark.filterwarnings("ignore:.*L-BFGS-B:DeprecationWarning")  # scikit-learn 1.5 on a newer scipy
def test_the_line_is_that_of_logistic_regression():
    from sklearn.linear_model import LogisticRegression

    scores, same = pairs(0, 2000)
    model = LogisticRegression(C=1e9, class_weight="balanced", tol=1e-12).fit(scores.double()[:, None], same)
    line = ScoreCalibration(scores, same).log_ratio(torch.tensor([0.0, 1.0], dtype=torch.float64))
    expected = [model.intercept_[0], model.intercept_[0] + model.coef_[0, 0]]
    assert line.tolist() == approx(expected, rel=1e-6)
