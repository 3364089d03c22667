"""The harness of the benchmarks: time and memory of steps, and tables on the screen and in results.csv.

`run` measures cases on a CPU or a CUDA device and prints a table for each. One thread; the time is the median over
interleaved rounds, the memory the rise of the peak in a process of its own.
"""

import argparse
import csv
import platform
import re
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path

import torch

Step = Callable[[], object]
Size = tuple[int, ...]  # as a case understands it: (samples,), (queries, gallery), …
Peaks = dict[tuple[str, Size, str], int]  # bytes by case, size and method
Row = tuple[str, Sequence[str]]  # its name, and its cells
CPU = torch.device("cpu")


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
    once: int | None = None


def parser_of(description: str) -> argparse.ArgumentParser:
    """The options of all benchmarks."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, help="CSV file in which the tables replace their older values")
    return parser


def parser_of_cases(description: str, cases: Sequence[str]) -> argparse.ArgumentParser:
    """The options of `run`."""
    parser = parser_of(description)
    parser.add_argument("--quick", action="store_true", help="small sizes, no memory")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--cases", nargs="+", choices=cases, default=cases)
    parser.add_argument("--methods", nargs="+", help="only these of the cases' methods, and the floors")
    parser.add_argument("--limit-gb", type=float, default=3.0, help="skip what would need more memory (default: 3)")
    return parser


def show_table(section: str, columns: Sequence[str], rows: Iterable[Row], results: Path | None) -> None:
    """Print a table in Markdown while its rows are measured, and write it to a CSV file.

    Args:
        section: the table's name.
        columns: the names of a row's cells.
        rows: name and cells of each row.
        results: a file like results.csv; None: only print.
    """
    print(f"\n## {section}\n\n||{'|'.join(columns)}|\n{'|---' * (len(columns) + 1)}|", flush=True)
    values = {}
    for name, cells in rows:
        print(f"|{name}|{'|'.join(cells)}|", flush=True)
        for column, cell in zip(columns, cells, strict=True):
            values[section, name, column] = cell
    if results is not None:
        update_results(results, values)


def update_results(path: Path, values: Mapping[tuple[str, str, str], str]) -> None:
    """Write values by section, row and column into a CSV file, in place of older ones; other rows stay."""
    kept = {}
    if path.is_file():
        with path.open(encoding="utf-8", newline="") as file:
            for section, row, column, value in csv.reader(file):
                kept[section, row, column] = value
    header = {("section", "row", "column"): "value"}
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        for key, value in {**header, **kept, **values}.items():
            writer.writerow([*key, value])


def run(group: str, cases: Mapping[str, Case], options: argparse.Namespace) -> None:
    """Measure the cases that the options name, and show a table for each, named after the group and the case."""
    torch.set_num_threads(1)
    known = dict.fromkeys(method for case in cases.values() for method in case.methods)
    if unknown := [method for method in options.methods or () if method not in known]:
        raise SystemExit(f"--methods: the cases have {', '.join(known)}; got {', '.join(unknown)}")
    device = torch.device(options.device)
    # First, before this process has anything that forked ones would inherit.
    peaks = {} if options.quick else measure_peaks(cases, options, device)
    print(describe(device))
    keep_freed_memory()
    for name, case in cases.items():
        rows = rows_of_case(name, case, options, device, peaks)
        show_table(f"{group}: {name}{on_gpu(device)}", ("time", "× floor", "peak memory"), rows, options.results)


def on_gpu(device: torch.device) -> str:
    """The end of a section's name; empty for a processor."""
    return f", {torch.cuda.get_device_name(device)}" if device.type == "cuda" else ""


def keep_freed_memory() -> None:
    """Make the allocator keep freed memory, as with a network; else each step pays for fresh pages."""
    torch.zeros(31 * 2**20, dtype=torch.uint8)


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


def rows_of_case(
    name: str, case: Case, options: argparse.Namespace, device: torch.device, peaks: Peaks
) -> Iterator[Row]:
    for size in sizes_of(case, options):
        steps = {method: m.make(size, device) for method, m in within_reach(case, size, options).items()}
        if case.once is not None and size[0] >= case.once:
            times = {method: seconds_of(step, device) for method, step in steps.items()}
        else:
            times = median_times(steps, device, 0.5 if options.quick else 3.0)
        for method, spec in chosen_methods(case, options).items():
            row = f"{shown_size(size)}, {method}"
            if method not in times:
                needed = f"about {spec.needs(size) / 1e9:.0f} GB" if spec.needs(size) else "out of reach"
                yield row, ("–", "–", f"skipped: {needed}")
                continue
            used = peaks.get((name, size, method))
            memory = "–" if used is None else f"{used / 1e6:,.1f} MB"
            yield row, (f"{1e3 * times[method]:,.2f} ms", f"{times[method] / times[case.floor]:.2f}", memory)


def shown_size(size: Size) -> str:
    return " × ".join(f"{n:,}" for n in size)


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
