"""Write the README's tables and measured sentences; --check tells whether they are up to date.

Each is between a line `<!-- written by examples/tools/readme_tables.py: NAME -->` and `<!-- end -->`. The data is
in examples/evidence/results (guide.json, by run.py; whole_networks.csv and first_run.json, by whole.py; fine_tuned.csv,
by fine_tuned.py) and in
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
NETWORKS = ("glyphs", "omniglot")  # trained from scratch
FINE_TUNED = ("omniglot", "emoji", "grocery")
# term next to an identity loss -> as the table shows it
TERMS = {
    "triplet": "PML's `TripletMarginLoss`",
    "contrastive": "PML's `ContrastiveLoss` on cosines",
    "tcm": "`TCMLoss`",
    "cit": "`CITLoss`",
}
DECIDED = ("holds", "reversed")
# name of the paper's page -> title, source, class, what it changes
PAPERS = {
    "CIT": (
        "Triplet similarity learning on concordance constraint (CIT)",
        "anonymous, under review",
        "[`CITLoss`](examples/guides/LOSSES.md#cit-next-to-an-identity-loss)",
        "all triplets of a batch, without a margin",
    ),
    "Discriminative": (
        "A theoretically sound upper bound on the triplet loss",
        "Do et al., [CVPR 2019](https://arxiv.org/abs/1904.08720)",
        "[`DiscriminativeLoss`](examples/guides/LOSSES.md)",
        "pulls samples to fixed class centroids; cost linear in the batch",
    ),
    "TCM": (
        "Threshold-consistent margin loss (TCM)",
        "Zhang et al., [ICLR 2024](https://arxiv.org/abs/2307.04047)",
        "[`TCMLoss`, `TCMRegularizer`](examples/guides/LOSSES.md#tcm), [`OPIS`](examples/guides/OPIS.md)",
        "aims at one threshold for all classes",
    ),
    "LoOp": (
        "LoOp: looking for optimal hard negative embeddings",
        "Vasudeva et al., [ICCV 2021](https://arxiv.org/abs/2108.09335)",
        "[`LoOp`, `LoOpMiner`](examples/guides/LOSSES.md#loop-around-your-own-loss)",
        "hard negatives between samples, around any loss on pairs or triplets",
    ),
    "MS": (
        "Multi-similarity loss with general pair weighting",
        "Wang et al., [CVPR 2019](https://arxiv.org/abs/1904.06627)",
        "[`PairWeightingLoss`](examples/guides/LOSSES.md#inspect-which-pairs-a-loss-uses)",
        "a pair loss from a weight function",
    ),
}


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
    """The untrained network, and the networks that the configs train: means over seeds."""
    runs = json.loads((RESULTS / "first_run.json").read_text(encoding="utf-8"))["runs"]
    rows = [["random weights", "", *means(runs["untrained"])]]
    for config, losses in FIRST_RUN.items():
        rows.append([losses, f"`Glyphs/{config}.yml`", *means(runs[config])])
    seeds = len(runs["untrained"]["precision_at_1"])
    spreads = [100 * stdev(run[metric]) for run in runs.values() for metric in COLUMNS]
    headings = ["losses", "config", *(f"{heading}, %" for heading in COLUMNS.values())]
    about = f"Means over {seeds} seeds; standard deviations {min(spreads):.1f} to {max(spreads):.1f}."
    return f"{table(headings, rows)}\n{about}\n"


def means(by_metric: Mapping[str, list[float]]) -> list[str]:
    return [f"{100 * mean(by_metric[metric]):.1f}" for metric in COLUMNS]


def papers() -> str:
    """The five papers: class, what it changes, and what was measured."""
    averages = json.loads((RESULTS / "guide.json").read_text(encoding="utf-8"))["averages"]
    loop = [change["map_at_r"] for name, change in averages.items() if name.startswith("LoOp")]
    if any(change["better"] or change["worse"] for change in loop):
        raise SystemExit("README says that LoOp changed nothing decidedly; the results say otherwise")
    discriminative = averages["Discriminative"]["map_at_r"]["mean"]
    alone = [-float(row["value"]) for row in differences("whole_networks", "triplet", "cit") if row["set"] in NETWORKS]
    verdicts = {
        "CIT": f"[below](#next-to-an-identity-loss); alone {min(alone):.0f} to {max(alone):.0f} points less than a "
        "triplet loss, in networks",
        "Discriminative": f"{discriminative:+.1f} points against a cross-entropy, as layers",
        "TCM": "[below](#next-to-an-identity-loss); alone "
        f"{fine_tuned('triplet', 'tcm')} points against a triplet loss, fine-tuned",
        "LoOp": f"no decided change in {sum(change['of'] for change in loop)} comparisons with its loss, as layers; "
        f"{fine_tuned('multi_similarity', 'loop_multi_similarity@all')} points around MultiSimilarity, fine-tuned",
        "MS": "with MultiSimilarity's weights it is that loss",
    }
    rows = []
    for name, (title, source, classes, change) in PAPERS.items():
        rows.append([f"[{title}](examples/papers/{name}.md), {source}", classes, change, verdicts[name]])
    return table(["paper", "class", "what it changes", "measured, mAP@R"], rows)


def terms() -> str:
    """What a term next to an identity loss changes, in points of mAP@R; bold if decided."""
    averages = json.loads((RESULTS / "guide.json").read_text(encoding="utf-8"))["averages"]
    studies = [("fine_tuned", f"fine-tuned, {name}", name) for name in FINE_TUNED]
    studies += [("whole_networks", f"from scratch, {name}", name) for name in NETWORKS]
    rows = []
    for term, shown in TERMS.items():
        cells = []
        for study, _, set_name in studies:
            base, method = ("ce", f"ce_{term}") if study == "whole_networks" else ("softmax", f"softmax + {term}")
            rows_of_set = [row for row in differences(study, base, method) if row["set"] == set_name]
            cells.append("".join(in_bold(float(row["value"]), row["verdict"]) for row in rows_of_set) or "–")
        of_layers = averages[f"id + {term}"]["map_at_r"]
        rows.append([shown, *cells, in_bold(of_layers["mean"], of_layers["verdict"])])
    return table(["added loss", *(heading for _, heading, _ in studies), "layers, mean of 5 sets"], rows)


def differences(study: str, base: str, method: str) -> list[dict[str, str]]:
    """A study's rows of a method's change of mAP@R, one for each set."""
    with (RESULTS / f"{study}.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    wanted = {"method": method, "base": base, "measure": "map_at_r"}
    return [row for row in rows if wanted.items() <= row.items()]


def fine_tuned(base: str, method: str) -> str:
    """A method's change of mAP@R in fine-tuned networks, on each set."""
    return ", ".join(in_bold(float(row["value"]), row["verdict"]) for row in differences("fine_tuned", base, method))


def in_bold(points: float, verdict: str) -> str:
    return f"**{points:+.1f}**" if verdict in DECIDED else f"{points:+.1f}"


def cohorts() -> str:
    """What scores normalised by a cohort change."""
    changes = json.loads((RESULTS / "guide.json").read_text(encoding="utf-8"))["normalised"]
    of_layers, of_networks = changes["opis"], [-change for change in changes["networks"]["opis"]]
    return (
        "Scores [normalised by a cohort](examples/guides/NORMALISED_SCORES.md) lower OPIS by "
        f"{min(of_layers)} to {max(of_layers)} % in layers and by {min(of_networks)} to {max(of_networks)} % in "
        "networks; the TAR is undecided in networks.\n"
    )


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
    return "".join(f"|{'|'.join(line)}|\n" for line in lines)


TABLES = {"first run": first_run, "papers": papers, "terms": terms, "cohorts": cohorts, "speed": speed}


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
