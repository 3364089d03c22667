"""Extrapolation to larger galleries: a population whose probes' rates are known, and held-out identities."""

import math

import numpy as np
import pytest
import torch
from pytest import approx
from scipy.special import logit
from scipy.stats import betabinom, norm, t

from pml_ext.functional import extrapolate_fpir, identification
from pml_ext.functional.open_set import extrapolation
from pml_ext.functional.open_set.best_scores import HighScores
from pml_ext.functional.open_set.extrapolation import beta_likelihood, extrapolated_rate
from tests.tiers import by_night


def high_scores(scores, threshold):
    """Of P probes, each an identity of its own, with all of them."""
    values = torch.from_numpy(scores)
    probe, identity = (values >= threshold).nonzero(as_tuple=True)
    nothing = torch.full((len(values),), -math.inf)
    return HighScores(
        values[probe, identity], probe, identity, torch.zeros_like(probe), nothing, nothing, torch.arange(len(values)),
        len(values), threshold,
    )  # fmt: skip


@pytest.mark.parametrize(
    "population",
    [(0.2, 1e-4, 10**4), (0.5, 1e-3, 10**6), *by_night((0.2, 1e-4, 10**6), (0.5, 1e-4, 10**4), (0.5, 1e-4, 10**6))],
)
def test_a_population_of_known_rates(population):
    """Scores are h_i + h_j + noise: the rate of probe i at T is that of a normal variable beyond T − h_i."""
    unevenness, far, enrolled = population
    spread = math.sqrt(1 + 2 * unevenness**2)
    threshold = spread * norm.isf(far)
    at = np.linspace(-8, 8, 4001)
    rates = norm.sf((threshold - unevenness * at) / math.sqrt(1 + unevenness**2))
    known = float(-np.expm1(enrolled * np.log1p(-rates)) @ norm.pdf(at) / norm.pdf(at).sum())
    rng = np.random.default_rng(0)
    h = unevenness * rng.standard_normal(600)
    scores = h[:, None] + h + rng.standard_normal((600, 600))
    np.fill_diagonal(scores, -9)
    found = extrapolated_rate(high_scores(scores, threshold), threshold, enrolled)
    assert found.low <= known <= found.high
    assert found.rate == approx(known, abs=0.25)


def test_the_beta_model_is_the_most_likely_one():
    counts = betabinom.rvs(500, 0.5, 300, size=2000, random_state=0)
    values, times = np.unique(counts, return_counts=True)
    shape = extrapolation._fit(beta_likelihood, extrapolation._Matches(values, times, 500 - values)).x
    found = -math.expm1(beta_likelihood(shape, 0, 10_000))
    grid = [
        (sum(times * betabinom.logpmf(values, 500, a, b)), a, b)
        for a in np.linspace(0.4, 0.6, 21)
        for b in np.linspace(200, 400, 41)
    ]
    _, a, b = max(grid)
    exact = 1 - math.exp(math.lgamma(b + 1e4) + math.lgamma(a + b) - math.lgamma(a + b + 1e4) - math.lgamma(b))
    assert found == approx(exact, abs=0.005)


@pytest.mark.parametrize("shape", [0.5, 30.0, 1000.0])
@pytest.mark.parametrize("odds", [1.0, 2e4])
@pytest.mark.parametrize("matched", [1.0, 0.25])
def test_likelihoods_of_a_beta_distribution(shape, odds, matched):
    """Near the largest shape, 1e-7 of the logarithm is rounding."""
    a, b, enrolled, hits = shape, shape * odds, 400, 3
    none = math.exp(-math.fsum(math.log1p(a / (b + i)) for i in range(enrolled)))
    point = [math.log(a), -math.log(odds), logit(matched)]
    assert float(beta_likelihood(point, 0, enrolled)) == approx(
        math.log(1 - matched + matched * none), rel=1e-6, abs=3e-7
    )
    some = math.fsum([math.log((a + i) / (a + b + i)) for i in range(hits)])
    some += math.fsum(math.log((b + i) / (a + b + hits + i)) for i in range(enrolled))
    assert float(beta_likelihood(point, hits, enrolled)) == approx(some + math.log(matched), rel=1e-6, abs=3e-7)


def test_probes_that_are_all_alike(draws):
    """The most likely beta distribution is a point then. The rate was once 2e-151, of an interval from 0 to 1."""
    for seed in (3, 7, 11, 17)[: draws(1, 4)]:
        hit = np.random.default_rng(seed).random((400, 400)) < 14 / 400**2
        np.fill_diagonal(hit, False)
        found = extrapolated_rate(high_scores(np.where(hit, 1.0, -1.0), 0.0), 0.0, 400)
        assert found.low <= 0.0344 <= found.high
        assert 0.015 < found.rate < 0.08 and found.high < 0.3


def test_probes_that_resemble_no_one_match_nobody_in_a_gallery_of_any_size():
    rng = np.random.default_rng(0)
    is_alike = rng.random(300) < 0.2
    hit = (rng.random((300, 300)) < 0.3) & is_alike[:, None] & is_alike
    np.fill_diagonal(hit, False)
    found = extrapolated_rate(high_scores(np.where(hit, 1.0, -1.0), 0.0), 0.0, 5000)
    share = is_alike.mean()
    assert found.with_unmatched == approx(share, abs=0.01)
    assert found.low <= share <= found.high
    assert found.rate > share + 0.05


def test_the_interval_is_that_of_rates_without_each_twentieth_of_the_identities(monkeypatch):
    rng = np.random.default_rng(1)
    h = 0.3 * rng.standard_normal(200)
    scores = h[:, None] + h + rng.standard_normal((200, 200))
    np.fill_diagonal(scores, -9)

    def of_models(some):
        found = extrapolated_rate(high_scores(scores[np.ix_(some, some)], 2.5), 2.5, 1000)
        return found, np.log(-np.log1p([-found.beta, -found.logit_normal]))

    part = torch.randperm(200, generator=torch.Generator().manual_seed(0)).numpy() % 20
    found, values = of_models(part >= 0)
    monkeypatch.setattr(extrapolation, "_PARTS", 2)  # the rates below need no interval
    without = np.array([of_models(part != one)[1] for one in range(20)])
    widths = t.isf(0.025, 19) * np.sqrt(19 / 20 * ((without - without.mean(0)) ** 2).sum(0))
    ends = np.array([(values - widths).min(), (values + widths).max()])
    assert found.with_unmatched == approx(found.beta, rel=1e-3)
    assert [found.low, found.high] == approx(-np.expm1(-np.exp(ends)), rel=1e-6)


def test_held_out_identities(draws):
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(1200) % 400
    crowded = torch.rand(400, 1, generator=generator) ** 2
    x = torch.randn(400, 16, generator=generator) + 2 * crowded
    x = x[labels] + 0.5 * torch.randn(1200, 16, generator=generator)
    some = labels < 40
    for threshold in (0.7, 0.65, 0.75)[: draws(1, 3)]:
        said = extrapolate_fpir(x[some], labels[some], gallery_size=399, threshold=threshold)
        measured = identification(x, labels, gallery_size=399, threshold=threshold).fpir
        assert said.low <= measured <= said.high


def test_too_few_scores_are_an_error():
    x = torch.randn(40, 16, generator=torch.Generator().manual_seed(0))
    with pytest.raises(ValueError, match=r"at least 10 scores .* got 0. Measure more identities, or allow a higher"):
        extrapolate_fpir(x, torch.arange(40) // 2, gallery_size=1000, threshold=0.99)
    with pytest.raises(ValueError, match="gallery_size must be at least 1"):
        extrapolate_fpir(x, torch.arange(40) // 2, gallery_size=0, threshold=0.1)
