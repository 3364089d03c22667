"""WHOLE_NETWORKS.md, written from the kept runs and from nothing else."""

from pathlib import Path

import torch
from report import ARROWS, SCALES, means_and_deviations
from statistics_of_pairs import HEADINGS, verdict
from store import Store
from tested import Tested
from whole_grid import ADDED, COMPARISONS, METHODS, SCHEDULES, SETS, TRIAL_SCHEDULE, WHOLE_SCHEDULE

from pml_ext._files import write_atomically


def write_report(folder: Path, whole: Store, heads: Store) -> None:
    """WHOLE_NETWORKS.md in the folder.

    Args:
        heads: the runs of run.py, whose verdicts stand beside.
    """
    results, of_heads = Tested(whole), Tested(heads)
    sets = [name for name in SETS if any(of == name for of, _ in results.tests)]
    lines = [
        "# Whole networks: do the verdicts of the heads carry over?",
        "",
        "Written by `python examples/evidence/whole.py`; the data is in `results/whole/`, the grid in `whole_grid.py`. "
        "Small convolutional networks are trained from scratch by the runner with its configs, on pictures of 16×16 "
        "pixels. Every method had the same number of trials "
        f"({len(METHODS['triplet'])}) of fewer epochs on validation classes, 30 % of the training classes, judged by "
        "mAP@R; then the best settings were trained on all training classes and tested once. Differences are paired "
        "(same seeds); intervals are 95 %, over seeds and test classes. R@1 and mAP@R in points, OPIS × 1000. Beside "
        "each verdict stands that of the heads (EVIDENCE.md) for the same comparison on the same set; a dash: not run.",
        "",
        "The grid was not extended where the best value lay at its end. Trials of about 90 steps favour losses that "
        "learn fast: `discriminative` was still at the start of its training there. In `triplet_tcm` and "
        "`smoothap_tcm` the base has the config's own margin or temperature, and TCM's margins and the rate are "
        "tuned; in `…_added` the base has the settings that were best for it alone, and TCM's margins are tuned. "
        "These two were added after Glyphs' other test figures were seen, since the base of `smoothap_tcm` was not at "
        "its best.",
        "",
        "“≥” holds where the interval excludes a loss of more than a point; the other signs and “least seen” are "
        "those of [EVIDENCE.md](EVIDENCE.md).",
        "",
        f"torch {torch.__version__}, one thread a run.",
        "",
    ]
    for set_name in sets:
        lines += [f"## {set_name}", "", *_comparisons(set_name, results, of_heads), *_methods(set_name, results)]
    lines += _schedules(whole)
    write_atomically(folder / "WHOLE_NETWORKS.md", "\n".join(lines))


def _comparisons(set_name: str, results: Tested, heads: Tested) -> list[str]:
    rows = []
    for base, method, expected in COMPARISONS:
        for metric, direction in expected:
            difference = results.difference(set_name, base.name, method.name, metric)
            if difference is None:
                continue
            scale = SCALES[metric]
            mean, low, high = (f"{scale * value:+.2f}" for value in (difference.mean, difference.low, difference.high))
            of_head = heads.difference(set_name, base.head, method.head, metric)
            beside = "–"
            if of_head is not None:
                beside = f"{verdict(of_head, direction, metric)} ({scale * of_head.mean:+.2f})"
            rows.append(
                f"| {base.name} | {method.name} | {HEADINGS[metric]} {ARROWS[direction]} "
                f"| {scale * difference.base:.2f} | {mean} [{low}, {high}] | {verdict(difference, direction, metric)} "
                f"| {beside} | {scale * difference.smallest:.2f} |"
            )
    if not rows:
        return []
    return [
        "| base | method | measure | base's value | difference [95 %] | verdict | heads | least seen |",
        "|---|---|---|---|---|---|---|---|",
        *rows,
        "",
    ]


def _methods(set_name: str, results: Tested) -> list[str]:
    lines = ["| method | R@1 | mAP@R | OPIS | 10 %-OPIS | seeds | settings |", "|---|---|---|---|---|---|---|"]
    for method in (*METHODS, *ADDED):
        if (set_name, method) not in results.tests:
            continue
        cells = means_and_deviations(set_name, method, results)
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
        "`smoothap_tcm.yml` at its defaults on the validation classes, pictures of 32×32 pixels, one seed. The first "
        "row has the configs as they were; now they are as in the row with the best mAP@R, except for the rates of "
        "the losses tuned above.",
        "",
        f"| schedule | {' | '.join(HEADINGS.values())} |",
        f"|---|{'---|' * len(HEADINGS)}",
        *rows,
        "",
    ]
