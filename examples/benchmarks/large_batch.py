"""Time and memory of a training step in chunks and of one with the full batch.

    python examples/benchmarks/large_batch.py [--sizes 256 1024] [--chunks 32 64] [--side 48] [--device cpu]

A ResNet-18 on square images, CIT over the whole batch, frozen batch norm (so that all forms have one gradient); a step
is forward and backward. One thread. The time is the median over interleaved rounds, of the process's CPU time or
by CUDA events; the memory is the rise of the peak in a process of its own, beside images and weights.
"""

import argparse
from functools import partial

import torch
from measure import Step, describe, median_times, peak_bytes, peak_in_a_process
from torch import nn

from pml_ext.large_batch import step
from pml_ext.losses import CITLoss

PER_CLASS, GOAL = 4, 1.4


def main() -> None:
    options = parse_arguments()
    torch.set_num_threads(1)
    device = torch.device(options.device)
    forms = [(size, chunk) for size in options.sizes for chunk in (size, *options.chunks) if chunk <= size]
    # First, before this process has anything that forked ones would inherit.
    peaks = {form: peak_in_a_process(partial(measure_peak, *form, options.side, device)) for form in forms}
    print(f"{describe(device)}\n\n| batch | chunk | time | × undivided | peak memory |\n|---|---|---|---|---|")
    network = a_network(device)
    for size in options.sizes:
        steps = {str(chunk): a_step(network, count, chunk, options.side) for count, chunk in forms if count == size}
        times = median_times(steps, device, options.budget)
        for chunk, seconds in times.items():
            ratio, peak = seconds / times[str(size)], peaks[size, int(chunk)] / 1e6
            name = "undivided" if chunk == str(size) else chunk
            print(
                f"| {size:,} | {name} | {seconds:.2f} s | {ratio:.2f} | {peak:,.0f} MB |",
                flush=True,
            )
        longest = max(times.values()) / times[str(size)]
        print(
            f"goal {'met' if longest <= GOAL else 'missed'} at {size:,}: {longest:.2f} × undivided (at most {GOAL})\n"
        )


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--sizes",
        type=int,
        nargs="+",
        default=[256, 1024],
        help="of the batch (default: 256 1024)",
    )
    parser.add_argument(
        "--chunks",
        type=int,
        nargs="+",
        default=[64, 32],
        help="samples at once (default: 64 32)",
    )
    parser.add_argument("--side", type=int, default=48, help="of an image, in pixels (default: 48)")
    parser.add_argument(
        "--budget",
        type=float,
        default=20.0,
        help="seconds of steps for each batch (default: 20)",
    )
    parser.add_argument("--device", default="cpu")
    return parser.parse_args()


def a_network(device: torch.device) -> nn.Module:
    from torchvision.models import resnet18

    torch.manual_seed(0)
    return resnet18(num_classes=512).to(device).eval()


def a_step(network: nn.Module, size: int, chunk: int, side: int) -> Step:
    device = next(network.parameters()).device
    images, labels = (
        torch.randn(size, 3, side, side, device=device),
        torch.arange(size, device=device) // PER_CLASS,
    )
    loss = CITLoss()

    def undivided() -> None:
        loss(network(images), labels).backward()

    return undivided if chunk == size else lambda: step(network, (images, labels), loss, chunk=chunk)


def measure_peak(size: int, chunk: int, side: int, device: torch.device) -> int:
    network = a_network(device)
    warm_up, measured = (
        a_step(network, 2 * PER_CLASS, PER_CLASS, side),
        a_step(network, size, chunk, side),
    )
    return peak_bytes(warm_up, measured, device)


if __name__ == "__main__":
    main()
