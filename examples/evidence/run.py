"""Which loss helps when: tune every method at equal cost, test it, and write the tables.

    python examples/evidence/run.py                 # all claims on all sets
    python examples/evidence/run.py tcm loop        # some claims
    python examples/evidence/run.py --sets emoji    # on some sets
    python examples/evidence/run.py --quick         # a look at the machinery, in a folder of its own
    python examples/evidence/run.py --check         # run a random tenth of the kept results again, and compare
    python examples/evidence/run.py --tables        # only write the tables from the results that are there

It may be stopped at any moment and goes on where it was. Results are kept in examples/evidence/results, tables and
figures beside this file.
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

os.environ.setdefault("OMP_NUM_THREADS", "1")  # one thread a process: as many processes as cores

import torch

sys.path.insert(0, str(Path(__file__).parent))
from check import check_again
from claims import CLAIMS, TOPICS
from image_sets import SOURCES, features_of
from methods import METHODS
from report import write_report
from store import Store
from tuning import Plan, run_method

HERE = Path(__file__).parent
QUICK = Plan(trials=2, seeds=(0, 1), shortened={"steps": 20, "classes": 60})
QUICK_METHODS = ("triplet", "loop_triplet", "smoothap", "smoothap + tcm")


def work(folder: Path, set_name: str, method: str, plan: Plan, done: "Queue[tuple[str, str]]") -> None:
    """One method on one set, in a process of its own."""
    torch.set_num_threads(1)
    for run in run_method(set_name, method, plan, Store(folder)):
        done.put((run.set, run.method))


def run_all(folder: Path, sets: list[str], methods: list[str], plan: Plan, processes: int) -> None:
    """Every method on every set, with what is left and when it will end on standard error."""
    jobs = [(set_name, method) for set_name in sets for method in methods]
    expected = sum(len(METHODS[method].trials()[: plan.trials]) + len(plan.seeds) for _, method in jobs)
    started, finished, over = time.monotonic(), 0, 0
    with Manager() as manager, ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        done: Queue[tuple[str, str]] = manager.Queue()
        running = [pool.submit(work, folder, *job, plan, done) for job in jobs]
        for future in as_completed(running):
            future.result()
            over += 1
            while not done.empty():
                done.get()
                finished += 1
            spent = time.monotonic() - started
            left = max(expected - finished, 0)
            end = time.strftime("%H:%M", time.localtime(time.time() + spent / max(finished, 1) * left))
            print(f"{over} of {len(jobs)} methods; {left} runs left, done at about {end}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("topics", nargs="*", metavar="TOPIC", help=f"claims to test: {', '.join(TOPICS)}; none: all")
    parser.add_argument("--sets", nargs="+", choices=list(SOURCES), default=list(SOURCES))
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--tables", action="store_true")
    parser.add_argument("--output", type=Path, help="a folder for --quick; none: a temporary one")
    given = parser.parse_args()
    if unknown := [topic for topic in given.topics if topic not in TOPICS]:
        parser.error(f"unknown topic {', '.join(unknown)}; known: {', '.join(TOPICS)}")
    claims = [claim for claim in CLAIMS if not given.topics or claim.topic in given.topics]
    if given.check:
        raise SystemExit(check_again(Store(HERE / "results"), given.sets))
    if given.quick:
        with tempfile.TemporaryDirectory() as temporary:
            folder = given.output or Path(temporary)
            features_of("emoji", QUICK.shortened["classes"])
            run_all(folder / "results", ["emoji"], list(QUICK_METHODS), QUICK, given.processes)
            write_report(folder, Store(folder / "results"), CLAIMS, ["emoji"])
            print((folder / "EVIDENCE.md").read_text(encoding="utf-8"))
        return
    if not given.tables:
        methods = list(dict.fromkeys(name for claim in claims for name in claim.methods))
        for set_name in given.sets:
            print(f"{set_name}: features", file=sys.stderr, flush=True)
            features_of(set_name)
        run_all(HERE / "results", given.sets, methods, Plan(), given.processes)
    store = Store(HERE / "results")
    store.pack(given.sets)
    write_report(HERE, store, CLAIMS, list(SOURCES))
    print(HERE / "EVIDENCE.md")


if __name__ == "__main__":
    main()
