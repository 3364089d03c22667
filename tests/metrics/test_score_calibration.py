"""Likelihood ratios of scores whose law is known."""

import math

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from pytest import approx
from torch.nn.functional import normalize

from pml_ext.functional import cllr, min_cllr
from pml_ext.metrics import ScoreCalibration, ThresholdReport

LABELS = torch.arange(600) % 150
SHARED, NOISE, APART = 0.4, 0.8, 1.5


def embeddings():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(150, 8, generator=generator)[LABELS] + 0.6 * torch.randn(600, 8, generator=generator)


def pair_scores(subjects, seed):
    """Scores and subjects of two genuine pairs each, and of all impostor pairs.

    A subject's pairs share an effect. Both kinds are normal with one variance: the log ratio is a line.
    """
    generator = torch.Generator().manual_seed(seed)
    effect = SHARED * torch.randn(subjects, generator=generator)
    one, other = torch.triu_indices(subjects, subjects, 1)
    own = torch.arange(subjects).repeat(2)
    one, other = torch.cat([own, one]), torch.cat([own, other])
    shared = torch.where(one == other, math.sqrt(2) * effect[one], effect[one] + effect[other])
    return shared + NOISE * torch.randn(len(one), generator=generator) + APART * (one == other), one, other


def true_log_ratio(scores):
    return APART / (2 * SHARED**2 + NOISE**2) * (scores - APART / 2)


def test_the_intervals_hold_the_true_ratios_and_probabilities():
    points = np.linspace(0.8, 2.2, 5)
    prior = 0.001
    odds = np.exp(true_log_ratio(points)) * prior / (1 - prior)
    holds, holds_probability = [], []
    for seed in range(100):
        calibration = ScoreCalibration.fit(*pair_scores(100, seed))
        found = calibration.log_ratio(torch.from_numpy(points))
        holds.append((found.low.numpy() <= true_log_ratio(points)) & (true_log_ratio(points) <= found.high.numpy()))
        chance = calibration.probability(torch.from_numpy(points), prior=prior)
        truth = odds / (1 + odds)
        holds_probability.append((chance.low.numpy() <= truth) & (truth <= chance.high.numpy()))
    assert np.array_equal(holds, holds_probability)
    coverage = np.mean(holds, axis=0)
    assert (coverage >= 0.88).all() and 0.93 <= coverage.mean() <= 0.98


def test_the_cost_is_that_of_the_ratios_and_its_minimum_that_of_the_order():
    scores, one, other = pair_scores(150, 0)
    same = one == other
    calibration = ScoreCalibration.fit(scores, one, other)
    clamped = scores.double().clamp(calibration.scores[0], calibration.scores[-1])
    assert calibration.cllr == approx(float(cllr(calibration.log_ratio(clamped).value, same)), rel=0.02)
    assert calibration.min_cllr == approx(float(min_cllr(scores, same)), rel=0.02)
    assert calibration.min_cllr < float(cllr(true_log_ratio(scores), same)) < calibration.cllr


def test_a_report_has_the_ratios_of_its_pairs():
    report = ThresholdReport.from_embeddings(embeddings(), LABELS, far=0.01)
    unit = normalize(embeddings().double())
    rows, columns = torch.triu_indices(600, 600, 1)
    calibration = ScoreCalibration.fit((unit @ unit.T)[rows, columns], LABELS[rows], LABELS[columns])
    for name in ("cllr", "min_cllr"):
        assert getattr(report.calibration, name) == approx(getattr(calibration, name), abs=0.002)
    scores = torch.linspace(0.15, 0.95, 9, dtype=torch.float64)
    for ours, expected in zip(report.calibration.log_ratio(scores), calibration.log_ratio(scores), strict=True):
        assert_allclose(ours, expected, atol=0.05)
    ratio = math.exp(float(report.calibration.log_ratio(torch.tensor(report.cosine)).value))
    assert report.evidence.rate == approx(ratio, rel=1e-6) and report.evidence.low < ratio < report.evidence.high
    assert f"{report.evidence.rate:.3g} times (95 % interval" in report.summary()


def test_a_probability_follows_from_ratio_and_prior():
    report = ThresholdReport.from_embeddings(embeddings(), LABELS, far=0.01)
    scores = np.array([[0.2, 0.5], [0.7, 0.9]])
    chances = report.probability(scores, prior=0.01)
    for chance, ratio in zip(chances, report.calibration.log_ratio(torch.from_numpy(scores)), strict=True):
        assert_allclose(chance, 1 / (1 + 99 * torch.exp(-ratio)))
    with pytest.raises(ValueError, match=r"prior must be in \(0, 1\)"):
        report.probability(0.3, prior=1.0)
    with pytest.raises(ValueError, match=r"scores must be from 0\.1\d+ to 0\.9\d+, where both .*got 0\.9900\. Beyond"):
        report.probability(scores + 0.09, prior=0.01)


def test_ten_identities_have_a_pair_of_each_kind_beyond_the_ends_of_the_range():
    scores, one, other = pair_scores(100, 0)
    calibration = ScoreCalibration.fit(scores, one, other)
    same = one == other
    width = float(scores.max() - scores.min()) / 300
    high, low = calibration.scores[-1], calibration.scores[0]
    above = ~same & (scores >= high - width)
    assert len(torch.cat([one[above], other[above]]).unique()) >= 10
    above = ~same & (scores >= high + 2 * width)
    assert len(torch.cat([one[above], other[above]]).unique()) < 10
    below = same & (scores <= low + width)
    assert len(one[below].unique()) >= 10 > len(one[same & (scores <= low - 2 * width)].unique())


def test_scores_that_part_the_kinds_or_few_identities_have_no_ratios():
    one, other = torch.arange(40) % 20, torch.arange(40) % 20
    other[20:] = (other[20:] + 1) % 20
    with pytest.raises(ValueError, match=r"no score is supported by 10 subjects .*; got 20 subjects, 20 genuine pairs"):
        ScoreCalibration.fit((one == other).double() + torch.linspace(0, 0.1, 40), one, other)
    few = ThresholdReport.from_embeddings(torch.randn(36, 8), torch.arange(36) // 4, frr=0.5)
    assert few.calibration is None and few.evidence is None
    with pytest.raises(ValueError, match=r"the report has no calibration: no score .* with more identities"):
        few.probability(0.3, prior=0.1)
