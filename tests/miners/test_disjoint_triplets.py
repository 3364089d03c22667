from collections import Counter

import pytest
import torch

from pml_ext.miners import DisjointTripletMiner


def triplets(labels: list[int], seed: int | None = 0) -> list[tuple[int, ...]]:
    found = DisjointTripletMiner(seed=seed)(torch.randn(len(labels), 3), torch.tensor(labels))
    return list(zip(*(part.tolist() for part in found), strict=True))


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(
    "labels, least",
    [
        ([i // 4 for i in range(32)], 10),  # 32 samples: ten triplets and two samples left over
        ([i // 2 for i in range(12)], 4),
        ([0, 0, 0, 0, 0, 0, 1], 1),
        ([0, 1, 0, 2, 1, 0, 1, 3, 0, 2], 2),
        ([5, 5, 5, 5], 0),
        ([1, 2, 3], 0),
        ([7], 0),
    ],
)
def test_each_sample_stands_in_at_most_one_triplet(labels: list[int], least: int, seed: int) -> None:
    found = triplets(labels, seed)
    assert len(found) >= least
    assert max(Counter(sample for triplet in found for sample in triplet).values(), default=1) == 1
    for a, p, n in found:
        assert a != p and labels[a] == labels[p] and labels[n] != labels[a]


def test_all_roles_are_drawn_alike() -> None:
    """Each sample is anchor, positive and negative about as often as any other."""
    labels = [i // 4 for i in range(12)]
    torch.manual_seed(0)
    roles: Counter[tuple[int, int]] = Counter()
    for _ in range(600):
        for triplet in triplets(labels, None):
            roles.update((role, sample) for role, sample in enumerate(triplet))
    for role in range(3):
        counts = [roles[role, sample] for sample in range(12)]
        assert min(counts) > 0.8 * sum(counts) / 12 and max(counts) < 1.2 * sum(counts) / 12


def test_a_seed_repeats_itself_and_torchs_generator_does_not() -> None:
    x, labels = torch.randn(32, 3), torch.arange(32) // 4
    seeded = [torch.stack(DisjointTripletMiner(seed=seed)(x, labels)) for seed in (3, 3, 4)]
    assert torch.equal(seeded[0], seeded[1]) and not torch.equal(seeded[0], seeded[2])
    miner, draws = DisjointTripletMiner(), []
    for _ in range(2):
        torch.manual_seed(7)
        draws.append([torch.stack(miner(x, labels)) for _ in range(2)])
    assert torch.equal(draws[0][0], draws[1][0]) and torch.equal(draws[0][1], draws[1][1])
    assert not torch.equal(draws[0][0], draws[0][1])


def test_a_reference_set_gives_positives_and_negatives_once_each() -> None:
    labels, ref_labels = torch.arange(12) // 4, torch.tensor([0, 1, 2, 0, 1, 2, 0, 5])
    a, p, n = DisjointTripletMiner(seed=0)(torch.randn(12, 3), labels, torch.randn(8, 3), ref_labels)
    assert len(a) == len(a.unique()) >= 3
    used = torch.cat([p, n])
    assert len(used) == len(used.unique())
    assert (labels[a] == ref_labels[p]).all() and (labels[a] != ref_labels[n]).all()


def test_errors() -> None:
    with pytest.raises(TypeError, match="Known: seed, distance, collect_stats"):
        DisjointTripletMiner(count=3)
