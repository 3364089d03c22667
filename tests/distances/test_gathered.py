"""Two gloo processes with PML's distributed wrappers against one process, with classes cut unevenly between them."""

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pytorch_metric_learning.losses import CrossBatchMemory, MultiSimilarityLoss, TripletMarginLoss
from pytorch_metric_learning.miners import TripletMarginMiner
from pytorch_metric_learning.utils.distributed import DistributedLossWrapper, DistributedMinerWrapper
from torch import Tensor

import pml_ext
from pml_ext.distances.gathered import orders_if_gathered
from pml_ext.functional.loop.partners import consecutive_pairs
from pml_ext.losses import HPHNTripletLoss, LiftedHingeLoss, LoOp
from pml_ext.miners import LoOpMiner

LABELS = [0, 0, 0, 1, 1, 2, 0, 1, 1, 2, 2, 2]  # odd counts of a class on a rank; arcs join samples of both
MAKE: dict[str, Callable[[], Any]] = {
    "LoOp triplet": lambda: LoOp(TripletMarginLoss(margin=1)),
    "LoOp triplet, all positives": lambda: LoOp(TripletMarginLoss(margin=1), positives="all"),
    "LoOp multi-similarity": lambda: LoOp(MultiSimilarityLoss()),
    "HPHN": lambda: HPHNTripletLoss(margin=1, positives="consecutive"),
    "LoOp HPHN": lambda: LoOp(HPHNTripletLoss(margin=1, positives="consecutive")),
    "lifted hinge": lambda: LiftedHingeLoss(margin=1, positives="consecutive"),
}
Outcome = tuple[Tensor, Tensor]


def data() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(12, 6, dtype=torch.float64), torch.tensor(LABELS)


def miner() -> LoOpMiner:
    return LoOpMiner(TripletMarginMiner(margin=0.3))


def _rank(rank: int, port: int, folder: str) -> None:
    torch.set_num_threads(1)
    pml_ext.register()
    torch.distributed.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    x, labels = data()
    own = slice(6 * rank, 6 * rank + 6)
    found: dict[str, Any] = {}
    for name, make in MAKE.items():
        mine = x[own].clone().requires_grad_()
        value = DistributedLossWrapper(make())(mine, labels[own])
        value.backward()
        found[name] = value.detach(), mine.grad
    mined = DistributedMinerWrapper(miner())(x[own], labels[own])
    place = torch.cat([torch.arange(12)[own], torch.arange(12)[slice(6 - 6 * rank, 12 - 6 * rank)]])
    found["mined"] = torch.stack([place[part] for part in mined])
    # A loss of the rank's own batch, without a wrapper, pairs the batch as it comes.
    found["own pairs"] = torch.stack(consecutive_pairs(labels[own], orders_if_gathered(labels[own])[0]))
    try:
        DistributedLossWrapper(CrossBatchMemory(LoOp(TripletMarginLoss()), 6, memory_size=24))(x[own], labels[own])
    except ValueError as error:
        found["memory"] = str(error)
    torch.save(found, f"{folder}/{rank}.pt")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def found(made_once: Callable[[str, Callable[[Path], None]], Path]) -> list[dict[str, Any]]:
    """What each of the two ranks got."""
    folder = made_once("ranks_of_gathered_distances", _start_ranks)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


def _start_ranks(folder: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(_rank, (port, str(folder)), nprocs=2)


@pytest.mark.parametrize("name", MAKE)
def test_two_ranks_have_the_arcs_of_one_process(found: list[dict[str, Any]], name: str) -> None:
    x, labels = data()
    value = MAKE[name]()(x.requires_grad_(), labels)
    (gradient,) = torch.autograd.grad(value, x)
    for rank in range(2):  # PML multiplies by the number of ranks, and averaging the gradients divides by it
        own_value, own_gradient = found[rank][name]
        torch.testing.assert_close(own_value / 2, value.detach())
        torch.testing.assert_close(own_gradient / 2, gradient[6 * rank : 6 * rank + 6])


def test_a_miner_finds_the_triplets_of_one_process(found: list[dict[str, Any]]) -> None:
    expected = sorted(zip(*(part.tolist() for part in miner()(*data())), strict=True))
    for rank in range(2):
        assert sorted(zip(*found[rank]["mined"].tolist(), strict=True)) == expected


def test_a_batch_that_is_not_gathered_pairs_up_as_it_comes(found: list[dict[str, Any]]) -> None:
    for rank in range(2):
        expected = torch.stack(consecutive_pairs(data()[1][6 * rank : 6 * rank + 6]))
        assert torch.equal(found[rank]["own pairs"], expected)


def test_a_memory_with_another_order_on_each_rank_is_refused(found: list[dict[str, Any]]) -> None:
    for rank in range(2):
        assert "the same ones on all ranks" in found[rank]["memory"] and "pairing='all'" in found[rank]["memory"]
