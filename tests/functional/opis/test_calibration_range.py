"""Ends of the calibration range from one pass over the pairs against those from two."""

import pytest
import torch
from torch.nn.functional import normalize

from pml_ext.functional import PairDistances, opis_sensitivity
from pml_ext.functional.opis import calibration_range
from pml_ext.functional.opis.calibration_range import distances_at_ranks

COUNT = 1500
FOUR = torch.arange(COUNT) // 4


def around_centres(dim=24, noise=1.0):
    return torch.randn(COUNT // 4, dim)[FOUR] + noise * torch.randn(COUNT, dim)


SETS = {
    "different classes": lambda: around_centres(8, 2 * torch.rand(COUNT // 4, 1)[FOUR]),
    "concentrated cosines": lambda: around_centres(256, 0.1),
    "float64": lambda: around_centres().double(),
    "copies": lambda: torch.cat([around_centres()[:300]] * 5),
    "16-bit codes": lambda: around_centres(16).sign(),
    "one point": lambda: torch.ones(COUNT, 8),
}


@pytest.fixture
def many(monkeypatch):
    monkeypatch.setattr(calibration_range, "_FEW_SAMPLES", 0)


@pytest.mark.parametrize("make", SETS.values(), ids=SETS)
@pytest.mark.parametrize("sampled", [100, 4096])
def test_the_distances_are_those_of_two_passes(make, sampled, many, monkeypatch, device):
    monkeypatch.setattr(calibration_range, "_FEWEST_SAMPLED", sampled)
    x = make().to(device)
    total = PairDistances(x, FOUR).total_negative_pairs
    ranks = [1, 7, total // 100, total // 10, total]
    found = distances_at_ranks(PairDistances(x, FOUR), ranks)
    assert torch.equal(found, PairDistances(x, FOUR).negative_distances_at(ranks))


def test_usual_sets_take_one_pass(many, monkeypatch):
    monkeypatch.delattr(PairDistances, "negative_distances_at")
    pairs = PairDistances(around_centres(), FOUR)
    low, high = distances_at_ranks(pairs, [11_000, 112_000])
    assert 0 < low < high < 2


def test_a_wrong_bracket_and_too_many_pairs_lead_to_two_passes(many, monkeypatch):
    x = around_centres()
    expected = PairDistances(x, FOUR).negative_distances_at([5000])
    with monkeypatch.context() as patch:
        patch.setattr(calibration_range, "_brackets", lambda pairs, ranks: [[0.99, 1.0]])
        assert torch.equal(distances_at_ranks(PairDistances(x, FOUR), [5000]), expected)
    monkeypatch.setattr(calibration_range, "_MOST_LISTED", 10)
    monkeypatch.setattr(calibration_range, "_cosines_at_ranks", None)
    assert torch.equal(distances_at_ranks(PairDistances(x, FOUR), [5000]), expected)


def test_a_set_of_one_class_besides_a_few_samples(many, monkeypatch):
    """The sample of 100 has no negative pair."""
    monkeypatch.setattr(calibration_range, "_FEWEST_SAMPLED", 100)
    labels = torch.zeros(COUNT, dtype=torch.int64)
    labels[torch.randperm(COUNT, generator=torch.Generator().manual_seed(0))[-1]] = 1
    x = around_centres()
    expected = PairDistances(x, labels).negative_distances_at([1, COUNT - 1])
    assert torch.equal(distances_at_ranks(PairDistances(x, labels), [1, COUNT - 1]), expected)


def test_several_ranges_and_offsets(many, monkeypatch):
    x, offsets = normalize(around_centres()), 0.2 * torch.rand(COUNT)
    ranges = [(1e-2, 1e-1), (1e-4, 1e-3), (0.2, 1.0), (1e-2, 1e-1)]
    found = opis_sensitivity(x, FOUR, far_ranges=ranges, offsets=offsets)
    monkeypatch.setattr(calibration_range, "_FEW_SAMPLES", COUNT)
    assert found == opis_sensitivity(x, FOUR, far_ranges=ranges, offsets=offsets) and found[0] == found[3]
