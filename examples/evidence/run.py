"""Tests the papers' claims: tunes every method, tests it, and writes the tables.

    python examples/evidence/run.py                 # all methods on all sets
    python examples/evidence/run.py --sets emoji    # on some sets
    python examples/evidence/run.py --methods id    # some methods
    python examples/evidence/run.py --quick         # a trial run in a separate folder
    python examples/evidence/run.py --check         # repeat a random tenth of the stored tests, compare and store
    python examples/evidence/run.py --check 0.01    # or another share
    python examples/evidence/run.py --tables        # only write the tables from stored results

It can be stopped at any time and continues where it was. Results are stored in examples/evidence/results, pages in this
folder; the tables of WHOLE_NETWORKS.md, of stored runs, and of README.md are written too.
"""

import argparse
import os
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # one thread per process, one process per core

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
sys.path.insert(0, str(Path(__file__).parent))
import readme_tables
import whole_report
from image_sets import SOURCES, features_of
from methods import METHODS
from report import write_report
from store import Store
from training import measure_untrained
from tuning import Plan, check_again, run_method

HERE = Path(__file__).parent
QUICK = Plan(trials=2, seeds=(0, 1), shortened={"steps": 20, "classes": 60})
QUICK_METHODS = ("triplet_consecutive", "loop_triplet", "smoothap", "smoothap + tcm")


def work(folder: Path, set_name: str, method: str, plan: Plan) -> None:
    """Run one method on one set in its own process."""
    torch.set_num_threads(1)
    run_method(set_name, method, plan, Store(folder))


def run_all(folder: Path, sets: list[str], methods: list[str], plan: Plan, processes: int) -> None:
    """Run every method on every set; report progress on standard error."""
    for set_name in sets:
        print(f"{set_name}: features", file=sys.stderr, flush=True)
        data = features_of(set_name, plan.shortened.get("classes"))
        measure_untrained(data, folder / f"untrained_{set_name}.json")
    jobs = [(set_name, method) for method in methods for set_name in sets]  # so that a stop leaves whole claims
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        running = [pool.submit(work, folder, *job, plan) for job in jobs]
        for number, future in enumerate(as_completed(running), 1):
            future.result()
            print(f"{number} of {len(jobs)} methods", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", choices=list(SOURCES), default=list(SOURCES))
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS), metavar="METHOD")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--check", nargs="?", const=0.1, type=float, metavar="SHARE")
    parser.add_argument("--tables", action="store_true")
    parser.add_argument("--output", type=Path, help="a folder for --quick; none: a temporary one")
    given = parser.parse_args()
    if given.check:
        raise SystemExit(check_again(Store(HERE / "results"), given.sets, given.check))
    if given.quick:
        with tempfile.TemporaryDirectory() as temporary:
            folder = given.output or Path(temporary)
            (folder / "results").mkdir(parents=True, exist_ok=True)
            run_all(folder / "results", ["glyphs"], list(QUICK_METHODS), QUICK, given.processes)
            write_report(folder, Store(folder / "results"), ["glyphs"])
            print((folder / "EVIDENCE.md").read_text(encoding="utf-8"))
        return
    if not given.tables:
        run_all(HERE / "results", given.sets, given.methods, Plan(), given.processes)
    store = Store(HERE / "results")
    store.pack(given.sets)
    whole_report.write_report(HERE, Store(HERE / "results" / "whole"))
    write_report(HERE, store, list(SOURCES))
    readme_tables.write()
    print(HERE / "EVIDENCE.md")


if __name__ == "__main__":
    main()
