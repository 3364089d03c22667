"""Write the README's tables from measurements; --check tells whether they are up to date.

Each table is between a line `<!-- written by examples/readme_tables.py: NAME -->` and `<!-- end -->`. The data is in
examples/first_run.json (written by examples/first_run.py), examples/evidence/results/guide.json (written by
examples/evidence/run.py) and examples/benchmarks/RESULTS.md.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

HERE = Path(__file__).parent
README = HERE.parent / "README.md"
_BLOCK = re.compile(r"(<!-- written by examples/readme_tables\.py: ([\w ]+) -->\n)(.*?)(<!-- end -->)", re.S)
# name in metrics.json -> heading with an arrow to the better side, and format
COLUMNS: dict[str, tuple[str, Callable[[float], str]]] = {
    "precision_at_1": ("R@1 ↑", lambda value: f"{100 * value:.1f} %"),
    "mean_average_precision_at_r": ("mAP@R ↑", lambda value: f"{100 * value:.1f} %"),
    "opis": ("OPIS × 1000 ↓", lambda value: f"{1000 * value:.1f}"),
}
CLASSIFIERS = ("id + tcm@added", "proxy_nca + tcm@added", "arcface + tcm@added")


def first_run() -> str:
    """Raw pixels, the untrained network, and the networks trained without and with TCM."""
    runs = json.loads((HERE / "first_run.json").read_text(encoding="utf-8"))["runs"]
    *_, last = runs.values()
    found = last["baselines"] | {name: run["results"] for name, run in runs.items()}
    rows = []
    for name, sets in found.items():
        values = [show(sets["Glyphs"][key]) for key, (_, show) in COLUMNS.items()]
        rows.append([name, *values])
    return table(["", *(heading for heading, _ in COLUMNS.values())], rows)


def which_loss() -> str:
    """The loss for each case, with what was measured."""
    measured = json.loads((HERE / "evidence" / "results" / "guide.json").read_text(encoding="utf-8"))
    losses, averages, normalised = (measured[name] for name in ("losses", "averages", "normalised"))
    lower, higher = normalised["opis"], normalised["tar"]
    with_tcm = sorted(opis(losses[name]) for name in CLASSIFIERS)
    start, tcm, triplet_term = losses["ms"], averages["id + tcm"], averages["id + triplet"]
    rows = [
        [
            "no loss yet",
            "PML's `MultiSimilarityLoss` with its miner",
            f"OPIS {opis(start):.1f} × 10⁻³; {accuracy(start)}",
        ],
        [
            "any loss, and one threshold for all classes",
            "`CohortNormalization`, its cohort training samples and other identities",
            f"OPIS {lower[0]} to {lower[-1]} % lower; TAR at FAR 0.1 % {higher[0]} to {higher[-1]} points higher",
        ],
        [
            "an identity loss (normalised softmax)",
            "`TCMLoss` or PML's triplet loss beside it, both tuned",
            f"OPIS {-tcm['opis']['mean']:.0f} and {-triplet_term['opis']['mean']:.0f} % lower, mAP@R "
            f"{tcm['map_at_r']['mean']:.1f} and {triplet_term['map_at_r']['mean']:.1f} points higher; OPIS decided on "
            f"{tcm['opis']['better']} of {tcm['opis']['of']} sets each",
        ],
        [
            "a tuned classification loss",
            "`TCMRegularizer(loss)`, margins tuned",
            f"OPIS {-averages['TCM']['opis']['mean']:.0f} % lower, but still {with_tcm[0]:.1f} to "
            f"{with_tcm[-1]:.1f} × 10⁻³",
        ],
    ]
    triplet = losses["triplet@0.05"]
    about = (
        "Means over five image sets, for linear layers on frozen features. PML's `TripletMarginLoss()` has "
        f"OPIS {opis(triplet):.1f} × 10⁻³ but only {accuracy(triplet)}. The cohort holds no judged identity; its "
        "row is of three seeds, the others of five."
    )
    return f"{table(['you have', 'use', 'measured'], rows)}\n{about}\n"


def opis(means: Mapping[str, float]) -> float:
    return 1000 * means["opis"]


def accuracy(means: Mapping[str, float]) -> str:
    return f"mAP@R {100 * means['map_at_r']:.1f} %"


def speed() -> str:
    """The time of a step with PML's losses and with ours, and the machine."""
    text = (HERE / "benchmarks" / "RESULTS.md").read_text(encoding="utf-8")
    text = text.partition("## Beside PML, at a batch of 256\n")[2].partition("\n## ")[0]
    row = r"^\| \w+ \| (.+?) \| ([\d.]+) ms \|"
    took = {name: f"{float(f'{float(ms):.2g}'):g} ms" for name, ms in re.findall(row, text, re.M)}
    machine = re.findall(r"^Machine: (.+)$", text, re.M)[0]
    return (
        f"- `TCMLoss` {took['TCMLoss']}; PML's `ThresholdConsistentMarginLoss` "
        f"{took['PML ThresholdConsistentMarginLoss']}, `ContrastiveLoss` on cosines "
        f"{took['PML ContrastiveLoss on cosines']}.\n"
        f"- `CITLoss` {took['CITLoss(gamma=1)']}; PML's `TripletMarginLoss` with all triplets, a different loss, "
        f"{took['PML TripletMarginLoss(all)']}.\n\n"
        f"One step on 256 embeddings of 512 numbers: {machine.replace('pytorch-metric-learning', 'PML')}.\n"
    )


def table(headings: list[str], rows: list[list[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


TABLES = {"first run": first_run, "which loss": which_loss, "speed": speed}


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
