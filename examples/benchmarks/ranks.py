"""A loss divided among two ranks, compared with one process and the same joint batch.

    python examples/benchmarks/ranks.py [--size 2048] [--dim 512] [--ranks 2] [--rounds 5] [--losses CITLoss TCMLoss]

Every process has one thread. A step is forward and backward; a time is the median over rounds in which both forms take
turns. Wall time counts from the moment that all ranks begin until the last has finished, so it needs a core a rank
that nobody else uses; CPU time is that of the busiest process. Memory is the rise of a process's peak, beside the
inputs.
"""

import argparse
from collections.abc import Callable

import torch
from processes import compare, on_ranks
from torch import Tensor

from pml_ext import losses
from pml_ext.distributed import ShardedLoss

CLASS_SIZE = 4
MAKE: dict[str, Callable[[int, int], torch.nn.Module]] = {
    "CITLoss": lambda classes, dim: losses.CITLoss(),
    "CITLoss, gamma 0.5": lambda classes, dim: losses.CITLoss(gamma=0.5),
    "TCMLoss": lambda classes, dim: losses.TCMLoss(margin_minus=0.1),
    "SmoothAPLoss": lambda classes, dim: losses.SmoothAPLoss(),
    "RecallAtKSurrogateLoss": lambda classes, dim: losses.RecallAtKSurrogateLoss(),
    "PairWeightingLoss": lambda classes, dim: losses.PairWeightingLoss(),
    "LoOp(MultiSimilarityLoss)": lambda classes, dim: losses.LoOp(losses.MultiSimilarityLoss()),
    "MultiSimilarityLoss of PML": lambda classes, dim: losses.MultiSimilarityLoss(),
    "ContrastiveLoss of PML": lambda classes, dim: losses.ContrastiveLoss(),
    "DiscriminativeLoss, k-means": lambda classes, dim: losses.DiscriminativeLoss(
        classes, dim, centroids=torch.nn.functional.normalize(torch.randn(classes, dim))
    ),
}
GOAL = 0.6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=2048, help="of the joint batch (default: 2048)")
    parser.add_argument("--dim", type=int, default=512, help="of the embeddings (default: 512)")
    parser.add_argument("--ranks", type=int, default=2, help="processes (default: 2)")
    parser.add_argument("--rounds", type=int, default=5, help="of each form (default: 5)")
    parser.add_argument("--losses", nargs="+", choices=MAKE, default=list(MAKE))
    options = parser.parse_args()
    on_ranks(options.ranks, _compare, options)


def _compare(rank: int, options: argparse.Namespace) -> None:
    ranks = options.ranks
    torch.zeros(31 * 2**20, dtype=torch.uint8)  # makes the allocator keep freed memory, as with a network
    x, labels = (
        torch.randn(options.size, options.dim),
        torch.arange(options.size) // CLASS_SIZE,
    )
    x = x + 2 * torch.randn(options.size // CLASS_SIZE + 1, options.dim)[labels]  # classes that can be told apart
    own, own_labels = x.chunk(ranks)[rank], labels.chunk(ranks)[rank]
    if rank == 0:
        print(f"{options.size} × {options.dim}, {ranks} processes of one thread against one; ratios, goal ≤ {GOAL}\n")
        print("| loss | one: wall, CPU, memory | shared: wall, CPU, memory | wall | CPU | memory |")
        print("|---|---|---|---|---|---|")
    for name in options.losses:
        torch.manual_seed(0)
        loss = MAKE[name](options.size // CLASS_SIZE + 1, options.dim)
        shared = ShardedLoss(loss)

        def alone(loss: torch.nn.Module = loss) -> None:
            step(loss, x, labels)

        def together(shared: torch.nn.Module = shared) -> None:
            step(shared, own, own_labels)

        worst = compare(alone, together, options.rounds)
        if rank == 0:
            _print_row(name, worst)


def step(loss: torch.nn.Module, x: Tensor, labels: Tensor) -> None:
    loss(x.clone().requires_grad_(), labels).backward()


def _print_row(name: str, worst: Tensor) -> None:
    def shown(numbers: Tensor) -> str:
        memory, wall, cpu = numbers.tolist()
        return f"{wall * 1000:,.0f} ms, {cpu * 1000:,.0f} ms, {memory / 2**20:,.0f} MB"

    memory, wall, cpu = (worst[1] / worst[0]).tolist()
    print(
        f"| {name} | {shown(worst[0])} | {shown(worst[1])} | {wall:.2f} | {cpu:.2f} | {memory:.2f} |",
        flush=True,
    )


if __name__ == "__main__":
    main()
