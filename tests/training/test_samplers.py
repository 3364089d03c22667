from itertools import pairwise

import numpy as np
import pytest

from pml_ext.training.config import ConfigError
from pml_ext.training.samplers import JointBatchSampler

LABELS = np.repeat(np.arange(12), [3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14])


def batches(epoch: int = 0, **options: int) -> list[list[int]]:
    sampler = JointBatchSampler(LABELS, 16, **({"instances": 4, "seed": 0} | options))
    sampler.set_epoch(epoch)
    drawn = list(sampler)
    assert len(drawn) == len(sampler) == len(LABELS) // 16
    return drawn


def test_a_batch_holds_p_identities_with_k_images() -> None:
    for batch in batches():
        identities, counts = np.unique(LABELS[batch], return_counts=True)
        assert len(identities) == 4
        assert (counts == 4).all()
        for c in identities[np.bincount(LABELS)[identities] >= 4]:
            assert len(set(np.array(batch)[LABELS[batch] == c])) == 4, "an image twice although there are enough"


def test_an_epoch_follows_from_seed_and_epoch_alone() -> None:
    assert batches(3) == batches(3)
    different = [batches(3), batches(4), batches(3, seed=1)]
    assert all(a != b for a, b in pairwise(different))


@pytest.mark.parametrize("instances", [4, 0])
def test_ranks_share_the_joint_batch_in_order(instances: int) -> None:
    joint = batches(instances=instances)
    ranks = [batches(instances=instances, rank=r, world_size=2) for r in range(2)]
    assert [a + b for a, b in zip(*ranks, strict=True)] == joint


def test_without_identities_every_image_comes_once() -> None:
    drawn = [row for batch in batches(instances=0) for row in batch]
    assert len(drawn) == len(set(drawn)) == 96


def test_a_set_smaller_than_a_batch_fills_one() -> None:
    sampler = JointBatchSampler(np.zeros(3, dtype=int), 8, 0, seed=0)
    (batch,) = list(sampler)
    assert len(batch) == 8
    assert set(batch) == {0, 1, 2}


def test_errors() -> None:
    with pytest.raises(ConfigError, match=r"multiple of DATALOADER.NUM_INSTANCE × processes = 5 × 1; got 16"):
        batches(instances=5)
    with pytest.raises(ConfigError, match=r"= 4 × 3; got 16"):
        batches(world_size=3)
    with pytest.raises(ConfigError, match=r"= 16 identities; the training set has 12"):
        batches(instances=1)
