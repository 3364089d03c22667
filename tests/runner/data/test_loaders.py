"""Batches are a function of seed and epoch: neither workers nor ranks nor earlier epochs change a pixel."""

import signal
import subprocess
import sys
import time
from itertools import islice
from multiprocessing import get_context

import numpy as np
import pytest
import torch
from yacs.config import CfgNode as CN

from pml_ext._shared.errors import UserError
from pml_ext.runner.data.datasets import ImageSet
from pml_ext.runner.data.loaders import evaluation_loader, outlive_signals, train_loader
from pml_ext.runner.data.transforms import PadAndCrop, RandomErasing, Transform

pytestmark = pytest.mark.filterwarnings("ignore:.*This DataLoader will create 3 worker processes")

IDENTITIES = np.repeat(np.arange(6), 8)
IMAGES = ImageSet(
    [torch.full((3, 10, 8), i, dtype=torch.uint8) for i in range(48)], IDENTITIES, np.zeros(48), ["x"] * 48
)
TRANSFORM = Transform([PadAndCrop((10, 8), 3, "constant"), RandomErasing(0.5, [255.0] * 3)])


def loader(workers, *, seed=0, rank=0, world_size=1):
    sampling = {"SAMPLER_TRAIN": "NaiveIdentitySampler", "NUM_INSTANCE": 4}
    options = CN(sampling | {"NUM_WORKERS": workers, "PREFETCH_FACTOR": 2})
    return train_loader(options, IMAGES, TRANSFORM, batch_size=16, seed=seed, rank=rank, world_size=world_size)


def epoch_of(made, epoch):
    """The batches as the model gets them: images, class ids and rows."""
    made.batch_sampler.set_epoch(epoch)
    return [[b["images"], b["targets"], b["rows"]] for b in made]


def same(first, second):
    return all(torch.equal(a, b) for x, y in zip(first, second, strict=True) for a, b in zip(x, y, strict=True))


def test_targets_are_classes_in_training_and_identities_in_tests():
    identities = np.array([20, 0, -1, 20])
    images = ImageSet([torch.zeros(3, 10, 8, dtype=torch.uint8)] * 4, identities, np.zeros(4), ["x"] * 4)
    options = CN({"SAMPLER_TRAIN": "TrainingSampler", "NUM_INSTANCE": 1, "NUM_WORKERS": 0})
    [tested] = evaluation_loader(options, images, TRANSFORM, batch_size=4, rank=0, world_size=1)
    assert tested["targets"].tolist() == identities.tolist()
    made = train_loader(options, images, TRANSFORM, batch_size=4, seed=0, rank=0, world_size=1)
    [[_, trained, rows]] = epoch_of(made, 0)
    assert trained.tolist() == np.array([2, 1, 0, 2])[rows].tolist()


@pytest.fixture(scope="module")
def expected():
    """Four epochs, without workers."""
    made = loader(0)
    return [epoch_of(made, epoch) for epoch in range(4)]


@pytest.mark.parametrize("workers", [0, 3])
def test_any_epoch_is_the_same_with_any_workers_and_whatever_came_before(workers, expected):
    made = loader(workers)
    for epoch in (2, 0, 3):
        torch.manual_seed(epoch + 77)
        assert same(epoch_of(made, epoch), expected[epoch])


def test_an_epoch_that_was_left_halfway_is_repeated_whole(expected):
    made = loader(3)
    made.batch_sampler.set_epoch(1)
    assert len(list(islice(made, 2))) == 2
    assert same(epoch_of(made, 1), expected[1])


def test_images_of_one_batch_are_changed_each_in_its_own_way(expected):
    images = torch.cat([batch[0] for batch in expected[0]])
    assert len({tuple((image == 255).flatten().tolist()) for image in images}) > len(images) // 4


def test_ranks_see_the_parts_of_what_one_process_sees(expected):
    parts = [epoch_of(loader(1, rank=rank, world_size=2), 1) for rank in range(2)]
    for first, second, whole in zip(*parts, expected[1], strict=True):
        assert same([[torch.cat(pair) for pair in zip(first, second, strict=True)]], [whole])


def test_what_the_model_draws_does_not_depend_on_the_data():
    made = loader(0)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    epoch_of(made, 0)
    assert torch.equal(torch.get_rng_state(), before)


def test_images_of_a_batch_lie_as_decoders_give_them():
    batch = next(iter(loader(1)))
    images, labels, rows = (batch[name] for name in ("images", "targets", "rows"))
    assert images.shape == (16, 3, 10, 8) and images.dtype == torch.float32
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert labels.dtype == rows.dtype == torch.int64


def test_every_rank_tests_its_own_images():
    rows = []
    for rank in range(3):
        options = CN({"NUM_WORKERS": 0})
        for batch in evaluation_loader(options, IMAGES, TRANSFORM, batch_size=5, rank=rank, world_size=3):
            rows += batch["rows"].tolist()
    assert sorted(rows) == list(range(48))


def test_the_workers_of_a_test_set_are_started_once():
    options = CN({"NUM_WORKERS": 1, "PREFETCH_FACTOR": 2})
    tests = evaluation_loader(options, IMAGES, TRANSFORM, batch_size=24, rank=0, world_size=1)
    first = [iter(tests) for _ in range(2)]
    assert first[0] is first[1], "which torch starts anew where its workers end"
    assert [len(batch["rows"]) for batch in tests] == [24, 24]


def test_fewer_images_than_ranks_are_an_error_on_all_ranks():
    options, few = CN({"NUM_WORKERS": 0}), IMAGES.subset(np.arange(2))
    for rank in range(3):
        with pytest.raises(UserError, match="has 2 images for 3 processes; start at most 2"):
            evaluation_loader(options, few, TRANSFORM, batch_size=5, rank=rank, world_size=3)


def wait_as_a_worker(is_ready):
    outlive_signals(0)
    is_ready.set()
    time.sleep(60)


@pytest.mark.skipif(not hasattr(signal, "sigwaitinfo"), reason="the system does not say who has sent a signal")
def test_only_its_parent_ends_a_worker():
    """Else a worker that a killed one has left waiting would keep the run from ending."""
    processes = get_context("fork")
    is_ready = processes.Event()
    worker = processes.Process(target=wait_as_a_worker, args=(is_ready,))
    worker.start()
    assert is_ready.wait(30)
    subprocess.run([sys.executable, "-c", f"import os; os.kill({worker.pid}, {int(signal.SIGTERM)})"], check=True)
    worker.join(0.2)
    assert worker.is_alive()
    worker.terminate()
    worker.join(30)
    assert worker.exitcode == 0
