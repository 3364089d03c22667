from itertools import islice, pairwise

import numpy as np
import pytest
from yacs.config import CfgNode as CN

from pml_ext._shared.errors import UserError
from pml_ext.runner.data.datasets import ImageSet
from pml_ext.runner.data.samplers import BY_IDENTITY, Items, build_sampler
from pml_ext.runner.registry import SAMPLER_REGISTRY

LABELS = np.repeat(np.arange(12), [3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14])
CAMERAS = np.arange(len(LABELS)) % 3


def sampler_of(name, *, labels=LABELS, cameras=CAMERAS, batch_size=24, instances=4, seed=0, rank=0, world_size=1):
    options = CN({"SAMPLER_TRAIN": name, "NUM_INSTANCE": instances, "NUM_WORKERS": 0})
    images = ImageSet(labels, labels + 7, cameras, labels.astype(str))
    return build_sampler(options, images, batch_size=batch_size, seed=seed, rank=rank, world_size=world_size)


def rows_of(batch):
    return [sample.row for sample in batch]


def batches(name, epoch=0, **options):
    sampler = sampler_of(name, **options)
    sampler.set_epoch(epoch)
    drawn = [rows_of(batch) for batch in sampler]
    assert len(drawn) == len(sampler) == len(options.get("labels", LABELS)) // options.get("batch_size", 24)
    return drawn


@pytest.mark.parametrize("name", BY_IDENTITY)
def test_a_batch_holds_p_identities_with_k_images(name):
    for batch in [*batches(name), *batches(name, 1)]:
        rows = np.array(batch).reshape(6, 4)
        identities = LABELS[rows[:, 0]]
        assert (LABELS[rows] == identities[:, None]).all(), "an identity's images stand next to each other"
        assert len(set(identities)) == 6
        if name != "BalancedIdentitySampler":  # whose other images are of other cameras
            assert [len(set(own)) for own in rows] == np.minimum(4, np.bincount(LABELS)[identities]).tolist()


@pytest.mark.parametrize("name", SAMPLER_REGISTRY)
def test_an_epoch_follows_from_seed_and_epoch_alone(name):
    assert batches(name, 3) == batches(name, 3)
    different = [batches(name, 3), batches(name, 4), batches(name, 3, seed=1)]
    assert all(a != b for a, b in pairwise(different))


def test_a_set_smaller_than_a_batch_fills_one():
    whole = [row for batch in batches("TrainingSampler", batch_size=16) for row in batch]
    assert len(whole) == len(set(whole)) == 96, "without identities every image comes once"
    (batch,) = list(sampler_of("TrainingSampler", labels=np.zeros(3, dtype=int), cameras=np.zeros(3), batch_size=8))
    assert len(batch) == 8
    assert {sample.row for sample in batch} == {0, 1, 2}


def test_imbalanced_draws_identities_and_their_images_equally_often():
    sampler = sampler_of("ImbalancedDatasetSampler", batch_size=12_000)
    counts = np.bincount(next(sampler.draw(_random())), minlength=len(LABELS))
    expected = 1000 / np.bincount(LABELS)[LABELS]
    assert (abs(counts - expected) < 5 * np.sqrt(expected)).all(), counts


def test_naive_rounds_follow_the_definition():
    sizes = np.random.default_rng(1).integers(1, 20, size=30)
    labels = np.random.default_rng(2).permutation(np.repeat(np.arange(30), sizes))
    rounds, left, seen = 0, np.zeros(0, dtype=int), set[int]()
    sampler = sampler_of("NaiveIdentitySampler", labels=labels, cameras=labels, batch_size=16)
    for batch in islice(sampler.draw(_random()), 100):
        if (left > 0).sum() < 4:  # a round: as many turns for each identity as whole decks of 4 images, at least one
            rounds, left, seen = rounds + 1, np.maximum(1, sizes // 4), set()
        for rows in np.array(batch).reshape(4, 4):
            identity = labels[rows[0]]
            assert left[identity] > 0
            left[identity] -= 1
            assert len(set(rows)) == min(4, sizes[identity])
            assert not seen & set(rows)
            seen |= set(rows)
    assert rounds > 5


@pytest.mark.parametrize("name", ["UniformIdentitySampler", "NaiveIdentitySampler"])
def test_the_first_batches_of_many_seeds_hold_each_identity_and_image_equally_often(name):
    sampler, seeds = sampler_of(name), 1500
    rows = np.array([next(sampler.draw(np.random.default_rng(seed))) for seed in range(seeds)]).ravel()
    sizes = np.bincount(LABELS)
    chances = 6 / 12 * np.minimum(1, 4 / sizes)[LABELS]
    counts = np.array([len(set(seen)) for seen in _seeds_by_row(rows)])
    assert (abs(counts - seeds * chances) < 4.5 * np.sqrt(seeds * chances * (1 - chances) + 1e-9)).all(), counts


def test_balanced_takes_every_identity_once_a_round_from_other_cameras():
    draw = sampler_of("BalancedIdentitySampler", batch_size=12, instances=3).draw(_random())
    first_round = np.array(list(islice(draw, 3))).reshape(-1, 3)
    assert sorted(LABELS[first_round[:, 0]]) == list(range(12))
    for first, *further in first_round:
        assert all(CAMERAS[row] != CAMERAS[first] for row in further)


def test_balanced_falls_back_to_the_same_camera_and_then_to_the_same_image():
    labels = np.array([0, 0, 1])
    draw = sampler_of("BalancedIdentitySampler", labels=labels, cameras=np.zeros(3), batch_size=4, instances=2).draw(
        _random()
    )
    for batch in islice(draw, 10):
        pairs = {tuple(sorted(pair)) for pair in np.array(batch).reshape(2, 2).tolist()}
        assert pairs == {(0, 1), (2, 2)}


def test_few_identities_fill_a_uniform_batch_in_turns():
    labels = np.repeat(np.arange(3), [9, 2, 30])
    for batch in islice(sampler_of("UniformIdentitySampler", labels=labels, batch_size=40).draw(_random()), 5):
        groups = labels[batch].reshape(10, 4)  # 10 groups of 4 images
        assert (groups == groups[:, :1]).all() and (np.diff(groups[:, 0]) >= 0).all()
        assert sorted(np.bincount(groups[:, 0])) == [3, 3, 4]


def test_more_identities_in_a_batch_than_in_the_set_are_an_error():
    with pytest.raises(UserError, match=r"= 24 identities; the training set has 12"):
        sampler_of("NaiveIdentitySampler", instances=1)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([[0] * 20], r"it yielded 20 rows: \[0, 0"),
        ([[102] + [0] * 23], r"it yielded 24 rows: \[102, 0"),
        ([], "it yielded no more batches"),
    ],
)
def test_a_sampler_gives_joint_batches_without_end(given, message, monkeypatch):
    monkeypatch.setattr(SAMPLER_REGISTRY, "_entries", dict(SAMPLER_REGISTRY._entries))
    SAMPLER_REGISTRY.register("own")(lambda items, batch_size, instances, random: given)
    must = "must yield lists of SOLVER.IMS_PER_BATCH = 24 rows from 0 to 101, without end"
    with pytest.raises(UserError, match=rf"SAMPLER_TRAIN: own of {__name__} {must}; {message}"):
        sampler_of("own")


def test_items_have_the_columns_of_the_data_set():
    images = ImageSet(range(3), np.array([5, 0, 5]), np.array([1, 1, 2]), ["a.jpg", "b.jpg", "c.jpg"], {5: "Ann"})
    assert list(Items(images)) == [("a.jpg", "Ann", 1), ("b.jpg", 0, 1), ("c.jpg", "Ann", 2)]
    assert Items(images).labels.tolist() == [1, 0, 1]


def _seeds_by_row(rows):
    return [(np.flatnonzero(rows == row) // 24).tolist() for row in range(len(LABELS))]


def _random():
    return np.random.default_rng(0)
