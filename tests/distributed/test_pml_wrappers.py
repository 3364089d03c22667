"""Two ranks with PML's distributed wrappers against one process on the joint batch, for every loss."""

from functools import partial
from itertools import product

import pytest
import torch
from pytorch_metric_learning.losses import CrossBatchMemory, MarginLoss, ProxyAnchorLoss
from pytorch_metric_learning.miners import TripletMarginMiner
from pytorch_metric_learning.utils.distributed import (
    DistributedLossWrapper,
    DistributedMinerWrapper,
    get_indices_tuple,
)
from torch.testing import assert_close

from pml_ext import losses
from pml_ext.losses import HPHNTripletLoss, LiftedHingeLoss, LoOp, TCMRegularizer
from pml_ext.miners import LoOpMiner
from tests.losses.test_contract import FACTORIES, WITHOUT_REFERENCES

# Pairs of consecutive samples, of which each rank has an even number of every class.
CONSECUTIVE = {
    "HPHN, consecutive": lambda: HPHNTripletLoss(margin=1, positives="consecutive"),
    "LoOp HPHN, consecutive": lambda: LoOp(HPHNTripletLoss(margin=1, positives="consecutive")),
    "lifted hinge, consecutive": lambda: LiftedHingeLoss(margin=1, positives="consecutive"),
}
SEVERAL = FACTORIES | {
    "LoOp with a parameter": lambda: LoOp(MarginLoss(learn_beta=True)),
    "TCMRegularizer with proxies": lambda: TCMRegularizer(ProxyAnchorLoss(3, 8)),
}
MAKE = SEVERAL | CONSECUTIVE
CASES = [*product(SEVERAL, ("all pairs", "mined"), (False, True)), *product(CONSECUTIVE, ["all pairs"], [False])]
WITH_MEMORY = [name for name in losses.OURS if name not in WITHOUT_REFERENCES]
REFERENCES_REFUSED = (*WITHOUT_REFERENCES, "TCMRegularizer with proxies")
RANKS = (slice(0, 6), slice(6, 12))


def data(step=0):
    torch.manual_seed(3 + step)
    return torch.randn(12, 8), torch.tensor([0, 0, 1, 1, 2, 2] * 2)


def make(name):
    torch.manual_seed(1)
    return MAKE[name]()


def make_miner():
    return LoOpMiner(TripletMarginMiner(margin=0.1, type_of_triplets="all"))


def outcome(value, x, loss):
    value.backward()
    return value.detach(), x.grad, [p.grad for p in loss.parameters() if p.grad is not None]


def on_one_process(name, pairs, efficient, rank):
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


def on_this_rank(name, pairs, efficient, rank):
    loss, (x, labels) = make(name), data()
    for p in loss.parameters():  # as DiscriminativeLoss documents
        p.register_hook(lambda grad: grad / torch.distributed.get_world_size())
    mine, own_labels = x[RANKS[rank]].clone().requires_grad_(), labels[RANKS[rank]]
    mined = None
    if pairs == "mined":
        mined = DistributedMinerWrapper(make_miner(), efficient=efficient)(mine, own_labels)
    value = DistributedLossWrapper(loss, efficient=efficient)(mine, own_labels, mined)
    return outcome(value, mine, loss)


def memory_on_this_rank(name, rank):
    memory = DistributedLossWrapper(CrossBatchMemory(make(name), embedding_size=8, memory_size=24))
    for step in range(3):
        x, labels = data(step)
        mine = x[RANKS[rank]].clone().requires_grad_()
        value = memory(mine, labels[RANKS[rank]])
    return outcome(value, mine, memory)


def outcome_or_error(run, *case):
    try:
        return run(*case)
    except (TypeError, ValueError) as error:  # raised on both ranks: the group stays in step
        return str(error)


def on_rank(rank, ranks):
    if ranks != 2:
        return {}
    found = {case: outcome_or_error(on_this_rank, *case, rank) for case in CASES}
    found |= {("memory", name): outcome_or_error(memory_on_this_rank, name, rank) for name in WITH_MEMORY}
    for _, _, parameters in (result for result in found.values() if not isinstance(result, str)):
        for gradient in parameters:  # the average, which DistributedDataParallel takes
            torch.distributed.all_reduce(gradient)
            gradient /= 2
    return found


@pytest.mark.parametrize(("pairs", "efficient"), [*product(("all pairs", "mined"), (False, True))])
def test_two_processes_are_one(of_two, pairs, efficient):
    for name in (name for name, *of_case in CASES if of_case == [pairs, efficient]):
        results = [found[name, pairs, efficient] for found in of_two]
        if efficient and name in REFERENCES_REFUSED:
            assert all("ref_emb" in result for result in results), results
        else:
            require_one_process(results, name, pairs, efficient)


def require_one_process(results, name, pairs, efficient):
    close = partial(assert_close, msg=lambda message: f"{name}: {message}")
    alone = [on_one_process(name, pairs, efficient, rank) for rank in range(2)]
    for (value, gradient, parameters), (own_value, custom_gradient, _) in zip(results, alone, strict=True):
        # PML multiplies by the number of ranks, and averaging the gradients divides by it.
        close(value / 2, own_value)
        close(gradient / 2, custom_gradient)
        expected = [(first + second) / 2 for first, second in zip(alone[0][2], alone[1][2], strict=True)]
        close(parameters, expected)
    assert sum(custom_gradient.abs().sum() for _, custom_gradient, _ in alone) > 0, name
    if efficient and pairs == "all pairs" and name in ("CITLoss", "SmoothAPLoss"):  # means over anchors
        joint, _, _ = on_one_process(name, pairs, False, 0)
        close((results[0][0] + results[1][0]) / 4, joint)


def test_the_parameters_of_a_loss_are_compared(of_two):
    with_parameters = {name for name, _, _ in CASES if of_two[0][name, "all pairs", False][2]}
    assert with_parameters == {"DiscriminativeLoss", "LoOp with a parameter", "TCMRegularizer with proxies"}


def test_a_memory_of_both_ranks(of_two):
    for name in WITH_MEMORY:
        close = partial(assert_close, msg=lambda message, name=name: f"{name}: {message}")
        memory = CrossBatchMemory(make(name), embedding_size=8, memory_size=24)
        for step in range(3):
            x, labels = data(step)
            joint = memory(x.requires_grad_(), labels)
        joint.backward()
        assert x.grad.abs().sum() > 0, name
        for found, own in zip(of_two, RANKS, strict=True):
            value, gradient, _ = found["memory", name]
            close(value / 2, joint.detach())
            close(gradient / 2, x.grad[own])
