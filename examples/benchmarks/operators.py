"""Operators that a step of a loss dispatches, forward and backward: on a GPU each is a launch that the host waits for.

    python examples/benchmarks/operators.py [--size 256] [--dim 512] [--losses CITLoss TCMLoss] [--list]

Counts every operator that reaches a device, views included, on a batch with four samples per class.
"""

import argparse
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from pml_ext import losses

CLASS_SIZE = 4
MAKE: dict[str, Callable[[int, int], nn.Module]] = {
    "ContrastiveLoss of PML": lambda classes, dim: losses.ContrastiveLoss(),
    "CITLoss": lambda classes, dim: losses.CITLoss(),
    "CITLoss, gamma 0.5": lambda classes, dim: losses.CITLoss(gamma=0.5),
    "TCMLoss": lambda classes, dim: losses.TCMLoss(),
    "DiscriminativeLoss": partial(losses.DiscriminativeLoss),
    "LoOp(ContrastiveLoss)": lambda classes, dim: losses.LoOp(losses.ContrastiveLoss()),
    "SmoothAPLoss": lambda classes, dim: losses.SmoothAPLoss(),
    "RecallAtKSurrogateLoss": lambda classes, dim: losses.RecallAtKSurrogateLoss(),
    "PairWeightingLoss": lambda classes, dim: losses.PairWeightingLoss(),
    "HPHNTripletLoss": lambda classes, dim: losses.HPHNTripletLoss(),
    "LiftedHingeLoss": lambda classes, dim: losses.LiftedHingeLoss(),
    "CentroidTripletLoss": lambda classes, dim: losses.CentroidTripletLoss(),
    "TCMRegularizer(ContrastiveLoss)": lambda classes, dim: losses.TCMRegularizer(losses.ContrastiveLoss()),
}


class CountOperators(TorchDispatchMode):
    """Counts operators by name."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[str(function.overloadpacket)] += 1
        return function(*args, **(kwargs or {}))


def operators_of_a_step(loss: nn.Module, size: int, dim: int) -> Counter[str]:
    labels = torch.arange(size) // CLASS_SIZE
    x = torch.randn(size, dim)
    x = (x + torch.randn(size // CLASS_SIZE + 1, dim)[labels]).requires_grad_()
    loss(x, labels).backward()  # creates what is created once
    x.grad = None
    with CountOperators() as mode:
        loss(x, labels).backward()
    return mode.counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=256, help="of the batch (default: 256)")
    parser.add_argument("--dim", type=int, default=512, help="of the embeddings (default: 512)")
    parser.add_argument("--losses", nargs="+", choices=MAKE, default=list(MAKE))
    parser.add_argument("--list", action="store_true", help="also print the operators")
    options = parser.parse_args()
    print("| loss | operators |\n|---|---|")
    for name in options.losses:
        torch.manual_seed(0)
        counts = operators_of_a_step(MAKE[name](options.size // CLASS_SIZE + 1, options.dim), options.size, options.dim)
        print(f"| {name} | {counts.total()} |")
        if options.list:
            print("   ", ", ".join(f"{operator} {count}" for operator, count in counts.most_common()))


if __name__ == "__main__":
    main()
