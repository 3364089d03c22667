"""Operators that a step of a loss dispatches, forward and backward, on batches with four samples per class.

    python examples/benchmarks/operators.py [--device-blocks] [--sizes 256 1024 4096] [--losses CITLoss] [--list]

Counts every operator that reaches a device, views included. --device-blocks counts those of a GPU, each a launch that
the host waits for, and the rise of its memory: the step runs on the tests' pretend device, whose values are on the CPU.
"""

import argparse
import os
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from measure import Row, parser_of, show_table
from pytorch_metric_learning import losses as pml
from pytorch_metric_learning.distances import CosineSimilarity
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from pml_ext import losses

sys.path.append(str(Path(__file__).parents[2]))
from tests.pretend_device import pretend_device, usage

CLASS_SIZE = 4
MAKE: dict[str, Callable[[int, int], nn.Module]] = {
    "CITLoss": lambda classes, dim: losses.CITLoss(),
    "CITLoss, gamma 0.5": lambda classes, dim: losses.CITLoss(gamma=0.5),
    "PML TripletMarginLoss(all)": lambda classes, dim: pml.TripletMarginLoss(triplets_per_anchor="all"),
    "TCMLoss": lambda classes, dim: losses.TCMLoss(),
    "PML ContrastiveLoss on cosines": lambda classes, dim: pml.ContrastiveLoss(0.9, 0.5, distance=CosineSimilarity()),
    "SmoothAPLoss": lambda classes, dim: losses.SmoothAPLoss(),
    "PML SmoothAPLoss": lambda classes, dim: pml.SmoothAPLoss(),
    "PairWeightingLoss": lambda classes, dim: losses.PairWeightingLoss(),
    "PML MultiSimilarityLoss": lambda classes, dim: pml.MultiSimilarityLoss(),
    "LoOp(ContrastiveLoss)": lambda classes, dim: losses.LoOp(losses.ContrastiveLoss()),
    "TCMRegularizer(ContrastiveLoss)": lambda classes, dim: losses.TCMRegularizer(losses.ContrastiveLoss()),
    "PML ContrastiveLoss": lambda classes, dim: pml.ContrastiveLoss(),
    "DiscriminativeLoss": partial(losses.DiscriminativeLoss),
    "RecallAtKSurrogateLoss": lambda classes, dim: losses.RecallAtKSurrogateLoss(),
    "HPHNTripletLoss": lambda classes, dim: losses.HPHNTripletLoss(),
    "LiftedHingeLoss": lambda classes, dim: losses.LiftedHingeLoss(),
    "CentroidTripletLoss": lambda classes, dim: losses.CentroidTripletLoss(),
}
UP_TO = {"PML TripletMarginLoss(all)": 1024, "PML SmoothAPLoss": 256}
"""Sizes above which a loss takes several GB."""


class CountOperators(TorchDispatchMode):
    """Counts operators by name."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operators[str(function.overloadpacket)] += 1
        return function(*args, **(kwargs or {}))


def usage_of_a_step(loss: nn.Module, size: int, dim: int, device: torch.device) -> Any:
    """Returns what `CountOperators` or `usage` counted."""
    labels = torch.arange(size) // CLASS_SIZE
    x = torch.randn(size, dim) + torch.randn(size // CLASS_SIZE + 1, dim)[labels]
    x, loss = x.to(device).requires_grad_(), loss.to(device)
    loss(x[: 4 * CLASS_SIZE], labels[: 4 * CLASS_SIZE]).backward()  # creates what is created once
    x.grad = None
    with CountOperators() if device.type == "cpu" else usage() as found:
        loss(x, labels).backward()
    return found


def rows_of(options: argparse.Namespace, device: torch.device) -> Iterator[Row]:
    """Operators at each size, and the memory of the largest."""
    for name in options.losses:
        cells, peak = [], "–"
        for size in options.sizes:
            if size > UP_TO.get(name, size):
                cells.append("–")
                continue
            torch.manual_seed(0)
            used = usage_of_a_step(MAKE[name](size // CLASS_SIZE + 1, options.dim), size, options.dim, device)
            cells.append(f"{used.operators.total()}")
            if options.device_blocks and size == max(options.sizes):
                peak = f"{used.peak / 1e6:,.1f} MB"
            if options.list:
                print("   ", ", ".join(f"{operator} {count}" for operator, count in used.operators.most_common()))
        yield name, (*cells, peak) if options.device_blocks else cells


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--device-blocks", action="store_true", help="count a GPU's operators, and its memory")
    parser.add_argument("--sizes", type=int, nargs="+", default=[256, 1024, 4096], help="of the batch")
    parser.add_argument("--dim", type=int, default=512, help="of the embeddings (default: 512)")
    parser.add_argument("--losses", nargs="+", choices=MAKE, default=list(MAKE))
    parser.add_argument("--list", action="store_true", help="also print the operators")
    options = parser.parse_args()
    columns = [f"{size:,}" for size in options.sizes]
    section = "Operators of a step"
    with pretend_device() if options.device_blocks else nullcontext(torch.device("cpu")) as device:
        if options.device_blocks:
            section, columns = f"{section} on a device", [*columns, f"peak memory at {max(options.sizes):,}"]
        show_table(section, columns, rows_of(options, device), options.results)
    sys.stdout.flush()
    os._exit(0)  # torch's thread for the device still runs, and ending it may abort the process


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
