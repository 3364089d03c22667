import pytest
import torch

from pml_ext.functional import epsilon_opis, opis, utility_curves
from pml_ext.functional.pairwise.pair_distances import PairDistances
from pml_ext.functional.pairwise.sampled import SampledPairDistances


def a_set() -> tuple[torch.Tensor, torch.Tensor]:
    labels = torch.randint(0, 4, (60,))
    return torch.randn(5, 4).double()[labels] + torch.randn(60, 4).double(), labels


def test_all_positives_and_the_requested_number_of_negatives() -> None:
    x, y = a_set()
    every, some = PairDistances(x, y), SampledPairDistances(x, y, negatives_per_positive=3, seed=0)
    thresholds = torch.tensor([0.3, 1.0, 2.0]).double()
    assert torch.equal(every.accepted(thresholds)[0], some.accepted(thresholds)[0])
    assert torch.equal(some.negative_pairs, 3 * every.positive_pairs)
    assert torch.equal(some.accepted(thresholds)[1][:, -1], some.negative_pairs)
    assert some.total_negative_pairs == int(some.negative_pairs.sum())


def test_every_negative_pair_and_no_other_can_be_drawn() -> None:
    # One-hot classes: a positive pair is at 0, a negative pair between classes i and j has its own distance.
    y = torch.arange(4).repeat_interleave(6)
    centres = torch.randn(4, 3).double()
    pairs = SampledPairDistances(centres[y], y, negatives_per_positive=20, seed=1)
    unit = torch.nn.functional.normalize(centres)
    distances = (unit[:, None] - unit).norm(dim=2)
    for c in range(4):
        drawn = pairs._negatives[pairs._class == c]
        gap, nearest = (drawn[:, None] - distances[c]).abs().min(dim=1)
        assert gap.max() < 1e-7
        assert set(nearest.tolist()) == set(range(4)) - {c}


def test_rates_approximate_those_of_all_pairs() -> None:
    x, y = a_set()
    thresholds = torch.linspace(0, 2, 9).double()
    expected = utility_curves(x, y, thresholds=thresholds)
    found = utility_curves(x, y, thresholds=thresholds, negatives_per_positive=200)
    assert torch.equal(found.tpr, expected.tpr)
    torch.testing.assert_close(found.tnr, expected.tnr, atol=0.02, rtol=0)
    assert (found.tnr != expected.tnr).any()


def test_the_seed_determines_the_draw() -> None:
    x, y = a_set()
    for metric in (opis, epsilon_opis):
        first = metric(x, y, negatives_per_positive=10, seed=1)
        assert metric(x, y, negatives_per_positive=10, seed=1) == first
        assert metric(x, y, negatives_per_positive=10, seed=2) != first


def test_errors() -> None:
    x, y = a_set()
    with pytest.raises(ValueError, match="negatives_per_positive must be at least 1"):
        opis(x, y, negatives_per_positive=0)
    with pytest.raises(ValueError, match="OPIS needs at least 2 classes"):
        opis(x, torch.zeros_like(y), negatives_per_positive=2)
