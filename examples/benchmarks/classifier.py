"""A step of a classifier of many classes: Partial FC, divided over ranks and sampled, beside the dense layer.

    python examples/benchmarks/classifier.py [--classes 100000] [--dim 512] [--batch 128] [--rate 0.1] [--ranks 1 2]

CosFace, forward, backward and a step of SGD with momentum and weight decay (fused), float32, one thread a process.
Time: median of a process's CPU time, in rounds in which the forms of one process take turns. Memory: the rise of the
peak in a process of its own, the class vectors included; on several ranks the largest, each with its part of the batch.
"""

import argparse
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from measure import CPU, Row, Step, keep_freed_memory, median_times, parser_of, peak_bytes, show_table
from torch import distributed, nn

from pml_ext.losses import PartialFC, step_by_rows
from pml_ext.runner.modeling.heads import CLS_LAYERS


def dense(options: argparse.Namespace) -> Step:
    layer = CLS_LAYERS["CosSoftmax"](scale=64.0, margin=0.4)
    layer.weight = nn.Parameter(0.01 * torch.randn(options.classes, options.dim))

    def loss(x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        logits = layer(layer.similarities(x, layer.weight), labels)
        return nn.functional.cross_entropy(logits, labels)

    return training(options, layer, loss)


def partial_fc(rate: float) -> Callable[[argparse.Namespace], Step]:
    def make(options: argparse.Namespace) -> Step:
        loss = PartialFC(options.dim, options.classes, margin="cosface", sample_rate=rate)
        return training(options, loss, loss)

    return make


def training(options: argparse.Namespace, owner: nn.Module, loss: Callable[..., torch.Tensor]) -> Step:
    optimizer = step_by_rows(torch.optim.SGD(owner.parameters(), 0.1, momentum=0.9, weight_decay=5e-4, fused=True))
    x = torch.randn(options.batch, options.dim, requires_grad=True)
    labels = torch.randint(0, options.classes, (options.batch,))

    def step() -> None:
        loss(x, labels).backward()
        optimizer.step()
        optimizer.zero_grad()
        x.grad = None

    return step


def measured(rank: int, ranks: int, folder: str, options: argparse.Namespace, form: str) -> None:
    """Write the peak of building a form and of three steps."""
    torch.set_num_threads(1)
    if ranks > 1:
        distributed.init_process_group("gloo", f"file://{folder}/group", rank=rank, world_size=ranks)
    make, small = forms(options)[form], argparse.Namespace(**vars(options) | {"classes": 64 * ranks})

    def steps() -> None:
        step = make(options)
        for _ in range(3):
            step()

    Path(folder, str(rank)).write_text(str(peak_bytes(make(small), steps, CPU)))
    if ranks > 1:
        distributed.barrier()
        distributed.destroy_process_group()


def memory(options: argparse.Namespace, form: str, ranks: int) -> int:
    """Bytes of the rank that needs most."""
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(measured, (ranks, folder, options, form), nprocs=ranks)
        return max(int(Path(folder, str(rank)).read_text()) for rank in range(ranks))


def forms(options: argparse.Namespace) -> dict[str, Callable[[argparse.Namespace], Step]]:
    return {"dense": dense, "PartialFC": partial_fc(1.0), f"PartialFC, rate {options.rate:g}": partial_fc(options.rate)}


def rows_of(options: argparse.Namespace) -> Iterator[Row]:
    """The memory of each form; the time on one rank."""
    names = list(forms(options))
    peaks = {}
    for ranks in options.ranks:
        for name in names if ranks == 1 else names[1:]:
            peaks[name, ranks] = memory(options, name, ranks)
    keep_freed_memory()
    times = median_times({name: make(options) for name, make in forms(options).items()}, CPU, options.budget)
    for (name, ranks), peak in peaks.items():
        shown = f"{times[name]:.3f} s" if ranks == 1 else "–"
        yield f"{name}, {ranks}", (shown, f"{peak / 1e6:,.0f} MB")


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--classes", type=int, default=100_000, help="(default: 100000)")
    parser.add_argument("--dim", type=int, default=512, help="of the embeddings (default: 512)")
    parser.add_argument("--batch", type=int, default=128, help="samples of a rank (default: 128)")
    parser.add_argument("--rate", type=float, default=0.1, help="share of the classes drawn (default: 0.1)")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2], help="(default: 1 2)")
    parser.add_argument("--budget", type=float, default=30.0, help="seconds of timing (default: 30)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{options.classes:,} classes × {options.dim}, {options.batch} samples a rank, one thread a process")
    show_table("Classifiers of many classes", ("step", "memory of a rank"), rows_of(options), options.results)


if __name__ == "__main__":
    main()
