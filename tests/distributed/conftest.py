"""Ranks that compute what the tests here compare with one process: one group of processes for all of them."""

from datetime import timedelta
from importlib import import_module

import pytest
import torch

MODULES = (
    "tests.distributed.test_joint_batch",
    "tests.distributed.test_partial_fc",
    "tests.distributed.test_evaluation",
    "tests.distributed.test_class_shares",
    "tests.distributed.test_pml_wrappers",
    "tests.distributed.test_large_batch",
)
"""Each has a function `on_rank(rank, ranks)`, whose results by name are what `found` gives."""


def _rank(rank, folder):
    torch.set_num_threads(1)
    for ranks in (2, 3):  # one after the other in the same processes, of which the last sits the first one out
        if rank < ranks:
            store, timeout = f"file://{folder}/of_{ranks}", timedelta(seconds=300)
            torch.distributed.init_process_group("gloo", store, timeout, rank=rank, world_size=ranks)
            found = {}
            for module in MODULES:
                found |= import_module(module).on_rank(rank, ranks)
            torch.save(found, f"{folder}/{ranks}_{rank}.pt")
            torch.distributed.barrier()
            torch.distributed.destroy_process_group()


@pytest.fixture(scope="session")
def by_ranks(made_once):
    """What each rank got, of two and of three."""
    folder = made_once("ranks_of_joint_losses", _start_ranks)
    return {n: [torch.load(folder / f"{n}_{rank}.pt", weights_only=True) for rank in range(n)] for n in (2, 3)}


def _start_ranks(folder):
    # Forks of one process that has imported all of it, and no threads yet.
    torch.multiprocessing.get_context("forkserver").set_forkserver_preload([__name__, *MODULES])
    torch.multiprocessing.start_processes(_rank, (str(folder),), nprocs=3, start_method="forkserver")


@pytest.fixture(params=[2, 3])
def found(request, by_ranks):
    return by_ranks[request.param]


@pytest.fixture
def of_two(by_ranks):
    return by_ranks[2]
