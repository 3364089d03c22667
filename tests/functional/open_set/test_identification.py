"""Rates of searches in random galleries against every gallery, enumerated."""

import math

import pytest
import torch
from pytest import approx
from scipy.stats import hypergeom
from torch.nn.functional import normalize

from pml_ext.functional import identification
from pml_ext.functional.open_set.best_scores import BestScores, scores_from, share_with_any, share_with_fewer
from pml_ext.functional.open_set.identification import search_rates
from tests.oracles import identification as oracle
from tests.oracles.thresholds import jeffreys
from tests.refusals import refusals

LABELS = [3, 3, 3, 7, 7, 1, 1, 1, 1, 9, 5, 5, 8, 8]  # identity 9 has one sample
IDS = torch.tensor(LABELS)


def samples():
    generator = torch.Generator().manual_seed(1)
    centres, noise = (torch.randn(n, 5, generator=generator, dtype=torch.float64) for n in (10, 14))
    return centres[IDS] + 0.8 * noise


@pytest.mark.parametrize("size", [1, 3, 5])
@pytest.mark.parametrize("threshold", [-1.0, 0.3, 0.7, 0.95])
@pytest.mark.parametrize("rank", [1, 2, 4])
def test_rates_equal_every_gallery_enumerated(size, threshold, rank, blocks_of, device):
    blocks_of(20)
    x = samples()
    expected = oracle.identification(x.tolist(), LABELS, size, threshold, rank)
    for given in (x.to(device), x.float()):
        found = identification(given, IDS, gallery_size=size, threshold=threshold, rank=rank)
        assert found == approx((threshold, *expected), abs=1e-12)


@pytest.mark.parametrize("template", ["best", "mean"])
@pytest.mark.parametrize("cameras", [None, torch.arange(14) % 2])
@pytest.mark.parametrize("threshold", [-1.0, 0.5, 0.8])
def test_templates_and_cameras_equal_every_gallery_enumerated(template, cameras, threshold):
    x, known = samples(), None if cameras is None else cameras.tolist()
    for size in (2, 5):
        expected = oracle.identification(x.tolist(), LABELS, size, threshold, 1, known, template)
        options = {"gallery_size": size, "threshold": threshold, "cameras": cameras, "template": template}
        assert identification(x, IDS, **options)[1:] == approx(expected, abs=1e-12)


@pytest.mark.parametrize(("angle", "missed"), [(0.0, 0.5), (1e-3, 0.5), (3e-3, 0.0)])
def test_cosines_within_a_millionth_count_against_the_own_identity(angle, missed):
    """The cosine of an angle of 1e-3 is 5e-7 below 1, that of 3e-3 is 4.5e-6 below."""
    x = torch.tensor([[1, 0], [1, 0], [math.cos(angle), math.sin(angle)], [0, 1]], dtype=torch.float64)
    labels = torch.tensor([0, 0, 1, 2])
    assert identification(x, labels, gallery_size=2, threshold=0.5).fnir == approx(missed)
    assert identification(x, labels, gallery_size=2, threshold=0.5, rank=2).fnir == 0


def test_identities_without_a_second_sample_are_no_mated_probes():
    of_one_each = identification(torch.eye(3), torch.arange(3), gallery_size=1, threshold=0.5)
    assert math.isnan(of_one_each.fnir) and of_one_each.fpir == 0


@pytest.mark.parametrize("fpir", [0.001, 0.05, 0.2, 0.5, 0.9])
@pytest.mark.parametrize("size", [1, 3, 5])
def test_the_threshold_is_the_lowest_that_meets_the_rate(fpir, size):
    x = samples()
    found = identification(x, IDS, gallery_size=size, fpir=fpir)
    assert found.fpir <= fpir + 1e-12
    assert found == approx(identification(x, IDS, gallery_size=size, threshold=found.threshold), abs=1e-12)
    cosines = normalize(x) @ normalize(x).T
    best = [cosines[i, other == IDS].max() for i, own in enumerate(LABELS) for other in {*LABELS} - {own}]
    next_below = max(float(score) for score in best if score < found.threshold)
    assert identification(x, IDS, gallery_size=size, threshold=next_below - 1e-9).fpir > fpir


def test_of_many_probes_the_trial_leaves_no_score_out():
    labels = torch.arange(1200) % 300
    x = torch.randn(300, 8)[labels] + torch.randn(1200, 8)
    for fpir, size in [(0.01, 10), (0.3, 250), (0.95, 299)]:
        found = identification(x, labels, gallery_size=size, fpir=fpir)
        step = identification(x, labels, gallery_size=size, threshold=found.threshold - 1e-4)
        assert found.fpir <= fpir and (step.fpir > fpir or step.fpir == found.fpir)


@pytest.mark.parametrize("enrolled", [0, 1, 3, 7])
def test_the_laws_are_hypergeometric_and_finite_for_large_galleries(enrolled):
    above = torch.arange(8)
    assert share_with_any(above, 7, enrolled).tolist() == approx(hypergeom.sf(0, 7, above, enrolled))
    for rank in (1, 2, 5):
        found = share_with_fewer(above, 7, enrolled, rank)
        assert found.tolist() == approx(hypergeom.cdf(rank - 1, 7, above, enrolled))
    shares = share_with_any(torch.tensor([0, 1, 10, 10**7 - 1]), 10**7, 10**6)
    assert shares.tolist() == approx([0, 0.1, 1 - 0.9**10, 1], rel=1e-5, abs=1e-6)


REFUSED = [
    ({"gallery_size": 6, "threshold": 0.5}, r"gallery_size must be from 1 to 5.*got 6. Measure a larger set"),
    ({"gallery_size": 2, "threshold": 0.1, "fpir": 0.1}, "give one of threshold and fpir"),
    ({"gallery_size": 2, "threshold": math.nan}, "threshold must be a number; got nan"),
    ({"gallery_size": 2, "fpir": 1.0}, r"fpir must be in \(0, 1\)"),
    ({"gallery_size": 2, "threshold": 0.1, "rank": 0}, "rank must be at least 1"),
    ({"labels": 0 * IDS, "gallery_size": 1, "threshold": 0.5}, "at least two identities"),
]
test_errors = refusals(REFUSED, of=lambda **wrong: identification(**({"embeddings": samples(), "labels": IDS} | wrong)))


def ends(rate, without, probes):
    """probes: of each identity."""
    mean = sum(without) / len(without)
    variance = sum((value - mean) ** 2 for value in without) * (len(without) - 1) / len(without)
    trials = min(5 * sum(probes), max(1.0, rate * (1 - rate) / variance))
    low, high = jeffreys(rate, trials, probes)
    return min(low, rate), max(high, rate)


@pytest.mark.parametrize("enrolled", [1, 3, 4])
@pytest.mark.parametrize("rank", [1, 2])
def test_intervals_come_from_leaving_identities_out(enrolled, rank):
    x = samples().tolist()
    high = scores_from(BestScores(samples(), IDS), 0.5)
    found = search_rates(high, 0.6, enrolled, rank=rank, ranks=4)
    fewer = []
    for left_out in sorted(set(LABELS)):
        kept = [i for i, label in enumerate(LABELS) if label != left_out]
        of_kept = [x[i] for i in kept], [LABELS[i] for i in kept]
        fewer.append(oracle.identification(*of_kept, enrolled, 0.6, rank))
    rates = oracle.identification(x, LABELS, enrolled, 0.6, rank)
    probes = [LABELS.count(label) for label in sorted(set(LABELS))]
    mated = [number if number > 1 else 0 for number in probes]
    fpir, fnir, _ = zip(*fewer, strict=True)
    assert found.fpir == approx((rates[0], *ends(rates[0], fpir, probes)), abs=1e-9)
    assert found.fnir == approx((rates[1], *ends(rates[1], fnir, mated)), abs=1e-9)
    assert found.selectivity.rate == approx(rates[2], abs=1e-12)
    # The CMC is what is found at any threshold.
    loops = [1 - oracle.identification(x, LABELS, enrolled, -2.0, n)[1] for n in (1, 2, 3, 4)]
    assert found.cmc == approx(loops, abs=1e-12)
