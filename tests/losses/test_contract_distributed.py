"""Two processes with PML's distributed wrappers against one process on the joint batch, for every loss."""

import socket
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from pytorch_metric_learning.losses import CrossBatchMemory, MarginLoss, ProxyAnchorLoss
from pytorch_metric_learning.miners import TripletMarginMiner
from pytorch_metric_learning.utils.distributed import (
    DistributedLossWrapper,
    DistributedMinerWrapper,
    get_indices_tuple,
)
from torch import Tensor

from pml_ext import losses
from pml_ext.losses import LoOp, TCMRegularizer
from pml_ext.miners import LoOpMiner
from tests.losses.test_contract import FACTORIES, WITHOUT_REFERENCES

MAKE: dict[str, Callable[[], Any]] = FACTORIES | {
    "LoOp with a parameter": lambda: LoOp(MarginLoss(learn_beta=True)),
    "TCMRegularizer with proxies": lambda: TCMRegularizer(ProxyAnchorLoss(3, 8)),
}
CASES = list(product(MAKE, ("all pairs", "mined"), (False, True)))
REFERENCES_REFUSED = (*WITHOUT_REFERENCES, "TCMRegularizer with proxies")
RANKS = (slice(0, 6), slice(6, 12))  # two samples of each of three classes: LoOp's arcs lie inside a rank

Outcome = tuple[Tensor, Tensor, list[Tensor]]  # the loss; its gradient by the rank's embeddings and by parameters


def data(step: int = 0) -> tuple[Tensor, Tensor]:
    torch.manual_seed(3 + step)
    return torch.randn(12, 8), torch.arange(3).repeat_interleave(2).repeat(2)


def make(name: str) -> Any:
    torch.manual_seed(1)
    return MAKE[name]()


def make_miner() -> LoOpMiner:
    return LoOpMiner(TripletMarginMiner(margin=0.1, type_of_triplets="all"))


def outcome(value: Tensor, x: Tensor, loss: torch.nn.Module) -> Outcome:
    value.backward()
    assert x.grad is not None
    return value.detach(), x.grad, [p.grad for p in loss.parameters() if p.grad is not None]


def on_one_process(name: str, pairs: str, efficient: bool, rank: int) -> Outcome:
    loss, (x, labels) = make(name), data()
    if not efficient:
        x.requires_grad_()
        mined = make_miner()(x, labels) if pairs == "mined" else None
        value, gradient, parameters = outcome(loss(x, labels, mined), x, loss)
        return value, gradient[RANKS[rank]], parameters
    # By PML's definition of efficient=True: a rank's own anchors, the other's embeddings as constants.
    own, others = RANKS[rank], RANKS[1 - rank]
    mine = x[own].clone().requires_grad_()
    both, both_labels = torch.cat([mine, x[others]]), torch.cat([labels[own], labels[others]])
    miner = make_miner() if pairs == "mined" else None
    indices = get_indices_tuple(labels[own], both_labels, mine, both, miner)
    return outcome(loss(mine, labels[own], indices, both, both_labels), mine, loss)


def on_this_rank(name: str, pairs: str, efficient: bool, rank: int) -> Outcome:
    loss, (x, labels) = make(name), data()
    for p in loss.parameters():  # as DiscriminativeLoss documents
        p.register_hook(lambda grad: grad / torch.distributed.get_world_size())
    mine, own_labels = x[RANKS[rank]].clone().requires_grad_(), labels[RANKS[rank]]
    mined = None
    if pairs == "mined":
        mined = DistributedMinerWrapper(make_miner(), efficient=efficient)(mine, own_labels)
    value = DistributedLossWrapper(loss, efficient=efficient)(mine, own_labels, mined)
    return outcome(value, mine, loss)


def memory_on_this_rank(name: str, rank: int) -> Outcome:
    memory = DistributedLossWrapper(CrossBatchMemory(make(name), embedding_size=8, memory_size=24))
    for step in range(3):
        x, labels = data(step)
        mine = x[RANKS[rank]].clone().requires_grad_()
        value = memory(mine, labels[RANKS[rank]])
    return outcome(value, mine, memory)


def _rank(rank: int, port: int, folder: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    found: dict[Any, Any] = {}
    for case in CASES:
        try:
            found[case] = on_this_rank(*case, rank=rank)
        except (TypeError, ValueError) as error:  # raised on both ranks: the group stays in step
            found[case] = str(error)
    for name in MAKE:
        if name in losses.OURS and name not in WITHOUT_REFERENCES:
            found[name] = memory_on_this_rank(name, rank)
    for _, _, parameters in (result for result in found.values() if not isinstance(result, str)):
        for gradient in parameters:  # the average, which DistributedDataParallel takes
            torch.distributed.all_reduce(gradient)
            gradient /= 2
    torch.save(found, f"{folder}/{rank}.pt")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def found(made_once: Callable[[str, Callable[[Path], None]], Path]) -> list[dict[Any, Any]]:
    """What each of the two ranks got, by case."""
    folder = made_once("ranks_of_all_losses", _start_ranks)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


def _start_ranks(folder: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(_rank, (port, str(folder)), nprocs=2)


@pytest.mark.parametrize(("name", "pairs", "efficient"), CASES)
def test_two_processes_are_one(found: list[dict[Any, Any]], name: str, pairs: str, efficient: bool) -> None:
    results = [found[rank][name, pairs, efficient] for rank in range(2)]
    if efficient and name in REFERENCES_REFUSED:
        assert all("ref_emb" in result for result in results), results
        return
    alone = [on_one_process(name, pairs, efficient, rank) for rank in range(2)]
    for (value, gradient, parameters), (own_value, own_gradient, _) in zip(results, alone, strict=True):
        # PML multiplies by the number of ranks, and averaging the gradients divides by it.
        torch.testing.assert_close(value / 2, own_value)
        torch.testing.assert_close(gradient / 2, own_gradient)
        expected = [(first + second) / 2 for first, second in zip(alone[0][2], alone[1][2], strict=True)]
        torch.testing.assert_close(parameters, expected)
    assert sum(own_gradient.abs().sum() for _, own_gradient, _ in alone) > 0
    if efficient and pairs == "all pairs" and name in ("CITLoss", "SmoothAPLoss"):  # means over anchors
        joint, _, _ = on_one_process(name, pairs, False, 0)
        torch.testing.assert_close((results[0][0] + results[1][0]) / 4, joint)


def test_the_parameters_of_a_loss_are_compared(found: list[dict[Any, Any]]) -> None:
    with_parameters = {name for name, _, _ in CASES if found[0][name, "all pairs", False][2]}
    assert with_parameters == {"DiscriminativeLoss", "LoOp with a parameter", "TCMRegularizer with proxies"}


@pytest.mark.parametrize("name", [name for name in losses.OURS if name not in WITHOUT_REFERENCES])
def test_a_memory_of_both_ranks(found: list[dict[Any, Any]], name: str) -> None:
    memory = CrossBatchMemory(make(name), embedding_size=8, memory_size=24)
    for step in range(3):
        x, labels = data(step)
        joint = memory(x.requires_grad_(), labels)
    joint.backward()
    assert x.grad is not None and x.grad.abs().sum() > 0
    for rank, own in enumerate(RANKS):
        value, gradient, _ = found[rank][name]
        torch.testing.assert_close(value / 2, joint.detach())
        torch.testing.assert_close(gradient / 2, x.grad[own])
