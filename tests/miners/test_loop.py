import pytest
import torch
from pytest import approx
from pytorch_metric_learning import distances, miners

from pml_ext.miners import LoOpMiner
from tests.oracles.arcs import loop_distances

LABELS = [0, 1, 0, 2, 1, 0, 1, 3, 0, 2]
SERVED = [
    miners.BatchEasyHardMiner(),
    miners.DistanceWeightedMiner(),
    miners.HDCMiner(),
    miners.MultiSimilarityMiner(),
    miners.PairMarginMiner(),
    miners.TripletMarginMiner(),
    miners.UniformHistogramMiner(),
]


def batch():
    return torch.randn(len(LABELS), 4, dtype=torch.float64), torch.tensor(LABELS)


@pytest.mark.parametrize("pairing", ["consecutive", "all"])
def test_hardest_negatives_are_those_of_the_oracle(pairing):
    x, labels = batch()
    d = loop_distances(x, LABELS, x, LABELS, pairing)
    anchors, positives, negatives = LoOpMiner(miners.BatchHardMiner(), pairing=pairing)(x, labels)
    assert sorted(set(anchors.tolist())) == [0, 1, 2, 3, 4, 5, 6, 8, 9]  # sample 7 is alone in its class
    for a, p, n in zip(anchors.tolist(), positives.tolist(), negatives.tolist(), strict=True):
        others = [i for i in range(len(LABELS)) if LABELS[i] != LABELS[a]]
        assert d[a][n] == approx(min(d[a][i] for i in others), abs=1e-6)
        assert d[a][p] == approx(
            max(d[a][i] for i in range(len(LABELS)) if i != a and LABELS[i] == LABELS[a]), abs=1e-9
        )


def test_of_a_pair_miner_only_the_negatives_are_loops():
    """LoOp with the multi-similarity loss: plain positive pairs, and the loss's own, plain similarities."""
    epsilon = 0.1
    x, labels = batch()
    unit = x / x.norm(dim=1, keepdim=True)
    plain = unit @ unit.T
    s = 1 - torch.tensor(loop_distances(x, LABELS, x, LABELS, "consecutive"), dtype=torch.float64) ** 2 / 2
    positives, negatives = set(), set()
    for a, label in enumerate(LABELS):
        of_class = [i for i in range(len(LABELS)) if i != a and LABELS[i] == label]
        others = [i for i in range(len(LABELS)) if LABELS[i] != label]
        positives |= {(a, p) for p in of_class if plain[a, p] - epsilon < max(plain[a, n] for n in others)}
        negatives |= {(a, n) for n in others if of_class and s[a, n] + epsilon > min(plain[a, p] for p in of_class)}
    inner = miners.MultiSimilarityMiner(epsilon=epsilon, collect_stats=True)
    loop = LoOpMiner(inner, pairing="consecutive")
    mined = loop(x, labels)
    a1, p, a2, n = (part.tolist() for part in mined)
    assert {pair for pair in zip(a2, n, strict=True) if pair[0] != 7} == negatives  # PML takes all of a lone sample
    assert set(zip(a1, p, strict=True)) == positives
    assert (loop.num_pos_pairs, loop.num_neg_pairs) == (len(a1), len(a2))


@pytest.mark.parametrize("miner", SERVED, ids=lambda miner: type(miner).__name__)
def test_every_miner_runs_on_a_batch_and_on_a_reference_set(miner):
    labels = torch.arange(24) // 4
    x, own = torch.randn(24, 8), miner.distance
    loop = LoOpMiner(miner)
    mined = loop(x, labels)
    assert all(len(indices) > 0 for indices in mined)
    assert (labels[mined[0]] == labels[mined[1]]).all()
    assert (labels[mined[-2 if len(mined) == 4 else 0]] != labels[mined[-1]]).all()
    ref_labels = torch.arange(10) // 2
    mined = loop(x, labels, torch.randn(10, 8), ref_labels)
    assert (labels[mined[0]] == ref_labels[mined[1]]).all()
    assert miner.distance is own


REFUSED = [
    (miners.AngularMiner(), {}, "LoOpMiner cannot wrap AngularMiner: it measures angles"),
    (miners.HDCMiner, {}, "got the class HDCMiner"),
    (LoOpMiner(miners.HDCMiner()), {}, "replaced already"),
    (miners.HDCMiner(distance=distances.SNRDistance()), {}, "needs one of the distances"),
    (miners.HDCMiner(), {"geometry": "circle"}, "geometry must be one of"),
]


@pytest.mark.parametrize(("miner", "options", "message"), REFUSED)
def test_what_is_refused(miner, options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        LoOpMiner(miner, **options)


def test_the_distance_is_that_of_the_wrapped_miner():
    x, labels = batch()
    loop = LoOpMiner(miners.BatchHardMiner())
    loop.distance = distances.CosineSimilarity()
    assert loop.miner.distance is loop.distance
    assert torch.equal(loop(x, labels)[2], LoOpMiner(miners.BatchHardMiner())(x, labels)[2])
    loop.distance = distances.SNRDistance()
    with pytest.raises(TypeError, match="needs one of the distances"):
        loop(x, labels)
