"""CPU time of an optimizer's step over a network, fused as the runner has it and as one pass after the other.

    python examples/benchmarks/optimizer_steps.py                       # ResNet-50, whose goal is printed
    python examples/benchmarks/optimizer_steps.py --network resnet18    # any other of timm

One thread, medians of interleaved steps.
"""

import argparse
import time
from statistics import median

import timm
import torch

from pml_ext.runner.config.defaults import get_cfg
from pml_ext.runner.solver.optimizer import build_optimizer

GOALS = {("resnet50", "Adam"): 18}  # ms
ROUNDS = 15


def steps(network: str, name: str, *, fused: bool) -> torch.optim.Optimizer:
    """The runner's optimizer, after a first step that makes its state."""
    options = get_cfg().SOLVER
    options.OPT = name
    model = timm.create_model(network, num_classes=0)
    optimizer = build_optimizer(options, model)
    for group in optimizer.param_groups:
        group["fused"] = fused
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 1e-3)
    optimizer.step()
    return optimizer


def milliseconds(optimizer: torch.optim.Optimizer) -> float:
    start = time.process_time()
    optimizer.step()
    return 1e3 * (time.process_time() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default="resnet50")
    network = parser.parse_args().network
    torch.set_num_threads(1)
    print("| optimizer | fused, ms | separate passes, ms |\n|---|---|---|")
    for name in ("Adam", "AdamW", "SGD"):
        both = [steps(network, name, fused=fused) for fused in (True, False)]
        measured = [[milliseconds(optimizer) for optimizer in both] for _ in range(ROUNDS)]
        fused, separate = (median(column) for column in zip(*measured, strict=True))
        goal = GOALS.get((network, name), float("inf"))
        missed = f" misses the goal of {goal}" if fused > goal else ""
        print(f"| {name} | {fused:.0f}{missed} | {separate:.0f} |")


if __name__ == "__main__":
    main()
