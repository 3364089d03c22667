"""Write the README's tables from measurements; --check tells whether they are up to date.

Each table is between a line `<!-- written by examples/readme_tables.py: NAME -->` and `<!-- end -->`. The data is in
examples/first_run.json (written by examples/first_run.py), examples/evidence/results/guide.json (written by
examples/evidence/run.py) and examples/benchmarks/RESULTS.md.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).parent
README = HERE.parent / "README.md"
_BLOCK = re.compile(r"(<!-- written by examples/readme_tables\.py: ([\w ]+) -->\n)(.*?)(<!-- end -->)", re.S)
# name in metrics.json -> heading with an arrow to the better side, and format
COLUMNS: dict[str, tuple[str, Callable[[float], str]]] = {
    "precision_at_1": ("R@1 ↑", lambda value: f"{100 * value:.1f} %"),
    "mean_average_precision_at_r": ("mAP@R ↑", lambda value: f"{100 * value:.1f} %"),
    "opis": ("OPIS ↓", lambda value: f"{value:.2e}"),
}
# batch size, PML's loss and ours in benchmarks/RESULTS.md
COMPARED = [
    (256, "PML ThresholdConsistentMarginLoss", "TCMLoss"),
    (256, "PML TripletMarginLoss(all)", "CITLoss(gamma=1)"),
    (1024, "PML TripletMarginLoss(all)", "CITLoss(gamma=1)"),
]


def first_run() -> str:
    """Raw pixels, untrained and trained network: the output of the README's first command."""
    run = json.loads((HERE / "first_run.json").read_text(encoding="utf-8"))
    found = {**run["baselines"], "trained": run["results"]}
    rows = {name: [show(sets["Glyphs"][key]) for key, (_, show) in COLUMNS.items()] for name, sets in found.items()}
    about = "On one thread; more threads change the last digits."
    return f"{table(['', *(heading for heading, _ in COLUMNS.values())], rows)}\n{about}\n"


def goals() -> str:
    """The gain of each loss, all tuned at equal cost."""
    rows = json.loads((HERE / "evidence" / "results" / "guide.json").read_text(encoding="utf-8"))
    about = "A linear layer on frozen ImageNet features. mAP@R in points; cost per step with a batch of 80."
    return table(["goal", "loss", "measured gain [95 %]", "cost"], rows) + f"\n{about}\n"


def speed() -> str:
    """Time and memory of a step with PML's loss and with ours, from the last run of the benchmark."""
    text = (HERE / "benchmarks" / "RESULTS.md").read_text(encoding="utf-8")
    row = r"^\| (\d+) \| (.+?) \| ([\d.]+) ms \| \S+ \| ([\d.]+) MB \|$"
    measured = {(int(size), name): (float(ms), float(mb)) for size, name, ms, mb in re.findall(row, text, re.M)}
    rows = {}
    for size, theirs, ours in COMPARED:
        (their_time, their_memory), (our_time, our_memory) = measured[size, theirs], measured[size, ours]
        rows[f"`{ours}`, batch of {size}"] = [
            f"{their_time:.0f} ms, {their_memory:.0f} MB",
            f"{our_time:.1f} ms, {our_memory:.0f} MB",
            f"{their_time / our_time:.0f} × faster",
        ]
    about = "CIT uses all triplets, so it is compared with PML's `TripletMarginLoss` over all triplets."
    return f"{table(['', 'PML', 'pml_ext', ''], rows)}\n{about}\n"


def table(headings: list[str], rows: dict[str, list[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *([name, *cells] for name, cells in rows.items())]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


TABLES = {"first run": first_run, "goals": goals, "speed": speed}


def rewrite(text: str) -> str:
    """Replace the tables of a page by the current ones."""
    if unknown := [name for _, name, _, _ in _BLOCK.findall(text) if name not in TABLES]:
        raise SystemExit(f"no table {', '.join(unknown)}; known: {', '.join(TABLES)}")
    return _BLOCK.sub(lambda block: f"{block[1]}\n{TABLES[block[2]]()}\n{block[4]}", text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 if a table differs")
    before = README.read_text(encoding="utf-8")
    after = rewrite(before)
    if parser.parse_args().check:
        return int(before != after)
    README.write_text(after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
