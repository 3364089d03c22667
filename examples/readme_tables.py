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
    rows = [[name, *(show(sets["Glyphs"][key]) for key, (_, show) in COLUMNS.items())] for name, sets in found.items()]
    about = "On one thread; more threads change the last digits."
    return f"{table(['', *(heading for heading, _ in COLUMNS.values())], rows)}\n{about}\n"


def goals() -> str:
    """The gain of each loss, all tuned by one rule: a row for each comparison."""
    found = json.loads((HERE / "evidence" / "results" / "guide.json").read_text(encoding="utf-8"))
    rows = [[row["loss"], *gain] for row in found.values() for gain in row["gains"]]
    about = (
        "In brackets: 95 % intervals for these sets, and with these as a sample of any. OPIS is relative to the base's "
        "(lower is better), mAP@R in points (higher is better); cost is the time added to a step with a batch of 80, "
        "where it was measured."
    )
    return table(["loss", "compared", "change", "cost"], rows) + f"\n{about}\n"


def speed() -> str:
    """Time and memory of a step with PML's loss and with ours, from the last run of the benchmark."""
    text = (HERE / "benchmarks" / "RESULTS.md").read_text(encoding="utf-8")
    row = r"^\| (\d+) \| (.+?) \| ([\d.]+) ms \| \S+ \| ([\d.]+) MB \|$"
    measured = {(int(size), name): (float(ms), float(mb)) for size, name, ms, mb in re.findall(row, text, re.M)}
    rows = []
    for size, theirs, ours in COMPARED:
        (their_time, their_memory), (our_time, our_memory) = measured[size, theirs], measured[size, ours]
        name = re.sub(r"^PML (\w+).*", r"\1", theirs)
        rows.append([
            f"{size}", f"`{name}`: {their_time:.0f} ms, {their_memory:.0f} MB",
            f"`{ours}`: {our_time:.1f} ms, {our_memory:.0f} MB", f"{their_time / our_time:.0f} × faster",
        ])  # fmt: skip
    about = (
        "`TCMLoss` gives the same value as the loss beside it. `CITLoss` is another loss over the same triplets: PML's "
        "`TripletMarginLoss` without a miner lists all triplets of the batch, CIT adds them up without a list. With a "
        "miner that picks a few triplets, PML's is faster than shown."
    )
    return f"{table(['batch', 'PML', 'pml_ext', ''], rows)}\n{about}\n"


def table(headings: list[str], rows: list[list[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
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
