"""The harness of the benchmarks: time and memory of steps, tables of cases, and the goals that they meet or miss.

`run` measures cases on a CPU or a CUDA device and prints a table for each. One thread; the time is the median over
interleaved rounds, the memory the rise of the peak in a process of its own.
"""

import argparse
import json
import platform
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

Step = Callable[[], object]
Size = tuple[int, ...]  # as a case understands it: (samples,), (queries, gallery), …
Peaks = dict[tuple[str, Size, str], int]  # bytes by case, size and method


@dataclass(frozen=True)
class Method:
    """`make` prepares a step for a size and device.

    up_to: sizes above it (by the first number) are skipped.
    needs: estimates the bytes of a size, to skip those that do not fit.
    """

    make: Callable[[Size, torch.device], Step]
    up_to: int | None = None
    needs: Callable[[Size], float] = lambda size: 0.0


@dataclass(frozen=True)
class Goal:
    """A limit for `method` at all sizes from `at` on (by the first number).

    ratio: of its time to that of `against`; memory_ratio: of the memory; megabytes: of the method alone.
    """

    method: str
    against: str = ""
    ratio: float | None = None
    memory_ratio: float | None = None
    megabytes: float | None = None
    at: int = 0


@dataclass(frozen=True)
class Case:
    """Methods timed together; ratios are to `floor`.

    small: the size that warms a process up before its memory is measured.
    quick: the size of a trial run; none: `sizes`.
    once: from this first number on, one round only.
    """

    methods: dict[str, Method]
    floor: str
    sizes: tuple[Size, ...]
    small: Size
    quick: Size | None = None
    goals: tuple[Goal, ...] = ()
    once: int | None = None


def parser_of(description: str, cases: list[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes, no memory")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--cases", nargs="+", choices=cases, default=cases)
    parser.add_argument("--methods", nargs="+", help="only these of the cases' methods, and the floors")
    parser.add_argument(
        "--limit-gb",
        type=float,
        default=3.0,
        help="skip what is estimated to need more (default: 3)",
    )
    parser.add_argument("--out", help="folder of results.json (default: a new temporary one)")
    return parser


def run(cases: Mapping[str, Case], options: argparse.Namespace) -> None:
    """Measure the cases that the options name, print their tables and goals, and write results.json."""
    torch.set_num_threads(1)
    known = dict.fromkeys(method for case in cases.values() for method in case.methods)
    if unknown := [method for method in options.methods or () if method not in known]:
        raise SystemExit(f"--methods: the cases have {', '.join(known)}; got {', '.join(unknown)}")
    device = torch.device(options.device)
    # First, before this process has anything that forked ones would inherit.
    peaks = {} if options.quick else measure_peaks(cases, options, device)
    machine = describe(device)
    print(machine)
    # Makes the allocator keep freed memory, as in a process that trains a network; else each step pays for fresh pages.
    torch.zeros(31 * 2**20, dtype=torch.uint8)
    rows = [row for name, case in cases.items() for row in run_case(name, case, options, device, peaks)]
    folder = Path(options.out or tempfile.mkdtemp(prefix="pml_ext_benchmark_"))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_text(json.dumps({"machine": machine, "rows": rows}, indent=1))
    print(f"\nwritten: {folder}/results.json")


def sizes_of(case: Case, options: argparse.Namespace) -> tuple[Size, ...]:
    return (case.quick,) if options.quick and case.quick else case.sizes


def chosen_methods(case: Case, options: argparse.Namespace) -> dict[str, Method]:
    wanted = {case.floor, *(options.methods or case.methods)}
    return {name: method for name, method in case.methods.items() if name in wanted}


def within_reach(case: Case, size: Size, options: argparse.Namespace) -> dict[str, Method]:
    limit = 1e9 * options.limit_gb
    return {
        name: method
        for name, method in chosen_methods(case, options).items()
        if size[0] <= (method.up_to or size[0]) and method.needs(size) <= limit
    }


def run_case(
    name: str,
    case: Case,
    options: argparse.Namespace,
    device: torch.device,
    peaks: Peaks,
) -> list[dict[str, Any]]:
    print(f"\n## {name}\n\n| size | method | time | × floor | peak memory |\n|---|---|---|---|---|")
    rows: list[dict[str, Any]] = []
    for size in sizes_of(case, options):
        shown = shown_size(size)
        steps = {method: m.make(size, device) for method, m in within_reach(case, size, options).items()}
        if case.once is not None and size[0] >= case.once:
            times = {method: seconds_of(step, device) for method, step in steps.items()}
        else:
            times = median_times(steps, device, 0.5 if options.quick else 3.0)
        for method, spec in chosen_methods(case, options).items():
            if method not in times:
                needed = f"about {spec.needs(size) / 1e9:.0f} GB" if spec.needs(size) else "out of reach"
                print(f"| {shown} | {method} | – | – | skipped: {needed} |")
                continue
            ratio, used = (
                times[method] / times[case.floor],
                peaks.get((name, size, method)),
            )
            row = {
                "case": name,
                "size": size,
                "method": method,
                "seconds": times[method],
            }
            rows.append({**row, "ratio": ratio, "bytes": used})
            memory = "" if used is None else f"{used / 1e6:,.1f} MB"
            print(
                f"| {shown} | {method} | {1e3 * times[method]:,.2f} ms | {ratio:.2f} | {memory} |",
                flush=True,
            )
    print()
    for goal in case.goals:
        print_goal(goal, rows)
    return rows


def shown_size(size: Size) -> str:
    return " × ".join(f"{n:,}" for n in size)


def print_goal(goal: Goal, rows: list[dict[str, Any]]) -> None:
    """What can be judged by the rows of this run."""
    for size in dict.fromkeys(row["size"] for row in rows if row["size"][0] >= goal.at):
        at_size = {row["method"]: row for row in rows if row["size"] == size}
        own, other = at_size.get(goal.method), at_size.get(goal.against)
        if own is None:
            continue
        measured = []
        if goal.ratio and other:
            measured.append(
                (
                    own["seconds"] / other["seconds"],
                    goal.ratio,
                    f"× the time of {goal.against}",
                )
            )
        if own["bytes"] is not None and goal.memory_ratio and other:
            measured.append(
                (
                    own["bytes"] / other["bytes"],
                    goal.memory_ratio,
                    f"× the memory of {goal.against}",
                )
            )
        if own["bytes"] is not None and goal.megabytes:
            measured.append((own["bytes"] / 1e6, goal.megabytes, "MB"))
        for value, limit, words in measured:
            verdict = "met" if value <= limit else "missed"
            print(f"goal {verdict} at {shown_size(size)}: {goal.method} {value:.3g} {words} (at most {limit:.3g})")


def measure_peaks(cases: Mapping[str, Case], options: argparse.Namespace, device: torch.device) -> Peaks:
    """Each from a separate process that has run only a small step."""
    peaks = {}
    for name, case in cases.items():
        for size in sizes_of(case, options):
            for method, spec in within_reach(case, size, options).items():
                peaks[name, size, method] = peak_in_a_process(partial(peak_of, spec, case.small, size, device))
    return peaks


def peak_of(method: Method, small: Size, size: Size, device: torch.device) -> int:
    return peak_bytes(method.make(small, device), method.make(size, device), device)


def peak_in_a_process(measure: Callable[[], int]) -> int:
    """The bytes that `measure` returns in a forked process."""
    context = get_context("fork")
    reader, writer = context.Pipe(duplex=False)
    process = context.Process(target=lambda: writer.send(measure()))
    process.start()
    writer.close()
    measured: int = reader.recv()
    process.join()
    return measured


def median_times(steps: Mapping[str, Step], device: torch.device, budget: float) -> dict[str, float]:
    """Median seconds of each step, in rounds of one call each, until `budget` seconds are spent.

    At least 3 rounds, unless one round takes ten budgets; at most 200.

    On a processor it is the process's CPU time, which another process on the machine does not lengthen (but for the
    caches that the two share). Rounds, so that a slow minute of the machine falls on all steps alike.
    """
    for step in steps.values():
        step()
    times: dict[str, list[float]] = {name: [] for name in steps}
    spent, rounds = 0.0, 0
    while rounds == 0 or (rounds < 3 and spent < 10 * budget) or (rounds < 200 and spent < budget):
        for name, step in steps.items():
            seconds = seconds_of(step, device)
            times[name].append(seconds)
            spent += seconds
        rounds += 1
    return {name: statistics.median(values) for name, values in times.items()}


def peak_bytes(warm_up: Step, step: Step, device: torch.device) -> int:
    """By how much a step raises the peak memory. On a CPU, call it in a fresh process.

    Args:
        warm_up: a small step of the same kind, to load libraries and their buffers.
        step: the step to measure.
        device: on a CUDA device its allocator's peak, else the peak of the resident set (Linux only).
    """
    warm_up()
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        return torch.cuda.max_memory_allocated() - before
    Path("/proc/self/clear_refs").write_text("5")  # the peak becomes what is resident now
    before = _status_bytes("VmRSS")
    step()
    return max(0, _status_bytes("VmHWM") - before)


def seconds_of(step: Step, device: torch.device) -> float:
    """One call: CPU time, or by CUDA events."""
    if device.type == "cuda":
        start, end = (
            torch.cuda.Event(enable_timing=True),
            torch.cuda.Event(enable_timing=True),
        )
        start.record()
        step()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1000
    begin = time.process_time()
    step()
    return time.process_time() - begin


def _status_bytes(key: str) -> int:
    found = re.search(rf"{key}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def describe(device: torch.device) -> str:
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    else:
        names = re.findall(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
        name = names[0] if names else platform.processor()
    capability = torch.backends.cpu.get_cpu_capability()
    return (
        f"{name} ({capability}), {torch.get_num_threads()} thread, Python {platform.python_version()}, "
        f"torch {torch.__version__}, pytorch-metric-learning {version('pytorch-metric-learning')}"
    )
