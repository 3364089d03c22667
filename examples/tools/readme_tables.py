"""Write the README's tables from measurements; --check tells whether they are up to date.

Each table is between a line `<!-- written by examples/tools/readme_tables.py: NAME -->` and `<!-- end -->`. The data is
in examples/evidence/results (guide.json, by run.py; whole_networks.csv and first_run.json, by whole.py) and in
examples/benchmarks/results.csv.
"""

import argparse
import csv
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import mean, stdev

HERE = Path(__file__).parent
EXAMPLES = HERE.parent
README = EXAMPLES.parent / "README.md"
_BLOCK = re.compile(r"(<!-- written by examples/tools/readme_tables\.py: ([\w ]+) -->\n)(.*?)(<!-- end -->)", re.S)
# name in the runner's metrics -> heading
COLUMNS = {"precision_at_1": "R@1", "reid_mean_average_precision": "mAP", "mean_inverse_negative_penalty": "mINP"}
# config of the first run -> its losses
FIRST_RUN = {
    "ce": "cross-entropy",
    "ce_triplet": "+ PML's `TripletMarginLoss`",
    "ce_tcm": "+ `TCMLoss`",
    "ce_cit": "+ `CITLoss`",
}
RESULTS = EXAMPLES / "evidence" / "results"
NEXT_TO = {
    "triplet": "PML's `TripletMarginLoss`",
    "contrastive": "PML's `ContrastiveLoss` on cosines",
    "tcm": "`TCMLoss`",
    "cit": "`CITLoss`",
}
NETWORKS = {"omniglot": "networks, Omniglot", "glyphs": "networks, Glyphs"}
ABOUT = (
    "Changes from the first row, in points and per cent, tuned at equal cost. Linear layers: frozen features, "
    "normalised softmax, 5 seeds. Networks: small, from scratch, cross-entropy, {} seeds. Bold: the 95 % interval "
    "excludes 0; for layers on two sets or more, and reversed on none. Their OPIS is decided only where the identity "
    "loss alone learns little."
)


# end of a section's name in the benchmarks' results -> heading
MACHINES = {", NVIDIA H200": "H200", ", AMD EPYC": "EPYC, one thread", "": "Xeon, one thread"}
# batch, case and method of the benchmarks; the loss as the table shows it
STEPS = (
    ("4,096", "TCM", "TCMLoss", "`TCMLoss`"),
    ("4,096", "TCM", "PML ContrastiveLoss on cosines", "PML's `ContrastiveLoss` on cosines, the same value"),
    ("256", "TCM", "TCMLoss", "`TCMLoss`"),
    ("256", "TCM", "PML ContrastiveLoss on cosines", "PML's `ContrastiveLoss` on cosines"),
    ("256", "TCM", "PML ThresholdConsistentMarginLoss", "PML's `ThresholdConsistentMarginLoss`"),
    ("256", "CIT", "CITLoss(gamma=1)", "`CITLoss`"),
    ("256", "CIT", "PML TripletMarginLoss(all)", "PML's `TripletMarginLoss`, all triplets"),
)
ABOUT_SPEED = (
    "\nOne step on embeddings of 512 dimensions. The GPU ran older code. "
    "[More losses, memory, and what is slower](examples/benchmarks/RESULTS.md)\n"
)


def first_run() -> str:
    """The untrained network, and the networks that the configs train: mean ± standard deviation over seeds."""
    runs = json.loads((RESULTS / "first_run.json").read_text(encoding="utf-8"))["runs"]
    rows = [["untrained", "", *spreads(runs["untrained"])]]
    for config, losses in FIRST_RUN.items():
        rows.append([losses, f"`{config}.yml`", *spreads(runs[config])])
    seeds = len(runs["untrained"]["precision_at_1"])
    headings = ["losses", "config", *(f"{heading}, %" for heading in COLUMNS.values())]
    return f"{table(headings, rows)}\nMean ± standard deviation over {seeds} seeds.\n"


def spreads(by_metric: Mapping[str, list[float]]) -> list[str]:
    values = [[100 * value for value in by_metric[name]] for name in COLUMNS]
    return [f"{mean(of_seeds):.1f} ± {stdev(of_seeds):.1f}" for of_seeds in values]


def which_loss() -> str:
    """What terms next to an identity loss change, and the advice for the other cases."""
    measured = json.loads((RESULTS / "guide.json").read_text(encoding="utf-8"))
    losses, averages, normalised = (measured[name] for name in ("losses", "averages", "normalised"))
    networks = networks_next_to_identity()
    heads = losses["id"]
    rows = [["identity loss alone", *(f"{100 * heads['map_at_r']:.1f} % / {opis(heads):.1f}", *networks["ce"])]]
    for term, name in NEXT_TO.items():
        change = averages[f"id + {term}"]
        of_heads = f"{signed(change, 'map_at_r')} / {signed(change, 'opis')}"
        rows.append([f"+ {name}", of_heads, *networks[f"ce_{term}"]])
    headings = ["mAP@R / OPIS × 1000", "linear layers, 5 sets", *NETWORKS.values()]
    lower, higher, true, of_cosines = (normalised[name] for name in ("opis", "tar", "far", "far_of_cosines"))
    of_networks = normalised["networks"]
    other = [
        [
            "no loss yet",
            "PML's `MultiSimilarityLoss` with its miner",
            f"OPIS {opis(losses['ms']):.1f} × 10⁻³; {accuracy(losses['ms'])}",
        ],
        [
            "any loss, and one threshold for all classes",
            "`CohortNormalization`; cohort: training samples and identities that are never judged",
            f"linear layers: OPIS {lower[0]} to {lower[-1]} % lower, TAR at FAR 0.1 % {higher[0]} to {higher[-1]} "
            f"points higher (decided in {normalised['tar_better']} of {normalised['combinations']}, lower in "
            f"{normalised['tar_worse']}); strangers' FAR {true[0]:.2f} to {true[-1]:.2f} %, of cosines "
            f"{of_cosines[0]:.2f} to {of_cosines[-1]:.2f} % ({normalised['seeds']} seeds); networks, Glyphs: OPIS "
            f"{of_networks['opis'][0]:+d} to {of_networks['opis'][-1]:+d} %, TAR {of_networks['tar'][0]:+.1f} to "
            f"{of_networks['tar'][-1]:+.1f} points",
        ],
    ]
    seeds = json.loads((RESULTS / "first_run.json").read_text(encoding="utf-8"))["seeds"]
    about = ABOUT.format(" and ".join(sorted({str(seeds[name]) for name in NETWORKS})))
    return f"{table(headings, rows)}\n{about}\n\n{table(['you have', 'use', 'measured'], other)}"


def signed(change: Mapping[str, Mapping[str, float]], measure: str) -> str:
    """A mean change, bold where it is decided on at least two sets, all in the same direction."""
    found = change[measure]
    text = f"{found['mean']:+.1f}" if measure == "map_at_r" else f"{found['mean']:+.0f} %"
    is_decided = max(found["better"], found["worse"]) >= 2 and min(found["better"], found["worse"]) == 0
    return f"**{text}**" if is_decided else text


def networks_next_to_identity() -> dict[str, list[str]]:
    """Values and changes of mAP@R and OPIS by method, a cell for each set; bold where the interval excludes 0."""
    with (RESULTS / "whole_networks.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    cells: dict[str, list[str]] = {}
    for method in ("ce", *(f"ce_{term}" for term in NEXT_TO)):
        for name in NETWORKS:
            base = "" if method == "ce" else "ce"
            wanted = {"set": name, "method": method, "base": base}
            by_measure = {row["measure"]: row for row in rows if wanted.items() <= row.items()}
            cells.setdefault(method, []).append(" / ".join(cell(by_measure[m]) for m in ("map_at_r", "opis")))
    return cells


def cell(row: Mapping[str, str]) -> str:
    value, low, high = (float(row[name]) for name in ("value", "low", "high"))
    if not row["base"]:
        return f"{value:.1f} %" if row["measure"] == "map_at_r" else f"{value:.1f}"
    text = f"{value:+.1f}" if row["measure"] == "map_at_r" else f"{value:+.0f} %"
    return f"**{text}**" if low * high > 0 else text


def opis(means: Mapping[str, float]) -> float:
    return 1000 * means["opis"]


def accuracy(means: Mapping[str, float]) -> str:
    return f"mAP@R {100 * means['map_at_r']:.1f} %"


def speed() -> str:
    """Times of a step with our losses and with PML's, on each machine."""
    with (EXAMPLES / "benchmarks" / "results.csv").open(encoding="utf-8", newline="") as file:
        steps = [row for row in csv.reader(file) if row[0].startswith("losses: ") and row[2] == "time"]
    times = {(section, method): rounded(time) for section, method, _, time in steps}
    rows = []
    for size, case, method, shown in STEPS:
        sections = (f"losses: {case}{machine}" for machine in MACHINES)
        rows.append([size, shown, *(times.get((section, f"{size} × 512 × 4, {method}"), "–") for section in sections)])
    return table(["batch", "loss", *MACHINES.values()], rows) + ABOUT_SPEED


def rounded(time: str) -> str:
    """A time with two digits; – stays."""
    if time == "–":
        return time
    two_digits = f"{float(time.removesuffix(' ms').replace(',', '')):.2g}"
    return f"{float(two_digits):,g} ms"


def table(headings: list[str], rows: list[list[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


TABLES = {"first run": first_run, "which loss": which_loss, "speed": speed}


def rewrite(text: str) -> str:
    """Replace the tables of a page by the current ones."""
    if unknown := [name for _, name, _, _ in _BLOCK.findall(text) if name not in TABLES]:
        raise SystemExit(f"no table {', '.join(unknown)}; known: {', '.join(TABLES)}")
    return _BLOCK.sub(lambda block: f"{block[1]}\n{TABLES[block[2]]()}\n{block[4]}", text)


def write() -> None:
    README.write_text(rewrite(README.read_text(encoding="utf-8")), encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 if a table differs")
    if parser.parse_args().check:
        page = README.read_text(encoding="utf-8")
        return int(page != rewrite(page))
    write()
    return 0


if __name__ == "__main__":
    sys.exit(main())
