"""Tests the papers' claims: tunes every method at equal cost, tests it, and writes the tables.

    python examples/evidence/run.py                 # all claims on all sets
    python examples/evidence/run.py tcm loop        # some claims
    python examples/evidence/run.py --sets emoji    # on some sets
    python examples/evidence/run.py --quick         # a trial run in a separate folder
    python examples/evidence/run.py --check         # repeat a random tenth of the stored tests, compare and store
    python examples/evidence/run.py --check 0.01    # or another share
    python examples/evidence/run.py --tables        # only write the tables from stored results

It can be stopped at any time and continues where it was. Results are stored in examples/evidence/results, tables and
figures in this folder.
"""

import argparse
import os
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import Manager, get_context
from pathlib import Path
from queue import Queue

os.environ.setdefault("OMP_NUM_THREADS", "1")  # one thread per process, one process per core

import torch

sys.path.insert(0, str(Path(__file__).parent))
from claims import CLAIMS, METHODS_OF_GOALS, TOPICS
from image_sets import SOURCES, features_of
from methods import METHODS
from report import write_report
from side_measurements import (
    OVERVIEW,
    ROUNDS,
    WATCHED_SEEDS,
    controls_file,
    measure_controls,
    measure_cost,
    watch_all,
)
from store import Store
from tested import Tested
from tuning import Plan, check_again, run_method

HERE = Path(__file__).parent
QUICK = Plan(trials=2, seeds=(0, 1), shortened={"steps": 20, "classes": 60})
QUICK_METHODS = ("triplet", "loop_triplet", "smoothap", "smoothap + tcm")


def work(folder: Path, set_name: str, method: str, plan: Plan, done: "Queue[bool]") -> None:
    """Run one method on one set in its own process."""
    torch.set_num_threads(1)
    for was_run in run_method(set_name, method, plan, Store(folder)):
        done.put(was_run)


def run_all(folder: Path, sets: list[str], methods: list[str], plan: Plan, processes: int) -> None:
    """Run every method on every set; report the remaining runs and time on standard error."""
    jobs = [(set_name, method) for method in methods for set_name in sets]  # so that a stop leaves whole claims
    expected = sum(len(METHODS[method].trials()[: plan.trials]) + len(plan.seeds) for _, method in jobs)
    started, finished, fresh, over = time.monotonic(), 0, 0, 0
    with Manager() as manager, ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        done: Queue[bool] = manager.Queue()
        running = [pool.submit(work, folder, *job, plan, done) for job in jobs]
        for future in as_completed(running):
            future.result()
            over += 1
            while not done.empty():
                fresh += done.get()
                finished += 1
            each = (time.monotonic() - started) / max(fresh, 1)  # stored runs took no time
            left = max(expected - finished, 0)
            end = time.strftime("%H:%M", time.localtime(time.time() + each * left))
            print(f"{over} of {len(jobs)} methods; {left} runs left, done at about {end}", file=sys.stderr, flush=True)


def look_closer(
    folder: Path, sets: list[str], processes: int, seeds: tuple[int, ...], rounds: int, classes: int | None = None
) -> None:
    """What no training gives; curves over training and the cost per step, with the chosen settings."""
    tested = Tested(Store(folder))
    for set_name in sets:
        measure_controls(features_of(set_name, classes), controls_file(folder, set_name))
        chosen = tested.all_settings(set_name)
        print(f"{set_name}: curves over training", file=sys.stderr, flush=True)
        path = folder / f"over_training_{set_name}.json"
        watch_all(set_name, chosen, path, seeds=seeds, processes=processes)
    print("cost of a step", file=sys.stderr, flush=True)
    chosen = tested.all_settings(sets[0])
    shown = {method: chosen[method] for method in (*OVERVIEW, *METHODS_OF_GOALS) if method in chosen}
    measure_cost(shown, folder / "cost.json", rounds=rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("topics", nargs="*", metavar="TOPIC", help=f"claims to test: {', '.join(TOPICS)}; none: all")
    parser.add_argument("--sets", nargs="+", choices=list(SOURCES), default=list(SOURCES))
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--check", nargs="?", const=0.1, type=float, metavar="SHARE")
    parser.add_argument("--tables", action="store_true")
    parser.add_argument("--output", type=Path, help="a folder for --quick; none: a temporary one")
    given = parser.parse_args()
    if unknown := [topic for topic in given.topics if topic not in TOPICS]:
        parser.error(f"unknown topic {', '.join(unknown)}; known: {', '.join(TOPICS)}")
    claims = [claim for claim in CLAIMS if not given.topics or claim.topic in given.topics]
    if given.check:
        raise SystemExit(check_again(Store(HERE / "results"), given.sets, given.check))
    if given.quick:
        with tempfile.TemporaryDirectory() as temporary:
            folder = given.output or Path(temporary)
            features_of("emoji", QUICK.shortened["classes"])
            run_all(folder / "results", ["emoji"], list(QUICK_METHODS), QUICK, given.processes)
            classes = QUICK.shortened["classes"]
            look_closer(folder / "results", ["emoji"], given.processes, QUICK.seeds, rounds=1, classes=classes)
            write_report(folder, Store(folder / "results"), CLAIMS, ["emoji"])
            print((folder / "EVIDENCE.md").read_text(encoding="utf-8"))
        return
    if not given.tables:
        methods = list(dict.fromkeys(name for claim in claims for name in claim.methods))
        for set_name in given.sets:
            print(f"{set_name}: features", file=sys.stderr, flush=True)
            features_of(set_name)
        run_all(HERE / "results", given.sets, methods, Plan(), given.processes)
        if set(methods) == METHODS.keys():
            look_closer(HERE / "results", given.sets, given.processes, WATCHED_SEEDS, ROUNDS)
    store = Store(HERE / "results")
    store.pack(given.sets)
    write_report(HERE, store, CLAIMS, list(SOURCES))
    print(HERE / "EVIDENCE.md")


if __name__ == "__main__":
    main()
