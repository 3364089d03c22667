"""Runs losses, miners and metrics on the pretend device, in a process of its own, and prints what it saw as JSON.

torch starts the threads of a device's backward pass once, at the first backward pass of a process: so the device must
be there before any other test has run one.
"""

import json
import os
import sys
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor, nn

from pml_ext import losses, miners
from pml_ext._ops import numerics
from pml_ext._pml import MeanReducer
from pml_ext.runner.config.load import load_config
from pml_ext.runner.data.datasets import load_train_set
from tests.pretend_device import ROOT, PretendTensor, pretend_device, usage, values, waits
from tests.runner.modeling.networks import module_of

DIGITS = load_config(ROOT / "fastreid_configs" / "Digits" / "sap_tcm.yml")
CLASSES, PER_CLASS, SIZE = 8, 4, 16
SMALL_BLOCK = 2**12


class Mined(nn.Module):
    """A loss with a miner."""

    def __init__(self, loss, miner):
        super().__init__()
        self.loss, self.miner = loss, miner

    def forward(self, embeddings, labels):
        value: Tensor = self.loss(embeddings, labels, self.miner(embeddings, labels))
        return value


class Case(NamedTuple):
    """A loss, and how often the host may wait for the device: with labels on the device, and on the host.

    large: a number of classes that takes several blocks of SMALL_BLOCK entries.
    """

    make: Callable[[], nn.Module]
    waits: tuple[int, int] = (1, 0)
    large: int | None = None


CASES = {
    "CITLoss": Case(losses.CITLoss, large=34),
    "CITLoss(gamma=0.5)": Case(lambda: losses.CITLoss(gamma=0.5)),
    "TCMLoss": Case(losses.TCMLoss, large=34),
    "TCMLoss(divide_by='all')": Case(lambda: losses.TCMLoss(divide_by="all"), large=34),
    "LoOp(TripletMarginLoss, mean), arcs": Case(
        lambda: losses.LoOp(losses.TripletMarginLoss(reducer=MeanReducer()), positives="arc")
    ),
    "LoOp(TripletMarginLoss), arcs": Case(
        lambda: losses.LoOp(losses.TripletMarginLoss(), positives="arc"), (3, 2)
    ),  # two in PML's reducer
    "LoOp(MultiSimilarityLoss), arcs": Case(
        lambda: losses.LoOp(losses.MultiSimilarityLoss(), positives="arc"), (2, 1), large=66
    ),  # one in PML's loss
    "LoOp(MultiSimilarityLoss)": Case(lambda: losses.LoOp(losses.MultiSimilarityLoss()), (4, 3), large=66),
    "LoOp(pairing='all')": Case(
        lambda: losses.LoOp(losses.TripletMarginLoss(), pairing="all"), (4, 3)
    ),  # three of PML's, as with all positives
    "DiscriminativeLoss": Case(lambda: losses.DiscriminativeLoss(CLASSES, SIZE, centroid_size=CLASSES)),
    "DiscriminativeLoss(kmeans)": Case(lambda: losses.DiscriminativeLoss(CLASSES, SIZE, centroids="kmeans")),
    "PairWeightingLoss": Case(losses.PairWeightingLoss),
    "PairWeightingLoss(mining=0.1)": Case(lambda: losses.PairWeightingLoss(mining=0.1)),
    "RecallAtKSurrogateLoss": Case(losses.RecallAtKSurrogateLoss, (3, 2)),
    "HPHNTripletLoss": Case(losses.HPHNTripletLoss, (2, 1)),
    "LiftedHingeLoss": Case(losses.LiftedHingeLoss, (2, 1)),
    "CentroidTripletLoss": Case(losses.CentroidTripletLoss, (2, 1)),
    "SmoothAPLoss": Case(losses.SmoothAPLoss),
    "TCMRegularizer(TripletMarginLoss)": Case(
        lambda: losses.TCMRegularizer(losses.TripletMarginLoss()), (4, 3)
    ),  # three in PML's loss
    "CrossBatchMemory(CITLoss)": Case(
        lambda: losses.CrossBatchMemory(losses.CITLoss(), SIZE, memory_size=64), (17, 18)
    ),  # most in PML's memory
    "TripletMarginLoss, ConcordanceMiner": Case(
        lambda: Mined(losses.TripletMarginLoss(), miners.ConcordanceMiner()), (4, 5)
    ),
    "TripletMarginLoss, HPHNMiner": Case(lambda: Mined(losses.TripletMarginLoss(), miners.HPHNMiner()), (3, 4)),
    "TripletMarginLoss, DisjointTripletMiner": Case(
        lambda: Mined(losses.TripletMarginLoss(margin=1.0), miners.DisjointTripletMiner(seed=0)), (3, 4)
    ),
    "MultiSimilarityLoss, LoOpMiner": Case(
        lambda: Mined(losses.MultiSimilarityLoss(), miners.LoOpMiner(miners.MultiSimilarityMiner())), (10, 11)
    ),  # it mines twice with PML's miner
}


def batch(classes=CLASSES, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(classes).repeat_interleave(PER_CLASS)
    embeddings = torch.randn(classes, SIZE, generator=generator)[labels]
    return (embeddings + torch.randn(len(labels), SIZE, generator=generator)).to(dtype), labels


def on_both(make, embeddings, labels, *, on_host):
    """Differences of value and gradient between CPU and device, and the synchronisations."""
    torch.manual_seed(0)
    loss = make()
    torch.manual_seed(0)
    other = make()
    x = embeddings.clone().requires_grad_()
    value = loss(x, labels)
    value.backward()
    with pretend_device() as device:
        if "CrossBatchMemory" not in type(other).__name__:
            other = other.to(device)
        y = embeddings.to(device).requires_grad_()
        ids = labels if on_host else labels.to(device)
        with waits() as found:
            there = other(y, ids)
            there.backward()
    assert isinstance(there, PretendTensor)
    assert y.grad is not None and x.grad is not None
    value_error = (values(there.detach()) - value.detach()).abs()
    gradient_error = (values(y.grad) - x.grad).abs().max()
    places = [f"{wait.what} at {wait.file}:{wait.line}" for wait in found.elements()]
    errors = {"value": float(value_error), "gradient": float(gradient_error)}
    return {**errors, "size": float(x.grad.abs().max()), "waits": places}


def usage_of_a_step(make, classes):
    """Operators, and how many (B, B) tensors of float32 the memory rose by."""
    embeddings, labels = batch(classes)
    with pretend_device() as device:
        x = embeddings.to(device).requires_grad_()
        with usage() as used:
            make()(x, labels).backward()
    return used.operators.total(), used.peak / (4 * len(labels) ** 2)


class TrainingStep(nn.Module):
    """One step of the runner without a trainer."""

    def __init__(self):
        super().__init__()
        self.module = module_of(DIGITS, load_train_set(DIGITS.DATASETS, grey=True)).train()
        trainer = SimpleNamespace(world_size=1, global_step=1, current_epoch=0, log_every_n_steps=50, loggers=[])
        trainer.is_last_batch = False
        self.module._trainer = trainer  # type: ignore[assignment]
        self.module.log = self.module.log_dict = lambda *_, **__: None  # type: ignore[method-assign,assignment]

    def forward(self, images, labels):
        batch = {"images": images, "targets": labels, "camids": labels, "rows": labels, "img_paths": [""] * 32}
        value: Tensor = self.module.training_step(batch, 0)
        return value


def of_a_training_step():
    images, labels = 255 * torch.rand(32, 1, 8, 8), torch.arange(32) % 5
    return on_both(TrainingStep, images, labels, on_host=False)


def of_the_device_itself():
    """The synchronisations of operations that wait and of some that do not, and the error of mixed devices."""
    with pretend_device() as device:
        x = torch.arange(4.0).to(device, non_blocking=True)
        with waits() as found:
            x.sum().item()
            x.nonzero()
            x[x > 1]
            x.cpu()
            x.tolist()
            x.unique()
            bool((x > 9).any())
            torch.tensor([1.0], device=device)
            torch.zeros(3).to(device)
            torch.zeros(3).to(device, non_blocking=True)
            torch.zeros(3, device=device) + 1
            x * torch.tensor(2.0)
        try:
            x + torch.ones(4)
        except RuntimeError as error:
            return {"waits": sorted(wait.what for wait in found.elements()), "error": str(error)}
    raise AssertionError("mixed devices are no error")


def main():
    warnings.simplefilter("ignore")
    with pretend_device():
        pass
    report: dict[str, Any] = {"losses": {}, "usage": {}, "detected": of_the_device_itself()}
    for name, case in CASES.items():
        of_case: dict[str, Any] = {}
        ways = {"labels on the device": (batch(), False), "labels on the host": (batch(), True)}
        ways["float16"] = batch(dtype=torch.float16), False
        for way, (embeddings_and_labels, on_host) in ways.items():
            of_case[way] = on_both(case.make, *embeddings_and_labels, on_host=on_host)
        if case.large:
            with patch.object(numerics, "ENTRIES_ON_A_DEVICE", SMALL_BLOCK):
                of_case["large"] = on_both(case.make, *batch(case.large, torch.float64), on_host=True)
        report["losses"][name] = of_case
    for name in ("CITLoss", "CITLoss(gamma=0.5)", "TCMLoss", "PairWeightingLoss"):
        report["usage"][name] = [usage_of_a_step(CASES[name].make, classes) for classes in (16, 256)]
    report["training step"] = of_a_training_step()
    json.dump(report, sys.stdout)


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # torch's thread for the device still runs, and ending it may abort the process
