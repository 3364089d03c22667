import math

import pytest
import torch
from pytorch_metric_learning import distances, losses, miners, reducers

from pml_ext.miners import LoOpMiner
from tests.oracles.arcs import loop_distances

LABELS = [0, 1, 0, 2, 1, 0, 1, 3, 0, 2]
SERVED = [
    miners.BatchEasyHardMiner(),
    miners.BatchHardMiner(),
    miners.DistanceWeightedMiner(),
    miners.HDCMiner(),
    miners.MultiSimilarityMiner(),
    miners.PairMarginMiner(),
    miners.TripletMarginMiner(),
    miners.UniformHistogramMiner(),
]


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(len(LABELS), 4, dtype=torch.float64), torch.tensor(LABELS)


@pytest.mark.parametrize("pairing", ["consecutive", "all"])
def test_hardest_negatives_are_those_of_the_oracle(pairing: str) -> None:
    x, labels = batch()
    d = loop_distances(x, LABELS, x, LABELS, pairing)
    anchors, positives, negatives = LoOpMiner(miners.BatchHardMiner(), pairing=pairing)(x, labels)
    assert sorted(set(anchors.tolist())) == [0, 1, 2, 3, 4, 5, 6, 8, 9]  # sample 7 is alone in its class
    for a, p, n in zip(anchors.tolist(), positives.tolist(), negatives.tolist(), strict=True):
        others = [i for i in range(len(LABELS)) if LABELS[i] != LABELS[a]]
        assert d[a][n] == pytest.approx(min(d[a][i] for i in others), abs=1e-6)
        assert d[a][p] == pytest.approx(
            max(d[a][i] for i in range(len(LABELS)) if i != a and LABELS[i] == LABELS[a]), abs=1e-9
        )


def test_multi_similarity_mining_on_the_loop_similarities() -> None:
    x, labels = batch()
    s = 1 - torch.tensor(loop_distances(x, LABELS, x, LABELS, "consecutive"), dtype=torch.float64) ** 2 / 2
    _, _, anchors, negatives = LoOpMiner(miners.MultiSimilarityMiner(epsilon=0.1))(x, labels)
    expected = set()
    for a in range(len(LABELS)):
        positives = [s[a, i].item() for i in range(len(LABELS)) if i != a and LABELS[i] == LABELS[a]]
        for n in range(len(LABELS)):
            if LABELS[n] != LABELS[a] and positives and s[a, n] + 0.1 > min(positives):
                expected.add((a, n))
    found = set(zip(anchors.tolist(), negatives.tolist(), strict=True))
    assert {pair for pair in found if pair[0] != 7} == expected


@pytest.mark.parametrize("epsilon", [-0.02, 0.1])
def test_of_a_pair_miner_only_the_negatives_are_loops(epsilon: float) -> None:
    """LoOp with the multi-similarity loss: plain positive pairs, and the loss's own, plain similarities."""
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
    cosines = torch.where(torch.eye(len(x), dtype=torch.bool), 0, plain)
    total = 0.0
    for scale, anchors, partners in ((-2, a1, p), (50, a2, n)):
        for i in range(len(x)):
            chosen = [cosines[i, j] for k, j in zip(anchors, partners, strict=True) if k == i]
            total += math.log1p(sum(math.exp(scale * (cosine - 0.5)) for cosine in chosen)) / abs(scale)
    loss = losses.MultiSimilarityLoss(alpha=2, beta=50, base=0.5, reducer=reducers.MeanReducer())
    assert loss(x, labels, mined).item() == pytest.approx(total / len(x), abs=1e-9)


def test_the_distance_is_that_of_the_wrapped_miner() -> None:
    x, labels = batch()
    loop = LoOpMiner(miners.BatchHardMiner())
    loop.distance = distances.CosineSimilarity()
    assert isinstance(loop.miner.distance, distances.CosineSimilarity)
    assert torch.equal(loop(x, labels)[2], LoOpMiner(miners.BatchHardMiner())(x, labels)[2])
    with pytest.raises(TypeError, match="needs one of the distances"):
        loop.distance = distances.SNRDistance()


@pytest.mark.parametrize("pairing", ["consecutive", "all"])
@pytest.mark.parametrize("miner", SERVED, ids=lambda miner: type(miner).__name__)
def test_every_miner_runs_on_a_batch_and_on_a_reference_set(miner: miners.BaseMiner, pairing: str) -> None:
    labels = torch.arange(24) // 4
    x, own = torch.randn(24, 8), miner.distance
    loop = LoOpMiner(miner, pairing=pairing)
    mined = loop(x, labels)
    assert all(len(indices) > 0 for indices in mined)
    assert (labels[mined[0]] == labels[mined[1]]).all()
    assert (labels[mined[-2 if len(mined) == 4 else 0]] != labels[mined[-1]]).all()
    ref_labels = torch.arange(10) // 2
    mined = loop(x, labels, torch.randn(10, 8), ref_labels)
    assert (labels[mined[0]] == ref_labels[mined[1]]).all()
    assert miner.distance is own


def test_refused_miners_and_errors() -> None:
    x, labels = batch()
    for miner in (miners.AngularMiner(), miners.EmbeddingsAlreadyPackagedAsTriplets()):
        with pytest.raises(TypeError, match=f"LoOpMiner cannot wrap {type(miner).__name__}: it"):
            LoOpMiner(miner)
    with pytest.raises(TypeError, match="got type"):
        LoOpMiner(miners.HDCMiner)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="replaced already"):
        LoOpMiner(LoOpMiner(miners.HDCMiner()))
    with pytest.raises(TypeError, match="needs one of the distances"):
        LoOpMiner(miners.HDCMiner(distance=distances.SNRDistance()))
    with pytest.raises(ValueError, match="pairing must be one of"):
        LoOpMiner(miners.HDCMiner(), pairing="some")
    with pytest.raises(ValueError, match="geometry must be one of"):
        LoOpMiner(miners.HDCMiner(), geometry="circle")
    with pytest.raises(ValueError, match="integer type"):
        LoOpMiner(miners.HDCMiner())(x, labels + 0.5)


@pytest.mark.parametrize("pos_margin", [0.2, 0.9])
def test_a_pair_miners_positives_are_those_of_its_own_distance(pos_margin: float) -> None:
    x, labels = batch()
    plain = miners.PairMarginMiner(pos_margin=pos_margin, neg_margin=0.9)
    expected = plain(x, labels)
    found = LoOpMiner(miners.PairMarginMiner(pos_margin=pos_margin, neg_margin=0.9))(x, labels)
    assert all(map(torch.equal, found[:2], expected[:2])) and len(found[2]) > len(expected[2])
