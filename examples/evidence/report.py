"""Writes EVIDENCE.md and its figures from the stored results."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import cost
import numpy as np
import over_training
import torch
from check import TOLERANCES, differing, off_by
from claims import Claim, Comparison
from controls import FROZEN, UNTRAINED, kept_controls
from guide import write_guide
from image_sets import COUNTED
from methods import FINALISTS, HEADLINES, METHODS, SPLITS, TRIALS
from picture import accuracy_and_opis
from scipy.stats import spearmanr
from statistics_of_pairs import HEADINGS, HIGHER, HOLDS, KEPT, LEVEL, LOWER, OPEN, REVERSED, SAME, Difference
from store import Store, split_of
from tested import PRIOR, TWICE, Tested
from verdicts import Verdicts

from pml_ext._files import write_atomically

SCALES = {"r1": 100, "map_at_r": 100, "opis": 1000, "epsilon_opis": 1000}
SAME_DIGITS = 1e-5
ARROWS = {LOWER: "↓", HIGHER: "↑", KEPT: "≥", SAME: "≈"}


def write_report(folder: Path, store: Store, claims: Sequence[Claim], sets: Sequence[str]) -> None:
    """Write EVIDENCE.md and figures/ for the sets and methods that have results."""
    results = Tested(store)
    sets = [name for name in sets if any(of == name for of, _ in results.tests)]
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    verdicts = Verdicts(results, claims, sets)
    lines = [
        *_about(results, claims, sets),
        *_sizes(folder / "results", sets),
        *_summary(verdicts, claims, sets),
        *_tuning(verdicts, sets),
    ]
    for number, claim in enumerate(claims, 1):
        lines += _of_claim(number, claim, verdicts, sets)
    lines += ["## Every method", "", *_utility(results, sets)]
    for set_name in sets:
        controls = kept_controls(folder / "results", set_name)
        lines += _of_set(set_name, results, controls)
        picture = folder / "figures" / f"accuracy_and_opis_{set_name}.png"
        accuracy_and_opis(set_name, results, controls, picture)
        lines += [f"![mAP@R and OPIS of the methods on {set_name}](figures/{picture.name})", ""]
    lines += [*_over_training(folder, sets), *_cost(folder), *_repeated(store, sets), *_second(folder)]
    write_atomically(folder / "EVIDENCE.md", "\n".join(lines))
    write_guide(folder, verdicts, sets)


def _about(results: Tested, claims: Sequence[Claim], sets: Sequence[str]) -> list[str]:
    two_sided = [
        str(number)
        for number, claim in enumerate(claims, 1)
        if any(way == SAME for c in claim.comparisons for _, way in c.expected)
    ]
    return [
        "# The papers' claims, tested",
        "",
        "`python examples/evidence/run.py` writes this page; the data is in `results/`. Each loss trains one linear "
        f"layer on frozen features of an ImageNet network. Every method had {TRIALS} trials, drawn from its grid in "
        "`methods.py` (smaller grids are searched exhaustively), plus more if the best was at an end of an axis, "
        "judged by mAP@R on validation classes. It was then trained on all training classes with five seeds and "
        "tested. R@1 and mAP@R do not count matches from the query's camera, in tests and on validation classes; OPIS "
        "and utility are of all pairs. Differences are paired: the same seeds, and, but for other batch sizes and "
        "dimensions, the same batches and initial weights. Intervals are 95 %, by Student's t over seeds and test "
        "classes as crossed random effects and over tunings. R@1 and mAP@R in points; OPIS × 1000, and its differences "
        "as ratios in %, computed as logarithms. Differences weight each test class equally; the values of a method "
        "(“Every method”, figures, trials) weight each query equally. OPIS weights classes equally in both. "
        "Utility is its mean over test classes and the distances of OPIS, in %: 100 is without errors.",
        "",
        "A claim of lower (↓) or higher (↑) values holds if the interval at the level of “Tuning” is on that side of "
        "0, and is reversed if it is on the other side. “≥” holds if the interval excludes a loss of more than a "
        "point, “≈” if it also excludes a gain of more than a point; they are reversed if the interval lies beyond "
        "that point. †: chosen over three validation splits, and compared with a method that was chosen over one.",
        "",
        "Decided after test figures were seen: the choice over three splits and for which methods; repeated tuning; "
        "the ends of axes that `methods.py` calls farther; the methods `@added`, `@weighted` and `triplet_random`; the "
        f"set fruits, in grey and in colour; to read claims {', '.join(two_sided[:-1])} and {two_sided[-1]} in both "
        f"directions. So {results.replaced} of the {len(results.tests)} choices replace earlier ones that had been "
        "tested.",
        "",
        "[WHICH_LOSS.md](WHICH_LOSS.md) recommends losses.",
        "",
        f"{len(results.store.found)} runs on {', '.join(sets)}: {results.hours():.1f} hours of processor time; this "
        f"page was written with torch {torch.__version__}.",
        "",
    ]


def _sizes(results: Path, sets: Sequence[str]) -> list[str]:
    lines = ["| set | training classes | images | test classes | images |", "|---|---|---|---|---|"]
    for set_name in sets:
        if sizes := kept_controls(results, set_name).get("sizes"):
            lines.append(f"| {set_name} | {' | '.join(map(str, (*sizes['training'], *sizes['test'])))} |")
    return [*lines, ""] if len(lines) > 2 else []


def _over_training(folder: Path, sets: Sequence[str]) -> list[str]:
    lines = []
    for set_name in sets:
        kept = folder / "results" / f"over_training_{set_name}.json"
        if kept.is_file():
            looks = over_training.kept_looks(kept)
            picture = folder / "figures" / f"over_training_{set_name}.png"
            over_training.picture(set_name, looks, picture)
            lines += [f"### {set_name}", "", *over_training.table(looks)]
            lines += [f"![Curves over training on {set_name}](figures/{picture.name})", ""]
    if not lines:
        return []
    return [
        "## Over training",
        "",
        "Trained on the training classes without the validation classes, with the settings that validation chose; "
        "γ = 0.5 and margin 0 use the learning rate chosen for γ = 1 and for the best margin. Seconds are on one core "
        "with other work running. The last column is Lemma 3.1's gap, the discriminative loss minus the mean "
        "triplet term.",
        "",
        *lines,
    ]


def _cost(folder: Path) -> list[str]:
    found = cost.kept_cost(folder / "results" / "cost.json")
    if not found:
        return []
    about = "Forward and backward pass of the loss only, 128 dimensions, one thread, all in one run."
    return ["## Cost per step", "", about, "", *cost.table(found)]


def _second(folder: Path) -> list[str]:
    kept = folder / "second_implementation.md"
    if not kept.is_file():
        return []
    text = kept.read_text(encoding="utf-8")
    return [
        "## Second implementation",
        "",
        "`python examples/evidence/second_implementation.py` writes this table.",
        "",
        text,
    ]


def _repeated(store: Store, sets: Sequence[str]) -> list[str]:
    """How many stored test runs were repeated, and how far they differ from what is stored."""
    tests = [result for result in store.found.values() if split_of(result["stage"]) is None]
    rows = []
    for set_name in sets:
        of_set = [result for result in tests if result["set"] == set_name]
        again = [result for result in of_set if "repeat" in result]
        if again:
            off = {name: max(off_by(result, name) for result in again) for name in HEADINGS}
            same = sum(all(off_by(result, name) < SAME_DIGITS for name in HEADINGS) for result in again)
            agree = sum(not differing(result) for result in again)
            cells = [f"{100 * value:.2f}" for value in off.values()]
            rows.append(f"| {set_name} | {len(of_set)} | {len(again)} | {agree} | {same} | {' | '.join(cells)} |")
    if not rows:
        return []
    return [
        "## Repeated runs",
        "",
        "`python examples/evidence/run.py --check SHARE` trains and tests stored test runs anew. They agree if R@1 and "
        f"mAP@R differ by at most {100 * TOLERANCES['r1']:.0f} point and OPIS and 10 %-OPIS by at most "
        f"{100 * TOLERANCES['opis']:.0f} %: another CPU rounds differently, which training amplifies. The last columns "
        "have the largest differences, in points, for OPIS in %. The choices of the headline methods and of the figure "
        "were repeated first, then others in random order.",
        "",
        f"| set | test runs | repeated | agree | equal to five digits | {' | '.join(HEADINGS.values())} |",
        f"|---|---|---|---|---|{'---|' * len(HEADINGS)}",
        *rows,
        "",
    ]


def _utility(results: Tested, sets: Sequence[str]) -> list[str]:
    """Whether OPIS and mean utility order methods alike: by Spearman's rank correlation over the methods of a set."""
    cells: dict[str, list[str]] = {"OPIS": [], "mAP@R": [], "methods": []}
    for set_name in sets:
        methods = [method for method in METHODS if (set_name, method) in results.tests]
        means = np.array(
            [[results.values(set_name, of, m).mean() for m in ("mean_utility", "opis", "map_at_r")] for of in methods]
        )
        known = means[~np.isnan(means[:, 0])]
        cells["methods"].append(str(len(known)))
        for name, values in (("OPIS", -known[:, 1]), ("mAP@R", known[:, 2])):
            cells[name].append(f"{spearmanr(known[:, 0], values)[0]:+.2f}" if len(known) > 2 else "–")
    return [
        "Rank correlation of the methods' mean utility with their OPIS (lower is better) and their mAP@R; +1: the same "
        "order.",
        "",
        f"| | {' | '.join(sets)} |",
        f"|---|{'---|' * len(sets)}",
        *(f"| {name} | {' | '.join(row)} |" for name, row in cells.items()),
        "",
    ]


def _tuning(verdicts: Verdicts, sets: Sequence[str]) -> list[str]:
    """How the headline methods were tuned, the spread of tuning, and the number of comparisons."""
    results = verdicts.results
    chosen = {
        method: [name for name in sets if (name, method) in results.tests and results.splits(name, method) == SPLITS]
        for method in HEADLINES
    }
    every = [method for method, of in chosen.items() if of == list(sets)]
    some = [f"{method} ({', '.join(of)})" for method, of in chosen.items() if of and method not in every]
    drawn = [method for method in HEADLINES if METHODS[method].trials(1) != METHODS[method].trials()]
    lines = [
        "## Tuning",
        "",
        f"Chosen over {SPLITS} validation splits, each with another training seed: "
        f"{'; '.join((', '.join(every) + ' on all sets', *some))}. The {FINALISTS} best trials of the first split "
        "were judged on the others too and the best mean was tested; axes were extended until the best was inside or "
        "the end of the longer list in `methods.py` was reached. All other methods were chosen on the first split "
        "alone, from the same axes. The bases of `@added` and `@weighted` are those of the first split, without the "
        "longer axes.",
        "",
        f"They were also tuned on each of the {SPLITS} splits alone, with another seed and, where the grid has more "
        f"than {TRIALS} points, another draw of the trials ({', '.join(drawn)}). The test values of what single "
        "tunings chose differ by the spread of tuning below (standard deviation of three, mean of two seeds). Every "
        "interval of a difference of methods contains its variance for each side that was tuned independently: a "
        f"method's own, moderated towards the mean over methods (as by Smyth 2004, with {PRIOR} degrees of freedom "
        "that we set), or the mean where a method was not tuned repeatedly. A set without repeated tunings takes the "
        "mean of the others. A choice over three splits should spread less.",
        "",
        f"| R@1 / mAP@R, points / OPIS, % | {' | '.join(sets)} |",
        f"|---|{'---|' * len(sets)}",
    ]
    for method in (*HEADLINES, None):
        cells = [_spreads(results, name, method) for name in sets]
        lines.append(f"| {method or 'root of the mean variance'} | {' | '.join(cells)} |")
    controls = {
        (name, measure): difference
        for measure in HEADINGS
        for name in sets
        if name in COUNTED and (difference := results.difference(name, *TWICE, measure)) is not None
    }
    lines += [
        "",
        "A control: `contrastive` and `tcm` (with λ = 1) are the same function of the embeddings, tuned as two methods "
        f"on two grids. Of their {len(controls)} differences {sum(of.p() <= LEVEL for of in controls.values())} have "
        "a 95 % interval that excludes 0. A difference smaller than theirs on the same set is called not decided.",
        "",
        f"| tcm − contrastive | {' | '.join(sets)} |",
        f"|---|{'---|' * len(sets)}",
    ]
    for measure, heading in HEADINGS.items():
        cells = [interval(controls[name, measure]) if (name, measure) in controls else "–" for name in sets]
        lines.append(f"| {heading} | {' | '.join(cells)} |")
    at_end = Counter(
        "headline" if results.splits(*which) == SPLITS else "other"
        for which in results.tests
        if which[0] in sets and which[1] in METHODS and results.at_end(*which)
    )
    total = Counter(
        "headline" if results.splits(*which) == SPLITS else "other"
        for which in results.tests
        if which[0] in sets and which[1] in METHODS
    )
    untrained = [f"{of} on {name}" for name, of in results.tests if results.settings(name, of).get("rate") == 0]
    alone, corrected = verdicts.excluding
    return [
        *lines,
        "",
        f"A chosen value at the last one tried, with more possible beyond: in {at_end['headline']} of "
        f"{total['headline']} choices over {SPLITS} splits and {at_end['other']} of {total['other']} others (marked "
        "* below): these were not tuned until the best was inside. A rate of 0, a layer that is not trained, was "
        f"chosen for {', '.join(untrained) or 'none'}.",
        "",
        f"The claims' and [WHICH_LOSS.md](WHICH_LOSS.md)'s comparisons are one family of {len(verdicts.family)}. "
        f"{alone} of the 95 % intervals exclude what decides (0; for ≥ and ≈ a point); Benjamini and Hochberg's "
        f"procedure keeps {corrected} of them at a false discovery rate of 5 %. Verdicts are read from intervals at "
        f"its level, {100 * verdicts.level:.2f} % instead of 5 %; the tables show 95 % intervals.",
        "",
    ]


def _spreads(results: Tested, set_name: str, method: str | None) -> str:
    """The spread of tuning in each measure, of a method or (None) of all, as a cell of a table."""
    found = [
        results.tuning(set_name, of) if method is None else results.spread_of(set_name, method, of) for of in HEADINGS
    ]
    if None in found:
        return "–"
    return " / ".join(f"{100 * of.variance**0.5:.2f}" for of in found if of is not None)


def _summary(verdicts: Verdicts, claims: Sequence[Claim], sets: Sequence[str]) -> list[str]:
    jointly = [str(number) for number, claim in enumerate(claims, 1) if claim.jointly]
    lines = [
        "## Summary",
        "",
        "Comparisons that hold / are reversed / all; the others are undecided. –: not run. A comparison counts in each "
        f"measure, in claims {', '.join(jointly[:-1])} and {jointly[-1]} once: it holds if each measure does.",
        "",
    ]
    lines += [f"| | claim | {' | '.join(sets)} |", f"|---|---|{'---|' * len(sets)}"]
    for number, claim in enumerate(claims, 1):
        cells = []
        for set_name in sets:
            found = [[judged.verdict for judged in verdicts.of(set_name, c)] for c in claim.comparisons]
            found = [[_of_all(of)] if claim.jointly and of else of for of in found]
            counts = Counter(one for of in found for one in of)
            total = sum(counts.values())
            cells.append(f"{counts[HOLDS]} / {counts[REVERSED]} / {total}" if total else "–")
        lines.append(f"| {number} | {claim.sentence} | {' | '.join(cells)} |")
    return [*lines, ""]


def _of_all(verdicts: Sequence[str]) -> str:
    """The verdict of a claim that is of all measures together."""
    if set(verdicts) == {HOLDS}:
        return HOLDS
    return REVERSED if REVERSED in verdicts else OPEN


def _of_claim(number: int, claim: Claim, verdicts: Verdicts, sets: Sequence[str]) -> list[str]:
    rows = []
    for set_name in sets:
        for comparison in claim.comparisons:
            base, method = (_marked(set_name, name, comparison, verdicts.results) for name in comparison[:2])
            for _, _, measure, direction, difference, judged in verdicts.of(set_name, comparison):
                rows.append(
                    f"| {set_name} | {base} | {method} | {HEADINGS[measure]} {ARROWS[direction]} "
                    f"| {SCALES[measure] * difference.base:.2f} | {interval(difference)} | {judged} |"
                )
    if not rows:
        return []
    return [
        f"## {number}. {claim.sentence}",
        "",
        f"Source: {claim.source}.",
        "",
        "| set | base | method | measure | base's value | difference [95 %] | verdict |",
        "|---|---|---|---|---|---|---|",
        *rows,
        "",
    ]


def _marked(set_name: str, method: str, comparison: Comparison, results: Tested) -> str:
    """The method's name, with a mark if it was chosen over more splits than the one that it is compared with."""
    both = [results.splits(set_name, of) if (set_name, of) in results.tests else 0 for of in comparison[:2]]
    shared = METHODS[comparison.method].on == comparison.base and not comparison.base_anew
    return f"{method} †" if not shared and both[method == comparison.method] > min(both) > 0 else method


def interval(difference: Difference) -> str:
    """The difference and its 95 % interval, as a cell of a table."""
    mean, low, high = (f"{value:+.2f}" for value in difference.shown())
    return f"{mean}{' %' if difference.is_log_ratio else ''} [{low}, {high}]"


def means_and_deviations(runs: Sequence[Mapping[str, float]]) -> list[str]:
    """Mean and deviation of each metric over runs, as cells of a table."""
    cells = []
    for metric, scale in SCALES.items():
        values = scale * np.array([metrics[metric] for metrics in runs])
        cells.append(f"{values.mean():.2f}{f' ± {values.std(ddof=1):.2f}' if len(values) > 1 else ''}")
    return cells


def _mean_utility(runs: Sequence[Mapping[str, float]]) -> str:
    value = 100 * np.mean([metrics.get("mean_utility", np.nan) for metrics in runs])
    return "–" if np.isnan(value) else f"{value:.2f}"


def _of_set(set_name: str, results: Tested, controls: Mapping[str, Any]) -> list[str]:
    lines = [
        f"### {set_name}",
        "",
        "| method | R@1 | mAP@R | OPIS | 10 %-OPIS | utility | trials | splits | settings |",
    ]
    lines.append(f"|{'---|' * 9}")
    for control in (FROZEN, UNTRAINED):
        if control in controls:
            cells = [*means_and_deviations(controls[control]), _mean_utility(controls[control])]
            lines.append(f"| {control} | {' | '.join(cells)} | – | – | – |")
    for method in METHODS:
        if (set_name, method) not in results.tests:
            continue
        runs = [run["metrics"] for run in results.tests[set_name, method]]
        cells = [*means_and_deviations(runs), _mean_utility(runs)]
        at_end = results.at_end(set_name, method)
        shown = ", ".join(
            f"{key} {value}{'*' if key in at_end else ''}" for key, value in results.settings(set_name, method).items()
        )
        counts = f"{results.trials[set_name, method]} | {results.splits(set_name, method)}"
        lines.append(f"| {method} | {' | '.join(cells)} | {counts} | {shown} |")
    return [*lines, ""]
