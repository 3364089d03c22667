"""Time and memory of a training step in chunks and of one with the full batch.

    python examples/benchmarks/large_batch.py [--sizes 256 1024] [--chunks 64 32] [--side 48] [--device cpu]

A ResNet-18 on square images, CIT over the whole batch, frozen batch norm (so that all forms have one gradient); a step
is forward and backward. One thread. The time is the median over interleaved rounds, of the process's CPU time or
by CUDA events; the memory is the rise of the peak in a process of its own, beside images and weights.
"""

import argparse
from collections.abc import Iterator
from functools import partial

import torch
from measure import Row, Step, describe, median_times, on_gpu, parser_of, peak_bytes, peak_in_a_process, show_table
from torch import nn
from torchvision.models import resnet18

from pml_ext.large_batch import step
from pml_ext.losses import CITLoss

PER_CLASS = 4
Form = tuple[int, int]  # the batch and its chunks


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[256, 1024], help="of the batch (default: 256 1024)")
    parser.add_argument("--chunks", type=int, nargs="+", default=[64, 32], help="samples at once (default: 64 32)")
    parser.add_argument("--side", type=int, default=48, help="of an image, in pixels (default: 48)")
    parser.add_argument("--budget", type=float, default=20.0, help="seconds of steps for each batch (default: 20)")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    torch.set_num_threads(1)
    device = torch.device(options.device)
    forms = [(size, chunk) for size in options.sizes for chunk in (size, *options.chunks) if chunk <= size]
    # First, before this process has anything that forked ones would inherit.
    peaks = {form: peak_in_a_process(partial(measure_peak, *form, options.side, device)) for form in forms}
    print(describe(device))
    rows = rows_of(forms, peaks, options, device)
    show_table(f"Steps in chunks{on_gpu(device)}", ("time", "× undivided", "peak memory"), rows, options.results)


def rows_of(
    forms: list[Form], peaks: dict[Form, int], options: argparse.Namespace, device: torch.device
) -> Iterator[Row]:
    network = network_on(device)
    for size in options.sizes:
        steps = {}
        for count, chunk in forms:
            if count == size:
                steps["undivided" if chunk == size else str(chunk)] = step_of(network, size, chunk, options.side)
        times = median_times(steps, device, options.budget)
        for name, seconds in times.items():
            chunk = size if name == "undivided" else int(name)
            ratio = seconds / times["undivided"]
            yield f"{size:,}, {name}", (f"{seconds:.2f} s", f"{ratio:.2f}", f"{peaks[size, chunk] / 1e6:,.0f} MB")


def network_on(device: torch.device) -> nn.Module:
    torch.manual_seed(0)
    return resnet18(num_classes=512).to(device).eval()


def step_of(network: nn.Module, size: int, chunk: int, side: int) -> Step:
    device = next(network.parameters()).device
    images = torch.randn(size, 3, side, side, device=device)
    labels = torch.arange(size, device=device) // PER_CLASS
    loss = CITLoss()
    if chunk == size:
        return lambda: loss(network(images), labels).backward()
    return lambda: step(network, (images, labels), loss, chunk=chunk)


def measure_peak(size: int, chunk: int, side: int, device: torch.device) -> int:
    network = network_on(device)
    warm_up = step_of(network, 2 * PER_CLASS, PER_CLASS, side)
    return peak_bytes(warm_up, step_of(network, size, chunk, side), device)


if __name__ == "__main__":
    main()
