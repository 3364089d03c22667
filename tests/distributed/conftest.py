"""Ranks that compute what the tests here compare with one process: one group of processes for all of them."""

from datetime import timedelta
from functools import partial
from importlib import import_module

import pytest
import torch

from tests.tiers import by_night

MODULES = (
    "tests.distributed.test_joint_batch",
    "tests.distributed.test_partial_fc",
    "tests.distributed.test_evaluation",
    "tests.distributed.test_pml_wrappers",
    "tests.distributed.test_large_batch",
)
"""Each has a function `on_rank(rank, ranks)`, whose results by name are what `found` gives."""
OF_TWO = ("tests.distributed.test_pml_wrappers", "tests.distributed.test_large_batch")
"""Those of two ranks only; by day the others have three ranks only."""
ALONE = "tests.distributed.test_evaluation"
"""Has a function `measurements(group)`, whose results on one process are what `alone` gives."""


def _rank(rank, folder, modules_of_two):
    torch.set_num_threads(1)
    for ranks in (2, 3):  # one after the other in the same processes
        if rank >= ranks:
            torch.save(import_module(ALONE).measurements(None), f"{folder}/alone.pt")
        else:
            store, timeout = f"file://{folder}/of_{ranks}", timedelta(seconds=300)
            torch.distributed.init_process_group("gloo", store, timeout, rank=rank, world_size=ranks)
            found = {}
            for module in modules_of_two if ranks == 2 else MODULES:
                found |= import_module(module).on_rank(rank, ranks)
            torch.save(found, f"{folder}/{ranks}_{rank}.pt")
            torch.distributed.barrier()
            torch.distributed.destroy_process_group()


@pytest.fixture(scope="session")
def by_processes(made_once, request):
    """The folder with what each process got."""
    modules_of_two = MODULES if request.config.getoption("--nightly") else OF_TWO
    return made_once("ranks_of_joint_losses", partial(_start_ranks, modules_of_two))


@pytest.fixture(scope="session")
def by_ranks(by_processes):
    """What each rank got, of two and of three."""
    return {n: [torch.load(by_processes / f"{n}_{rank}.pt", weights_only=True) for rank in range(n)] for n in (2, 3)}


@pytest.fixture(scope="session")
def alone(by_processes):
    """What one process got."""
    return torch.load(by_processes / "alone.pt", weights_only=True)


def _start_ranks(modules_of_two, folder):
    # Forks of one process that has imported all of it, and no threads yet.
    torch.multiprocessing.get_context("forkserver").set_forkserver_preload([__name__, *MODULES])
    given = str(folder), modules_of_two
    torch.multiprocessing.start_processes(_rank, given, nprocs=3, start_method="forkserver")


@pytest.fixture(params=[3, *by_night(2)])
def found(request, by_ranks):
    return by_ranks[request.param]


@pytest.fixture
def of_two(by_ranks):
    return by_ranks[2]
