"""Writes WHOLE_NETWORKS.md from the stored runs."""

from pathlib import Path

import torch
from normalization_tables import whole_networks
from report import ARROWS, SCALES, interval, means_and_deviations
from statistics_of_pairs import HEADINGS, verdict
from store import Store
from tested import Tested
from whole_grid import ADDED, COMPARISONS, METHODS, SCHEDULES, SETS, TRIAL_SCHEDULE, WHOLE_SCHEDULE

from pml_ext._files import write_atomically


def write_report(folder: Path, whole: Store, heads: Store) -> None:
    """Write WHOLE_NETWORKS.md.

    Args:
        heads: the runs of run.py, for the column of their verdicts.
    """
    results, of_heads = Tested(whole), Tested(heads)
    sets = [name for name in SETS if any(of == name for of, _ in results.tests)]
    lines = [
        "# Do the results carry over to whole networks?",
        "",
        "`python examples/evidence/whole.py` writes this page; the data is in `results/whole/`, the grid in "
        "`whole_grid.py`. The runner trains small convolutional networks from scratch with its configs, on images of "
        f"16×16 pixels. Every method had {len(METHODS['triplet'])} trials with fewer epochs on validation classes, 30 "
        "% of the training classes, judged by mAP@R. The best settings were then trained on all training classes and "
        "tested once. Differences are paired (same seeds); intervals are 95 %, by Student's t over seeds and test "
        "classes, without a correction for their number. R@1 and mAP@R in points, OPIS × 1000 and its differences in "
        "%. The column “heads” has the verdict for linear heads (EVIDENCE.md) in the same "
        "comparison on the same set; –: not run.",
        "",
        "The grid was not extended if the best value was at its end. Trials of about 90 steps favour losses that learn "
        "fast: `discriminative` had hardly started to learn. In `triplet_tcm` and `smoothap_tcm` the base uses the "
        "config's margin or temperature, and TCM's margins and the learning rate are tuned; in `…_added` the base uses "
        "its own best settings and only TCM's margins are tuned. We added these two after seeing Glyphs' other test "
        "figures, because the base of `smoothap_tcm` was not at its best.",
        "",
        "“≥” holds if the interval excludes a loss of more than a point; [EVIDENCE.md](EVIDENCE.md) explains the other "
        "signs.",
        "",
        f"torch {torch.__version__}, one thread per run.",
        "",
    ]
    for set_name in sets:
        lines += [f"## {set_name}", "", *_comparisons(set_name, results, of_heads), *_methods(set_name, results)]
    lines += [*whole_networks(whole.folder, list(SETS)), *_schedules(whole)]
    write_atomically(folder / "WHOLE_NETWORKS.md", "\n".join(lines))


def _comparisons(set_name: str, results: Tested, heads: Tested) -> list[str]:
    rows = []
    for base, method, expected in COMPARISONS:
        for metric, direction in expected:
            difference = results.difference(set_name, base.name, method.name, metric)
            if difference is None:
                continue
            of_head = heads.difference(set_name, base.head, method.head, metric)
            beside = "–"
            if of_head is not None:
                beside = f"{verdict(of_head, direction, metric)} ({of_head.shown()[0]:+.2f})"
            rows.append(
                f"| {base.name} | {method.name} | {HEADINGS[metric]} {ARROWS[direction]} "
                f"| {SCALES[metric] * difference.base:.2f} | {interval(difference)} "
                f"| {verdict(difference, direction, metric)} | {beside} |"
            )
    if not rows:
        return []
    return [
        "| base | method | measure | base's value | difference [95 %] | verdict | heads |",
        "|---|---|---|---|---|---|---|",
        *rows,
        "",
    ]


def _methods(set_name: str, results: Tested) -> list[str]:
    lines = ["| method | R@1 | mAP@R | OPIS | 10 %-OPIS | seeds | settings |", "|---|---|---|---|---|---|---|"]
    for method in (*METHODS, *ADDED):
        if (set_name, method) not in results.tests:
            continue
        cells = means_and_deviations([run["metrics"] for run in results.tests[set_name, method]])
        runs = results.tests[set_name, method]
        chosen = {key: value for key, value in runs[0]["settings"].items() if key not in WHOLE_SCHEDULE[set_name]}
        shown = ", ".join(f"{key} {value}" for key, value in chosen.items())
        lines.append(f"| {method} | {' | '.join(cells)} | {len(runs)} | {shown} |")
    trial = ", ".join(f"{key} {value}" for key, value in TRIAL_SCHEDULE[set_name].items())
    whole = ", ".join(f"{key} {value}" for key, value in WHOLE_SCHEDULE[set_name].items()) or "the config's own"
    return [*lines, "", f"Schedule of the trials: {trial}; of the test runs: {whole}.", ""]


def _schedules(whole: Store) -> list[str]:
    rows = []
    for schedule in SCHEDULES:
        for result in whole.found.values():
            if result["settings"] == schedule:
                shown = ", ".join(f"{key.removeprefix('SOLVER.')} {value}" for key, value in schedule.items())
                cells = [f"{SCALES[key] * result['metrics'][key]:.2f}" for key in HEADINGS]
                rows.append(f"| {shown} | {' | '.join(cells)} |")
    if not rows:
        return []
    return [
        "## The schedule of Glyphs' configs",
        "",
        "`smoothap_tcm.yml` with its defaults on the validation classes, images of 32×32 pixels, one seed. The first "
        "row has the original configs; they now use the row with the best mAP@R, except for the learning rates of the "
        "losses tuned above.",
        "",
        f"| schedule | {' | '.join(HEADINGS.values())} |",
        f"|---|{'---|' * len(HEADINGS)}",
        *rows,
        "",
    ]
