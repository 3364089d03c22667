import pytest
import torch
from pytorch_metric_learning import distances, miners, reducers
from torch import Tensor

from pml_ext.functional import concordance_index
from pml_ext.losses import CITLoss
from pml_ext.miners import ConcordanceMiner, LoOpMiner
from tests.oracles.arcs import loop_distances

LABELS = [0, 1, 0, 2, 1, 0, 1, 3, 0, 2]
REF_LABELS = [1, 0, 5, 1, 0, 0, 2]
DISTANCES = [
    distances.CosineSimilarity(),
    distances.LpDistance(),
    distances.LpDistance(p=1, power=2),
    distances.SNRDistance(),
]


def batch() -> tuple[Tensor, Tensor]:
    labels = torch.tensor(LABELS)
    return (torch.randn(4, 5)[labels] + torch.randn(len(LABELS), 5)).double(), labels


def as_set(mined: tuple[Tensor, ...]) -> set[tuple[int, ...]]:
    triplets = list(zip(*(i.tolist() for i in mined), strict=True))
    assert len(triplets) == len(set(triplets))
    return set(triplets)


@pytest.mark.parametrize("with_ref", [False, True])
def test_discordant_triplets_by_loops_over_cosines(with_ref: bool) -> None:
    x, labels = batch()
    ref, ref_labels = (torch.randn(7, 5).double(), REF_LABELS) if with_ref else (x, LABELS)
    expected = set()
    for a in range(10):
        for p in range(len(ref)):
            for n in range(len(ref)):
                if LABELS[a] == ref_labels[p] != ref_labels[n] and (with_ref or a != p):
                    s_ap, s_an = (float(x[a] @ ref[i] / x[a].norm() / ref[i].norm()) for i in (p, n))
                    if s_an > s_ap:
                        expected.add((a, p, n))
    mined = ConcordanceMiner()(x, labels, *((ref, torch.tensor(ref_labels)) if with_ref else ()))
    assert as_set(mined) == expected and expected


@pytest.mark.parametrize("kind", ["hard", "semihard", "easy"])
@pytest.mark.parametrize("measure", DISTANCES, ids=lambda d: type(d).__name__)
def test_the_kinds_are_those_of_pmls_triplet_margin_miner(kind: str, measure: distances.BaseDistance) -> None:
    x, labels = batch()
    x[5] = x[0]  # ties
    for ref in ((), (torch.randn(7, 5).double(), torch.tensor(REF_LABELS))):
        ours = ConcordanceMiner(type_of_triplets=kind, margin=0.3, distance=measure)(x, labels, *ref)
        theirs = miners.TripletMarginMiner(type_of_triplets=kind, margin=0.3, distance=measure)(x, labels, *ref)
        assert as_set(ours) == as_set(theirs)
        assert len(ours[0]) > 0


def test_counts_of_all_kinds_are_recorded_whichever_is_asked_for() -> None:
    x, labels = batch()
    x[2] = x[1]  # so that positive 2 and negative 1 tie for the anchors 0, 5 and 8
    counts = {}
    for kind in ("discordant", "hard", "semihard", "easy"):
        miner = ConcordanceMiner(type_of_triplets=kind, margin=0.3, collect_stats=True)
        counts[kind] = len(miner(x, labels)[0])
        assert miner.num_triplets == counts[kind]
    assert {kind: getattr(miner, f"num_{kind}") for kind in counts} == counts
    assert 0 < counts["discordant"] < counts["hard"]
    total = counts["hard"] + counts["semihard"] + counts["easy"]
    index = 1 - (counts["discordant"] + counts["hard"]) / (2 * total)
    assert concordance_index(distances.CosineSimilarity()(x), labels).item() == pytest.approx(index, abs=1e-6)
    miner(x[:2], labels[:2])
    assert miner.num_discordant == miner.num_hard == 0  # of the last batch only


def test_without_statistics_nothing_is_counted() -> None:
    x, labels = batch()
    miner = ConcordanceMiner(collect_stats=False)
    assert len(miner(x, labels)[0]) > 0 and not hasattr(miner, "num_discordant")


def test_cit_has_no_event_loss_beyond_the_discordant_triplets() -> None:
    x, labels = batch()
    loss = CITLoss(reducer=reducers.SumReducer())
    total = loss(x, labels)
    torch.testing.assert_close(loss(x, labels, ConcordanceMiner()(x, labels)), total)
    assert total > 0


def test_inside_loop_it_compares_with_the_distances_of_arcs() -> None:
    x, labels = batch()
    d = loop_distances(x, LABELS, x, LABELS, "all")
    expected = {
        (a, p, n)
        for a in range(10)
        for p in range(10)
        for n in range(10)
        if LABELS[a] == LABELS[p] != LABELS[n] and a != p and d[a][n] < d[a][p]
    }
    assert as_set(LoOpMiner(ConcordanceMiner(), pairing="all")(x, labels)) == expected
    assert len(expected) > len(ConcordanceMiner()(x, labels)[0])


def test_errors() -> None:
    with pytest.raises(ValueError, match="type_of_triplets must be one of 'discordant', 'hard', 'semihard', 'easy'"):
        ConcordanceMiner(type_of_triplets="all")
    with pytest.raises(ValueError, match=r"margin must be in \[0, inf\]; got -1"):
        ConcordanceMiner(margin=-1)
