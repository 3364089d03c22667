import pytest
import torch
from pytorch_metric_learning import distances, miners
from torch import Tensor

from pml_ext.miners import HPHNMiner, LoOpMiner
from tests.oracles.arcs import loop_distances
from tests.oracles.triplets import distance, hphn_triplets, unit

LABELS = [0, 1, 0, 2, 1, 0, 1, 3, 0, 2]
REF_LABELS = [1, 0, 5, 1, 0, 0, 2]


def batch() -> tuple[Tensor, Tensor]:
    labels = torch.tensor(LABELS)
    return (torch.randn(4, 5)[labels] + torch.randn(len(LABELS), 5)).double(), labels


def as_list(mined: tuple[Tensor, ...]) -> list[tuple[int, ...]]:
    return list(zip(*(i.tolist() for i in mined), strict=True))


@pytest.mark.parametrize(
    "measure", [distances.LpDistance(), distances.LpDistance(power=2), distances.CosineSimilarity()]
)
@pytest.mark.parametrize("with_ref", [False, True])
def test_triplets_by_loops(measure: distances.BaseDistance, with_ref: bool) -> None:
    x, labels = batch()
    ref = torch.randn(7, 5).double() if with_ref else x
    rows, others = [unit(row) for row in x.tolist()], [unit(row) for row in ref.tolist()]
    d = [[distance(v, w) for w in others] for v in rows]
    expected = hphn_triplets(d, LABELS, REF_LABELS if with_ref else None)
    given = (ref, torch.tensor(REF_LABELS)) if with_ref else ()
    assert as_list(HPHNMiner(distance=measure)(x, labels, *given)) == expected
    assert len(expected) == 9


def test_against_a_reference_set_it_is_batch_hard_and_among_themselves_it_is_not() -> None:
    x, labels = batch()
    ref = torch.randn(7, 5).double(), torch.tensor(REF_LABELS)
    hard = miners.BatchHardMiner()
    assert as_list(HPHNMiner()(x, labels, *ref)) == as_list(hard(x, labels, *ref))
    assert as_list(HPHNMiner()(x, labels)) != as_list(hard(x, labels))


@pytest.mark.parametrize("pairing", ["consecutive", "all"])
def test_inside_loop_it_mines_with_the_distances_of_arcs(pairing: str) -> None:
    x, labels = batch()
    d = loop_distances(x, LABELS, x, LABELS, pairing)
    for a, p, n in as_list(LoOpMiner(HPHNMiner(), pairing=pairing)(x, labels)):
        assert LABELS[a] == LABELS[p] != LABELS[n]
        # Samples on one arc are equally near, so the triplet is one of several; its distances are the extreme ones.
        nearest = min(d[e][i] for e in (a, p) for i in range(10) if LABELS[i] != LABELS[a])
        assert d[a][n] == pytest.approx(nearest, abs=1e-6)
        mates = [[d[e][i] for i in range(10) if LABELS[i] == LABELS[a] and i != e] for e in (a, p)]
        assert any(d[a][p] == pytest.approx(max(mate), abs=1e-9) for mate in mates)
