"""Time and memory of the metrics against their floors, their definitions and other implementations.

    python examples/benchmarks/metrics.py [--quick] [--sizes 5000 20000] [--cases OPIS] [--out FOLDER]

Prints a table for each case, says which goals are met, and writes metrics.json to the folder. One thread; the time is
the median over interleaved rounds (one round for the largest sizes), the memory the rise of the peak in a process of
its own.
"""

import argparse
import json
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from losses import describe
from measure import Step, median_times, peak_bytes
from metric_case import Goal, Method, MetricCase, Size

CASES: dict[str, MetricCase] = {}
for _module in ("calculator_cases", "cohort_cases", "identification_cases", "opis_cases", "reid_cases"):
    if find_spec(_module):
        CASES |= import_module(_module).CASES


def main() -> None:
    options = parse_arguments()
    torch.set_num_threads(1)
    device = torch.device(options.device)
    # First, before this process has anything that forked ones would inherit.
    peaks = {} if options.quick else measure_peaks(options, device)
    machine = describe(device)
    print(machine)
    rows = [row for name in options.cases for row in run_case(name, options, device, peaks)]
    folder = Path(options.out or tempfile.mkdtemp(prefix="pml_ext_benchmark_"))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.json").write_text(json.dumps({"machine": machine, "rows": rows}, indent=1))
    print(f"\nwritten: {folder}/metrics.json")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one small size a case, no memory")
    parser.add_argument("--sizes", type=int, nargs="+", help="only the sizes that start with these numbers")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--out", help="folder of the results (default: a new temporary one)")
    return parser.parse_args()


def sizes_of(case: MetricCase, options: argparse.Namespace) -> list[Size]:
    if options.quick:
        return [case.quick]
    return [size for size in case.sizes if not options.sizes or size[0] in options.sizes]


def within_reach(case: MetricCase, size: Size) -> dict[str, Method]:
    return {name: m for name, m in case.methods.items() if m.up_to is None or size[0] <= m.up_to}


def run_case(
    name: str, options: argparse.Namespace, device: torch.device, peaks: dict[tuple[str, Size, str], int]
) -> list[dict[str, Any]]:
    case = CASES[name]
    print(f"\n## {name}\n\n| size | method | time | × floor | peak memory |\n|---|---|---|---|---|")
    rows: list[dict[str, Any]] = []
    for size in sizes_of(case, options):
        shown = " × ".join(f"{n:,}" for n in size)
        steps = {method: m.make(size, device) for method, m in within_reach(case, size).items()}
        if case.once is not None and size[0] >= case.once:
            times = {method: seconds_of(step, device) for method, step in steps.items()}
        else:
            times = median_times(steps, device, 0.5 if options.quick else 3.0)
        for method in case.methods:
            if method not in times:
                print(f"| {shown} | {method} | – | – | skipped: out of reach |")
                continue
            row = {"case": name, "size": size, "method": method, "seconds": times[method]}
            row |= {"ratio": times[method] / times[case.floor], "bytes": peaks.get((name, size, method))}
            rows.append(row)
            memory = "" if row["bytes"] is None else f"{row['bytes'] / 1e6:.0f} MB"
            print(
                f"| {shown} | {method} | {1e3 * row['seconds']:,.1f} ms | {row['ratio']:.2f} | {memory} |", flush=True
            )
    print()
    for goal in case.goals:
        print_goal(goal, rows)
    return rows


def seconds_of(step: Step, device: torch.device) -> float:
    """One call, for steps of many seconds, where a warm-up does not matter."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    start = clock()
    step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return clock() - start


def print_goal(goal: Goal, rows: list[dict[str, Any]]) -> None:
    for size in dict.fromkeys(row["size"] for row in rows if row["size"][0] >= goal.at):
        at_size = {row["method"]: row for row in rows if row["size"] == size}
        shown, own = " × ".join(f"{n:,}" for n in size), at_size.get(goal.method)
        if own is None:
            continue
        if goal.ratio is not None and goal.against in at_size:
            ratio = own["seconds"] / at_size[goal.against]["seconds"]
            verdict = "met" if ratio <= goal.ratio else "missed"
            print(f"goal {verdict} at {shown}: {goal.method} {ratio:.2f} × {goal.against} (at most {goal.ratio:g})")
        if goal.megabytes is not None and own["bytes"] is not None:
            used = own["bytes"] / 1e6
            verdict = "met" if used <= goal.megabytes else "missed"
            print(f"goal {verdict} at {shown}: {goal.method} {used:.0f} MB (at most {goal.megabytes:g})")


def measure_peaks(options: argparse.Namespace, device: torch.device) -> dict[tuple[str, Size, str], int]:
    """Peak bytes by case, size and method, each from a separate process that has run only a small set."""
    peaks = {}
    for name in options.cases:
        for size in sizes_of(CASES[name], options):
            for method in within_reach(CASES[name], size):
                with ProcessPoolExecutor(1, mp_context=get_context("fork")) as fresh:
                    peaks[name, size, method] = fresh.submit(measure_peak, name, method, size, device).result()
    return peaks


def measure_peak(name: str, method: str, size: Size, device: torch.device) -> int:
    case = CASES[name]
    make = case.methods[method].make
    return peak_bytes(make(case.small, device), make(size, device), device)


if __name__ == "__main__":
    main()
