import pytest
import torch

from pml_ext.functional.loop.partners import class_pairings, consecutive_pairs
from tests.oracles.arcs import partners

LABELS = [4, 1, 4, 2, 1, 4, 1, 7, 4, 2, 4, 1, 1]  # classes of 5, 5, 2 and 1, mixed


@pytest.mark.parametrize("pairing", ["consecutive", "all"])
def test_partners_equal_the_oracle(pairing: str) -> None:
    rounds = class_pairings(torch.tensor(LABELS), pairing)
    itself = torch.arange(len(LABELS))
    assert (rounds.gather(1, rounds) == itself).all()  # partners are mutual
    for i, expected in enumerate(partners(LABELS, pairing)):
        met = set(rounds[:, i].tolist()) - {i}
        assert met == set(expected) - {i}


@pytest.mark.parametrize("size", range(1, 10))
def test_every_pair_of_a_class_meets_once(size: int) -> None:
    rounds = class_pairings(torch.zeros(size, dtype=torch.long), "all")
    met = [(i, int(j)) for partner in rounds for i, j in enumerate(partner) if i < j]
    assert sorted(met) == [(i, j) for i in range(size) for j in range(i + 1, size)]


def test_consecutive_pairs_of_a_batch() -> None:
    anchors, positives = consecutive_pairs(torch.tensor([3, 1, 3, 1, 3, 2, 1, 1]))
    assert anchors.tolist() == [0, 1, 2, 3, 6, 7]
    assert positives.tolist() == [2, 3, 0, 1, 7, 6]


def test_consecutive_pairs_in_another_order() -> None:
    anchors, positives = consecutive_pairs(torch.tensor([5, 5, 5, 5]), torch.tensor([2, 0, 3, 1]))
    assert dict(zip(anchors.tolist(), positives.tolist(), strict=True)) == {2: 0, 0: 2, 3: 1, 1: 3}
