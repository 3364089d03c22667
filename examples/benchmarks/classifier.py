"""A step of a classifier of many classes: Partial FC, divided over ranks and sampled, beside the dense layer.

    python examples/benchmarks/classifier.py [--classes 100000] [--dim 512] [--batch 128] [--rate 0.1] [--ranks 1 2]

CosFace, forward, backward and a step of SGD with momentum and weight decay (fused), float32, one thread a process.
Time: median of a process's CPU time, in rounds in which the forms of one process take turns. Memory: the rise of the
peak in a process of its own, the class vectors included; on several ranks the largest, each with its part of the batch.
Its goal is 1.1 × (vectors + gradient + momentum + two blocks of scores) / ranks, with a gradient and scores of the
drawn classes alone.
"""

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from measure import Step, median_times, peak_bytes
from torch import distributed, nn

from pml_ext.distributed import PartialFC, step_by_rows
from pml_ext.runner.modeling.heads import CLS_LAYERS

SECONDS, MEGABYTES = 0.14, 700  # goals of a step with drawn classes, at the default sizes
CPU = torch.device("cpu")


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


def bound(options: argparse.Namespace, rate: float, ranks: int) -> float:
    """The goal of the memory of a rank, in bytes."""
    vectors = 4 * options.classes * options.dim
    scores = 4 * rate * options.classes * options.batch * ranks
    return 1.1 * (2 * vectors + rate * vectors + 2 * scores) / ranks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", type=int, default=100_000, help="(default: 100000)")
    parser.add_argument("--dim", type=int, default=512, help="of the embeddings (default: 512)")
    parser.add_argument("--batch", type=int, default=128, help="samples of a rank (default: 128)")
    parser.add_argument("--rate", type=float, default=0.1, help="share of the classes drawn (default: 0.1)")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2], help="(default: 1 2)")
    parser.add_argument("--budget", type=float, default=30.0, help="seconds of timing (default: 30)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    names = list(forms(options))
    bytes_of = {(form, ranks): memory(options, form, ranks) for ranks in options.ranks for form in names[ranks > 1 :]}
    torch.zeros(31 * 2**20, dtype=torch.uint8)  # makes the allocator keep freed memory, as with a network
    times = median_times({name: make(options) for name, make in forms(options).items()}, CPU, options.budget)
    print(f"{options.classes:,} classes × {options.dim}, {options.batch} samples a rank, one thread a process\n")
    print("| form | ranks | step | memory of a rank | goal of the memory | |\n|---|---|---|---|---|---|")
    missed = []
    for (form, ranks), found in bytes_of.items():
        shown, limit = f"{times[form]:.3f} s" if ranks == 1 else "", bound(options, rates(options)[form], ranks)
        is_met = form == names[0] or found <= limit
        goal = "–" if form == names[0] else f"{limit / 1e6:,.0f} MB"
        word = "" if form == names[0] else "met" if is_met else "missed"
        print(f"| {form} | {ranks} | {shown} | {found / 1e6:,.0f} MB | {goal} | {word} |")
        missed += [] if is_met else [f"memory of {form} on {ranks} ranks: {found / limit:.2f} × its goal"]
    sampled = names[-1]
    if times[sampled] > SECONDS:
        missed.append(f"a step of {sampled}: {times[sampled]:.3f} s, goal {SECONDS} s")
    if (found := bytes_of.get((sampled, 1), 0)) > MEGABYTES * 1e6:
        missed.append(f"memory of {sampled}: {found / 1e6:.0f} MB, goal {MEGABYTES} MB")
    print(f"\ndense / {sampled}: {times[names[0]] / times[sampled]:.1f} × the time")
    print("missed: " + ("; ".join(missed) or "none"))


def rates(options: argparse.Namespace) -> dict[str, float]:
    return dict(zip(forms(options), (1.0, 1.0, options.rate), strict=True))


if __name__ == "__main__":
    main()
