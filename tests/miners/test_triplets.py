from collections import Counter

import pytest
import torch
from pytest import approx
from pytorch_metric_learning import distances, miners, reducers
from torch.testing import assert_close

from pml_ext.functional import concordance_index
from pml_ext.losses import CITLoss
from pml_ext.miners import ConcordanceMiner, DisjointTripletMiner, LoOpMiner
from tests.oracles.arcs import loop_distances
from tests.oracles.concordance import triplets
from tests.refusals import refusals

LABELS = [0, 1, 0, 2, 1, 0, 1, 3, 0, 2]
REF_LABELS = [1, 0, 5, 1, 0, 0, 2]
DISTANCES = [
    distances.CosineSimilarity(),
    distances.LpDistance(),
    distances.SNRDistance(),
]


def batch():
    labels = torch.tensor(LABELS)
    return (torch.randn(4, 5)[labels] + torch.randn(len(LABELS), 5)).double(), labels


def as_set(mined):
    triplets = list(zip(*(i.tolist() for i in mined), strict=True))
    assert len(triplets) == len(set(triplets))
    return set(triplets)


@pytest.mark.parametrize("kind", ["hard", "semihard", "easy"])
@pytest.mark.parametrize("measure", DISTANCES, ids=lambda d: type(d).__name__)
def test_the_kinds_are_those_of_pmls_triplet_margin_miner(kind, measure):
    x, labels = batch()
    x[5] = x[0]  # ties
    for ref in ((), (torch.randn(7, 5).double(), torch.tensor(REF_LABELS))):
        ours = ConcordanceMiner(type_of_triplets=kind, margin=0.3, distance=measure)(x, labels, *ref)
        theirs = miners.TripletMarginMiner(type_of_triplets=kind, margin=0.3, distance=measure)(x, labels, *ref)
        assert as_set(ours) == as_set(theirs)
        assert len(ours[0]) > 0


def test_counts_of_all_kinds_are_recorded_whichever_is_asked_for():
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
    assert concordance_index(distances.CosineSimilarity()(x), labels).item() == approx(index, abs=1e-6)
    miner(x[:2], labels[:2])
    assert miner.num_discordant == miner.num_hard == 0  # of the last batch only


def test_cit_has_no_event_loss_beyond_the_discordant_triplets():
    x, labels = batch()
    loss = CITLoss(reducer=reducers.SumReducer())
    total = loss(x, labels)
    assert_close(loss(x, labels, ConcordanceMiner()(x, labels)), total)
    assert total > 0


def test_inside_loop_it_compares_with_the_distances_of_arcs():
    x, labels = batch()
    d = loop_distances(x, LABELS, x, LABELS, "all")
    expected = {(a, p, n) for a, p, n in triplets(LABELS) if d[a][n] < d[a][p]}
    assert as_set(LoOpMiner(ConcordanceMiner(), pairing="all")(x, labels)) == expected
    assert len(expected) > len(ConcordanceMiner()(x, labels)[0])


def disjoint_triplets(labels, seed=0):
    found = DisjointTripletMiner(seed=seed)(torch.randn(len(labels), 3), torch.tensor(labels))
    return list(zip(*(part.tolist() for part in found), strict=True))


@pytest.mark.parametrize(
    "labels, least",
    [
        ([i // 4 for i in range(32)], 10),  # 32 samples: ten triplets and two samples left over
        ([0, 0, 0, 0, 0, 0, 1], 1),
        ([0, 1, 0, 2, 1, 0, 1, 3, 0, 2], 2),
        ([1, 2, 3], 0),
    ],
)
def test_each_sample_stands_in_at_most_one_triplet(labels, least):
    for seed in range(20):
        found = disjoint_triplets(labels, seed)
        assert len(found) >= least
        assert max(Counter(sample for triplet in found for sample in triplet).values(), default=1) == 1
        for a, p, n in found:
            assert labels[a] == labels[p] and labels[n] != labels[a]


def test_all_roles_are_drawn_alike():
    """Each sample is anchor, positive and negative about as often as any other."""
    labels = [i // 4 for i in range(12)]
    torch.manual_seed(0)
    roles = Counter()
    for _ in range(600):
        for triplet in disjoint_triplets(labels, None):
            roles.update((role, sample) for role, sample in enumerate(triplet))
    for role in range(3):
        counts = [roles[role, sample] for sample in range(12)]
        assert min(counts) > 0.8 * sum(counts) / 12 and max(counts) < 1.2 * sum(counts) / 12


def test_a_seed_repeats_itself_and_torchs_generator_does_not():
    x, labels = torch.randn(32, 3), torch.arange(32) // 4
    seeded = [torch.stack(DisjointTripletMiner(seed=seed)(x, labels)) for seed in (3, 3, 4)]
    assert torch.equal(seeded[0], seeded[1]) and not torch.equal(seeded[0], seeded[2])
    miner, draws = DisjointTripletMiner(), []
    for _ in range(2):
        torch.manual_seed(7)
        draws.append([torch.stack(miner(x, labels)) for _ in range(2)])
    assert torch.equal(draws[0][0], draws[1][0]) and torch.equal(draws[0][1], draws[1][1])
    assert not torch.equal(draws[0][0], draws[0][1])


def test_a_reference_set_gives_positives_and_negatives_once_each():
    labels, ref_labels = torch.arange(12) // 4, torch.tensor([0, 1, 2, 0, 1, 2, 0, 5])
    a, p, n = DisjointTripletMiner(seed=0)(torch.randn(12, 3), labels, torch.randn(8, 3), ref_labels)
    assert len(a) == len(a.unique()) >= 3
    used = torch.cat([p, n])
    assert len(used) == len(used.unique())
    assert (labels[a] == ref_labels[p]).all() and (labels[a] != ref_labels[n]).all()


REFUSED = [
    (ConcordanceMiner, {"type_of_triplets": "all"}, "one of 'discordant', 'hard', 'semihard', 'easy'"),
    (ConcordanceMiner, {"margin": -1}, r"margin must be in \[0, inf\]; got -1"),
    (DisjointTripletMiner, {"count": 3}, "'count'"),
    (DisjointTripletMiner, {"seed": 0.5}, "seed must be a whole number; got 0.5"),
]
test_errors = refusals(REFUSED)
