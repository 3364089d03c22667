"""Writes WHOLE_NETWORKS.md from the stored runs."""

from pathlib import Path

import numpy as np
import torch
from claims import CLAIMS, Comparison
from image_sets import SOURCES
from normalization_tables import read_results, whole_networks
from normalized_runs import PLAIN
from report import ARROWS, SCALES, interval, means_and_deviations
from statistics_of_pairs import HEADINGS, verdict
from store import Store
from tested import Result, Tested
from verdicts import Verdicts
from whole_grid import ADDED, COMPARISONS, METHODS, SCHEDULES, SETS, TRIAL_SCHEDULE, WHOLE_SCHEDULE

from pml_ext._files import write_atomically


class Networks(Tested):
    """The tests, with a second run of each seed where whole_normalization.py trained again.

    The two begin with the same weights, so that they count as one: by their mean.
    """

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        found = {name: read_results(self, name) for name in SETS}
        seeds = {which: [run["seed"] for run in runs] for which, runs in self.tests.items()}
        self.again = {of: found[of[0]] for of in seeds if found[of[0]].seeds(of[1]) == seeds[of]}

    def values(self, set_name: str, method: str, metric: str) -> np.ndarray:
        mean: np.ndarray = np.nanmean(self.of_runs(set_name, method, metric), axis=0)
        return mean

    def of_runs(self, set_name: str, method: str, metric: str) -> np.ndarray:
        """(R, S) of R runs of each seed; nan where it was not measured."""
        first, again = super().values(set_name, method, metric), self.again.get((set_name, method))
        if again is None:
            return first[None]
        second = [again.runs[method, run["seed"]]["metrics"]["plain"] for run in self.tests[set_name, method]]
        return np.stack([first, [metrics.get(metric, np.nan) for metrics in second]])

    def by_class(self, results: list[Result], metric: str) -> np.ndarray:
        first, method = super().by_class(results, metric), results[0]["method"]
        if (again := self.again.get((results[0]["set"], method))) is None:
            return first
        second = again.values((method, PLAIN), metric, [run["seed"] for run in results])
        mean: np.ndarray = (first + second) / 2
        return mean


def write_report(folder: Path, whole: Store, heads: Store) -> None:
    """Write WHOLE_NETWORKS.md.

    Args:
        heads: the runs of run.py, for the column of their verdicts.
    """
    results, of_heads = Networks(whole), Verdicts(Tested(heads), CLAIMS, list(SOURCES))
    sets = [name for name in SETS if any(of == name for of, _ in results.tests)]
    lines = [
        "# Do the results carry over to whole networks?",
        "",
        "`python examples/evidence/whole.py` writes this page; the data is in `results/whole/`, the grid in "
        "`whole_grid.py`. The runner trains small convolutional networks from scratch with its configs, on images of "
        f"16×16 pixels. Every method had {len(METHODS['triplet'])} trials with fewer epochs on validation classes, 30 "
        "% of the training classes, judged by mAP@R. The best settings were then trained on all training classes and "
        "tested. R@1 and mAP@R in points, OPIS × 1000 and its differences in %. Intervals are 95 %, by Student's t "
        "over seeds and test classes. Verdicts are read from these, which contain neither the spread of tuning, as "
        "each method was tuned once, nor a correction for their number. The column “heads” has the verdict by the "
        "rules of [EVIDENCE.md](EVIDENCE.md), which allow for both, and the difference, for linear heads in the same "
        "comparison on the same set; –: not run. “≥” holds if the interval excludes a loss of more than a point; "
        "EVIDENCE.md explains the other signs.",
        "",
        *_repeats(results),
        "The grid was not extended if the best value was at its end. Trials of about 90 steps favour losses that "
        "learn fast: `discriminative` had hardly started to learn on Glyphs. In `triplet_tcm` and `smoothap_tcm` the "
        "base uses the config's margin or temperature, and TCM's margins and the learning rate are tuned; in "
        "`…_added` the base uses its own best settings and only TCM's margins are tuned. We added these two after "
        "seeing Glyphs' other test figures, because the base of `smoothap_tcm` was not at its best.",
        "",
        f"torch {torch.__version__}, one thread per run.",
        "",
    ]
    for set_name in sets:
        lines += [f"## {set_name}", "", *_comparisons(set_name, results, of_heads), *_methods(set_name, results)]
    lines += [*whole_networks(results, list(SETS)), *_schedules(whole)]
    write_atomically(folder / "WHOLE_NETWORKS.md", "\n".join(lines))


def _repeats(results: Networks) -> list[str]:
    if not results.again:
        return []
    methods = ", ".join(dict.fromkeys(f"`{method}`" for _, method in results.again))
    apart, pairing = {}, []
    for metric, heading in HEADINGS.items():
        runs = np.stack([results.of_runs(*which, metric) for which in results.again])
        apart[metric] = 100 * np.abs(np.diff(runs, axis=1) / (runs[:, :1] if metric == "opis" else 1)).max()
        of = {which: np.log(results.values(*which, metric)) for which in results.tests}
        compared = [((name, base.name), (name, method.name)) for name in SETS for base, method, _ in COMPARISONS]
        pairs = np.array([[of[base], of[method]] for base, method in compared if {base, method} <= of.keys()])
        ratio = np.var(pairs[:, 1] - pairs[:, 0], axis=1).sum() / np.var(pairs, axis=2).sum()
        pairing.append(f"{ratio:.1f} ({heading})")
    return [
        f"{methods} were trained again with the same settings and seeds for the normalised scores below, whose table "
        "has these runs alone. In between, the sampler of identities was rewritten: initial weights, images and first "
        f"batches are the same, later batches are not. Runs changed by up to {apart['r1']:.1f} points of R@1 and "
        f"{apart['opis']:.0f} % of OPIS. A seed's value is the mean of both (10 %-OPIS: the first run). Pairing base "
        "and method by seed buys next to nothing: over seeds, the variance of their differences is "
        f"{', '.join(pairing)} times the sum of their variances; it would be 1.0 without pairs.",
        "",
    ]


def _comparisons(set_name: str, results: Tested, heads: Verdicts) -> list[str]:
    rows = []
    for base, method, expected in COMPARISONS:
        of_heads = {j.measure: j for j in heads.of(set_name, Comparison(base.head, method.head, expected))}
        for metric, direction in expected:
            difference = results.difference(set_name, base.name, method.name, metric)
            if difference is None:
                continue
            beside = "–"
            if metric in of_heads:
                beside = f"{of_heads[metric].verdict} ({of_heads[metric].difference.shown()[0]:+.2f})"
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
        by_seed = np.stack([results.values(set_name, method, metric) for metric in SCALES], axis=1)
        cells = means_and_deviations([dict(zip(SCALES, of_seed, strict=True)) for of_seed in by_seed])
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
