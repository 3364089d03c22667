"""Function calls of a loss before its first norm: how much there is to read before the arithmetic.

    python examples/benchmarks/calls.py [--losses CITLoss TCMLoss] [--list]

Counts what runs in `loss(embeddings, labels)` up to the first norm or product: functions of this package (of
pytorch-metric-learning for its own loss), their files, and how many functions of both are on the stack then.
"""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import torch
from torch import nn

from pml_ext import losses

CLASSES, SIZE = 8, 16
MAKE: dict[str, Callable[[], nn.Module]] = {
    "ContrastiveLoss of PML": losses.ContrastiveLoss,
    "CITLoss": losses.CITLoss,
    "TCMLoss": losses.TCMLoss,
    "DiscriminativeLoss": partial(losses.DiscriminativeLoss, CLASSES, CLASSES),
    "SmoothAPLoss": losses.SmoothAPLoss,
    "RecallAtKSurrogateLoss": losses.RecallAtKSurrogateLoss,
    "PairWeightingLoss": losses.PairWeightingLoss,
    "HPHNTripletLoss": losses.HPHNTripletLoss,
    "LiftedHingeLoss": losses.LiftedHingeLoss,
    "CentroidTripletLoss": losses.CentroidTripletLoss,
    "LoOp(ContrastiveLoss)": partial(losses.LoOp, losses.ContrastiveLoss()),
    "TCMRegularizer(ContrastiveLoss)": partial(losses.TCMRegularizer, losses.ContrastiveLoss()),
}
ARITHMETIC = ("linalg_vector_norm", "norm", "matmul", "mm", "addmm", "cdist")
PML = "pytorch_metric_learning"


class Stop(Exception):
    """The first norm or product."""


def functions_before_arithmetic(loss: nn.Module) -> tuple[list[tuple[str, str]], int]:
    """Returns (file, function) of each call, and how many of them are on the stack at the first norm or product."""
    x, labels = torch.randn(4 * CLASSES, CLASSES, requires_grad=True), torch.arange(CLASSES).repeat_interleave(4)
    loss(x, labels)  # creates what is created once
    calls: list[tuple[str, str]] = []
    depth = 0

    def watch(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal depth
        module = str(frame.f_globals.get("__name__"))
        if event == "c_call" and argument.__name__ in ARITHMETIC:
            raise Stop
        if event not in ("call", "return") or module.partition(".")[0] not in ("pml_ext", PML):
            return
        depth += 1 if event == "call" else -1
        if event == "call" and (module.startswith("pml_ext") or type(loss).__module__.startswith(PML)):
            calls.append((module, frame.f_code.co_qualname))

    sys.setprofile(watch)
    try:
        loss(x, labels)
    except Stop:
        pass
    finally:
        sys.setprofile(None)
    return calls, depth


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--losses", nargs="+", choices=MAKE, default=list(MAKE))
    parser.add_argument("--list", action="store_true", help="also print the calls")
    options = parser.parse_args()
    print("| loss | calls | files | depth |\n|---|---|---|---|")
    for name in options.losses:
        calls, depth = functions_before_arithmetic(MAKE[name]())
        print(f"| {name} | {len(calls)} | {len({file for file, _ in calls})} | {depth} |")
        if options.list:
            print(*(f"    {file}: {function}" for file, function in calls), sep="\n")


if __name__ == "__main__":
    main()
