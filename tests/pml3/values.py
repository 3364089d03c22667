"""What every loss and miner gives with the PML that is installed; pickled to stdout."""

import pickle
import sys
import warnings
from typing import Any

import torch
from pytorch_metric_learning.regularizers import LpRegularizer

from pml_ext import losses, miners
from tests.losses.test_contract import FACTORIES
from tests.miners.test_contract import FACTORIES as MINERS

LABELS, OTHER_LABELS = torch.arange(3).repeat_interleave(4), torch.arange(7) % 3
A, P, N = torch.tensor([0, 0, 5]), torch.tensor([1, 2, 4]), torch.tensor([4, 8, 11])
MAKE = {**FACTORIES, "mining": lambda **pml: losses.PairWeightingLoss(mining=0.3, **pml)}
MINE = {**MINERS, "LoOpMiner": lambda: miners.LoOpMiner(miners.ConcordanceMiner(collect_stats=True))}


def of_losses(make, x, other):
    """A call for each way in which a trainer or a wrapper of PML's calls a loss."""
    both = {"labels": LABELS, "ref_emb": other, "ref_labels": OTHER_LABELS}
    penalty = {"embedding_regularizer": LpRegularizer(), "embedding_reg_weight": 0.5}
    calls: dict[str, Any] = {
        "labels": lambda: make()(x, LABELS),
        "triplets": lambda: make()(x, LABELS, (A, P, N)),
        "pairs": lambda: make()(x, LABELS, (A, P, A, N)),
        "no pairs": lambda: make()(x, LABELS, (A[:0], P[:0], A[:0], N[:0])),
        "ref_emb": lambda: make()(x, **both),
        "ref_emb and pairs": lambda: make()(x, indices_tuple=(A, P, A, N % 7), **both),
        "one class": lambda: make()(x, LABELS * 0),
        "empty": lambda: make()(x[:0], LABELS[:0]),
        "itself": lambda: make()(x, LABELS, ref_emb=x, ref_labels=LABELS),
        "regularizer": lambda: make(**penalty)(x, LABELS),
    }
    results: dict[str, Any] = {}
    for title, call in calls.items():
        torch.manual_seed(1)
        try:
            value = call()
            results[title] = value.detach().numpy(), torch.autograd.grad(value, x)[0].numpy()
        except (TypeError, ValueError) as error:
            results[title] = type(error).__name__
    return results


def found():
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    x, other = torch.randn(12, 8, requires_grad=True), torch.randn(7, 8)
    results = {name: of_losses(make, x, other) for name, make in MAKE.items()}
    for name, make in MINE.items():
        miner = make()
        mined = *miner(x, LABELS), *miner(x, LABELS, other, OTHER_LABELS)
        results[name] = {"mined": (*(part.numpy() for part in mined), miner.num_triplets)}
    return results


if __name__ == "__main__":
    sys.stdout.buffer.write(pickle.dumps(found()))
