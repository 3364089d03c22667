"""Time and memory of the losses against PML's nearest, their own plain versions and the two-matrix-product floor.

    python examples/benchmarks/losses.py [--quick] [--sizes 64 256] [--cases CIT TCM] [--out FOLDER]
    python examples/benchmarks/losses.py --cases CIT --sizes 4096 --per-class 512 --methods "CITLoss(gamma=0.5)"

Prints a table for each case, then the goals and whether they are met, and writes results.json and growth.png to the
folder. One thread; a step is forward and backward; the time is the median over interleaved rounds, the memory the rise
of the peak in a process of its own. Steps are not warmed between the rounds: in training, too, a network runs between
two steps of a loss and leaves it cold caches. The allocator is, by one block of 31 MB before the first timing: a
process that trains a network keeps freed memory, a small one returns it to the system and pays for fresh pages.
"""

import argparse
import json
import platform
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from cases import CASES, Batch, Case, Method
from goals import judge, print_goals, print_scale
from measure import growth_exponent, median_times, peak_bytes

SMALL = 16  # the batch that warms a process up before its memory is measured


def main() -> None:
    options = parse_arguments()
    torch.set_num_threads(1)
    device = torch.device(options.device)
    # First, before this process has anything that forked ones would inherit.
    peaks = {} if options.quick else measure_peaks(options)
    machine = describe(device)
    print(machine)
    rows: list[dict[str, Any]] = []
    torch.zeros(31 * 2**20, dtype=torch.uint8)  # freed at once: see above
    for name in options.cases:
        rows += run_case(name, options, device, peaks)
    goals = judge(rows)
    print_goals(goals)
    if options.simulate_ranks:
        print_scale(rows, options.simulate_ranks)
    folder = Path(options.out or tempfile.mkdtemp(prefix="pml_ext_benchmark_"))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_text(json.dumps({"machine": machine, "rows": rows, "goals": goals}, indent=1))
    plot(rows, folder / "growth.png")
    print(f"\nwritten: {folder}/results.json, growth.png")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="sizes 64 and 256, one second a case, no memory")
    parser.add_argument("--sizes", type=int, nargs="+", help="batch sizes (default: 64 256 1024 4096)")
    parser.add_argument("--dim", type=int, default=512, help="of the embeddings (default: 512)")
    parser.add_argument("--per-class", type=int, default=4, help="samples a class (default: 4)")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--methods", nargs="+", help="only these of the cases' methods, and the floors")
    parser.add_argument("--limit-gb", type=float, default=3.0, help="skip what is estimated to need more (default: 3)")
    parser.add_argument(
        "--simulate-ranks", type=int, help="extrapolate to 65,536 samples and 1M classes on RANKS ranks"
    )
    parser.add_argument("--out", help="folder of the results (default: a new temporary one)")
    options = parser.parse_args()
    known = dict.fromkeys(method for name in options.cases for method in CASES[name].methods)
    if unknown := [method for method in options.methods or () if method not in known]:
        parser.error(f"--methods: the cases have {', '.join(known)}; got {', '.join(unknown)}")
    options.sizes = options.sizes or ([64, 256] if options.quick else [64, 256, 1024, 4096])
    return options


def run_case(
    name: str, options: argparse.Namespace, device: torch.device, peaks: dict[tuple[str, int, str], int]
) -> list[dict[str, Any]]:
    case = CASES[name]
    print(f"\n## {name}\n\n| size | method | time | × floor | peak memory |\n|---|---|---|---|---|")
    rows = []
    for size in case.sizes or options.sizes:
        batch = batch_of(case, size, options)
        possible = within_reach(case, batch, options)
        budget = 1.0 if options.quick else 3.0
        times = median_times({method: m.make(batch) for method, m in possible.items()}, device, budget)
        for method in chosen_methods(case, options):
            if method not in possible:
                print(
                    f"| {size} | {method} | – | – | skipped: about {case.methods[method].needs(batch) / 1e9:.0f} GB |"
                )
                continue
            row = {
                "case": name,
                "size": size,
                "method": method,
                "seconds": times[method],
                "bytes": peaks.get((name, size, method)),
            }
            row["ratio"] = times[method] / times[case.floor]
            rows.append(row)
            memory = "" if row["bytes"] is None else f"{row['bytes'] / 1e6:.1f} MB"
            print(f"| {size} | {method} | {1e3 * row['seconds']:.2f} ms | {row['ratio']:.2f} | {memory} |", flush=True)
    print_growth(rows)
    return rows


def print_growth(rows: list[dict[str, Any]]) -> None:
    """Fitted from 256 samples on, where the growth shows."""
    for method in dict.fromkeys(row["method"] for row in rows):
        own = [row for row in rows if row["method"] == method and row["size"] >= 256]
        if len(own) < 2:
            continue
        sizes = [row["size"] for row in own]
        text = f"time ∝ B^{growth_exponent(sizes, [1e9 * row['seconds'] for row in own]):.2f}"
        if all(row["bytes"] is not None for row in own):
            text += f", memory ∝ B^{growth_exponent(sizes, [row['bytes'] for row in own]):.2f}"
        print(f"\n{method}: {text} (B = {', '.join(map(str, sizes))})", end="")
    print()


def measure_peaks(options: argparse.Namespace) -> dict[tuple[str, int, str], int]:
    """Peak bytes by case, size and method, each from a separate process that has run only a small batch."""
    peaks = {}
    for name in options.cases:
        case = CASES[name]
        for size in case.sizes or options.sizes:
            batch = batch_of(case, size, options)
            for method in within_reach(case, batch, options):
                with ProcessPoolExecutor(1, mp_context=get_context("fork")) as fresh:
                    peaks[name, size, method] = fresh.submit(measure_peak, name, method, batch).result()
    return peaks


def measure_peak(name: str, method: str, batch: Batch) -> int:
    make = CASES[name].methods[method].make
    return peak_bytes(
        make(replace(batch, size=SMALL, per_class=min(batch.per_class, SMALL // 4))), make(batch), batch.device
    )


def chosen_methods(case: Case, options: argparse.Namespace) -> dict[str, Method]:
    wanted = {case.floor, *(options.methods or case.methods)}
    return {name: method for name, method in case.methods.items() if name in wanted}


def within_reach(case: Case, batch: Batch, options: argparse.Namespace) -> dict[str, Method]:
    chosen = chosen_methods(case, options).items()
    return {name: method for name, method in chosen if method.needs(batch) <= 1e9 * options.limit_gb}


def batch_of(case: Case, size: int, options: argparse.Namespace) -> Batch:
    return Batch(size, case.dim or options.dim, options.per_class, torch.device(options.device))


def describe(device: torch.device) -> str:
    processor = platform.processor()
    if Path("/proc/cpuinfo").exists():
        found = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
        processor = found[0].split(":")[1].strip() if found else processor
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else processor
    capability = torch.backends.cpu.get_cpu_capability()
    return (
        f"{name} ({capability}), {torch.get_num_threads()} thread, Python {platform.python_version()}, "
        f"torch {torch.__version__}, pytorch-metric-learning {version('pytorch-metric-learning')}"
    )


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = [name for name in CASES if len({row["size"] for row in rows if row["case"] == name}) > 1]
    if not names:
        return
    figure, axes = pyplot.subplots(2, len(names), figsize=(5 * len(names), 8), squeeze=False)
    for column, name in enumerate(names):
        for axis, key, label in ((axes[0][column], "seconds", "seconds a step"), (axes[1][column], "bytes", "bytes")):
            for method in CASES[name].methods:
                own = [row for row in rows if row["case"] == name and row["method"] == method and row[key]]
                axis.plot([row["size"] for row in own], [row[key] for row in own], "o-", label=method)
            scale = "log" if axis.lines and any(len(line.get_xdata()) for line in axis.lines) else "linear"
            axis.set(xscale=scale, yscale=scale, xlabel="batch size", ylabel=label, title=name)
        axes[0][column].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
