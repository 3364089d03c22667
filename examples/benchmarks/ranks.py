"""A loss divided among two ranks, compared with one process and the same joint batch.

    python examples/benchmarks/ranks.py [--size 2048] [--dim 512] [--ranks 2] [--rounds 5] [--losses CITLoss TCMLoss]

Every process has one thread. A step is forward and backward; a time is the median over rounds in which both forms take
turns. Wall time counts from the moment that all ranks begin until the last has finished, so it needs a core a rank
that nobody else uses; CPU time is that of the busiest process. Memory is the rise of a process's peak, beside the
inputs.
"""

import argparse
import ctypes
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator

import torch
from measure import CPU, Row, Step, keep_freed_memory, parser_of, peak_bytes, show_table
from torch import Tensor, distributed, nn
from torch.nn.functional import normalize

from pml_ext import losses
from pml_ext.distributed import ShardedLoss

CLASS_SIZE = 4
COLUMNS = ("one: wall, CPU, memory", "shared: wall, CPU, memory", "wall", "CPU", "memory")


def k_means(classes: int, dim: int) -> nn.Module:
    centroids = normalize(torch.randn(classes, dim))
    return losses.DiscriminativeLoss(classes, dim, centroids=centroids)


MAKE: dict[str, Callable[[int, int], nn.Module]] = {
    "CITLoss": lambda classes, dim: losses.CITLoss(),
    "TCMLoss": lambda classes, dim: losses.TCMLoss(margin_minus=0.1),
    "SmoothAPLoss": lambda classes, dim: losses.SmoothAPLoss(),
    "RecallAtKSurrogateLoss": lambda classes, dim: losses.RecallAtKSurrogateLoss(),
    "PairWeightingLoss": lambda classes, dim: losses.PairWeightingLoss(),
    "LoOp(MultiSimilarityLoss)": lambda classes, dim: losses.LoOp(losses.MultiSimilarityLoss()),
    "MultiSimilarityLoss of PML": lambda classes, dim: losses.MultiSimilarityLoss(),
    "ContrastiveLoss of PML": lambda classes, dim: losses.ContrastiveLoss(),
    "DiscriminativeLoss, k-means": k_means,
}


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--size", type=int, default=2048, help="of the joint batch (default: 2048)")
    parser.add_argument("--dim", type=int, default=512, help="of the embeddings (default: 512)")
    parser.add_argument("--ranks", type=int, default=2, help="processes (default: 2)")
    parser.add_argument("--rounds", type=int, default=5, help="of each form (default: 5)")
    parser.add_argument("--losses", nargs="+", choices=MAKE, default=list(MAKE))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(measure_rank, (folder, options), nprocs=options.ranks)


def measure_rank(rank: int, folder: str, options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", f"file://{folder}/group", rank=rank, world_size=options.ranks)
    keep_freed_memory()
    rows = rows_of(rank, options)
    if rank == 0:
        print(f"{options.size} × {options.dim}, {options.ranks} processes of one thread against one")
        show_table("Losses divided over ranks", COLUMNS, rows, options.results)
    else:
        list(rows)
    distributed.barrier()
    distributed.destroy_process_group()


def rows_of(rank: int, options: argparse.Namespace) -> Iterator[Row]:
    labels = torch.arange(options.size) // CLASS_SIZE
    classes = options.size // CLASS_SIZE + 1
    x = torch.randn(options.size, options.dim)
    x = x + 2 * torch.randn(classes, options.dim)[labels]  # classes that can be told apart
    own, own_labels = x.chunk(options.ranks)[rank], labels.chunk(options.ranks)[rank]
    for name in options.losses:
        torch.manual_seed(0)
        loss = MAKE[name](classes, options.dim)
        alone, together = step_of(loss, x, labels), step_of(ShardedLoss(loss), own, own_labels)
        worst = compare(alone, together, options.rounds)
        memory, wall, cpu = (worst[1] / worst[0]).tolist()
        yield name, (shown(worst[0]), shown(worst[1]), f"{wall:.2f}", f"{cpu:.2f}", f"{memory:.2f}")


def step_of(loss: nn.Module, x: Tensor, labels: Tensor) -> Step:
    return lambda: loss(x.clone().requires_grad_(), labels).backward()


def shown(numbers: Tensor) -> str:
    memory, wall, cpu = numbers.tolist()
    return f"{wall * 1000:,.0f} ms, {cpu * 1000:,.0f} ms, {memory / 2**20:,.0f} MB"


def compare(alone: Step, together: Step, rounds: int) -> Tensor:
    """(2, 3) peak bytes, seconds on the clock and CPU seconds: of rank 0 alone, and the worst of all ranks together.

    Times are medians over rounds in which both take turns. Every rank calls it.
    """
    forms = [alone, together]
    if distributed.get_rank() > 0:
        forms[0] = lambda: None
    found = []
    for form in forms:
        form()  # loads libraries and compiled loops
        ctypes.CDLL("libc.so.6").malloc_trim(0)  # what the allocator keeps of other steps goes first
        found.append([float(peak_bytes(lambda: None, form, CPU))])
        distributed.barrier()
    walls: list[list[float]] = [[], []]
    cpus: list[list[float]] = [[], []]
    for _ in range(rounds):
        for number, form in enumerate(forms):
            distributed.barrier()
            begin, cpu = time.perf_counter(), time.process_time()
            form()
            walls[number].append(time.perf_counter() - begin)
            cpus[number].append(time.process_time() - cpu)
            distributed.barrier()
    for numbers, wall, cpu_times in zip(found, walls, cpus, strict=True):
        numbers += [statistics.median(wall), statistics.median(cpu_times)]
    worst = torch.tensor(found, dtype=torch.float64)
    distributed.all_reduce(worst, distributed.ReduceOp.MAX)
    return worst


if __name__ == "__main__":
    main()
