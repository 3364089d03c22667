"""A batch in chunks on two ranks, whose gradients are exchanged once."""

import torch
from torch.nn.parallel import DistributedDataParallel

from pml_ext.large_batch import step
from pml_ext.losses import PairWeightingLoss
from tests.test_large_batch import assert_equal_in_norm, batch, gradients, network


def _mean(bucket):
    total = bucket.buffer() / 2
    return torch.distributed.all_reduce(total, async_op=True).get_future().then(lambda done: done.value()[0])


def on_rank(rank, ranks):
    if ranks != 2:
        return {}
    model = DistributedDataParallel(network(norm=True))
    model.module[1].eval()
    exchanged = []
    model.register_comm_hook(None, lambda _, bucket: exchanged.append(1) or _mean(bucket))
    inputs, labels = (part.chunk(2)[rank] for part in batch())
    for chunk in (5, 12 - 5 * rank, 12):  # of different numbers on the two ranks, too
        model.zero_grad()
        step(model, (inputs, labels), PairWeightingLoss(), chunk=chunk)
    return {"large batch": gradients(model.module), "exchanged": len(exchanged)}


def test_ranks_exchange_gradients_once(of_two):
    model = network(norm=True).eval()
    for part, labels in zip(*(x.chunk(2) for x in batch()), strict=True):
        (PairWeightingLoss()(model(part), labels) / 2).backward()
    for found in of_two:
        assert found["exchanged"] == 3, "one bucket of gradients a step"
        assert_equal_in_norm(found["large batch"], gradients(model))
