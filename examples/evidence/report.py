"""Writes EVIDENCE.md and its figures from the stored results."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import cost
import over_training
import torch
from claims import Claim, Comparison
from guide import write_guide
from methods import METHODS, TRIALS
from picture import accuracy_and_opis
from statistics_of_pairs import HEADINGS, HIGHER, HOLDS, KEPT, LOWER, REVERSED, SAME, Difference, verdict
from store import Store
from tested import Tested

from pml_ext._files import write_atomically

SCALES = {"r1": 100, "map_at_r": 100, "opis": 1000, "epsilon_opis": 1000}
ARROWS = {LOWER: "↓", HIGHER: "↑", KEPT: "≥", SAME: "≈"}


def write_report(folder: Path, store: Store, claims: Sequence[Claim], sets: Sequence[str]) -> None:
    """Write EVIDENCE.md and figures/ for the sets and methods that have results."""
    results = Tested(store)
    sets = [name for name in sets if any(of == name for of, _ in results.tests)]
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    lines = [*_about(results, sets), *_summary(results, claims, sets)]
    for number, claim in enumerate(claims, 1):
        lines += _of_claim(number, claim, results, sets)
    lines += ["## Every method", ""]
    for set_name in sets:
        lines += _of_set(set_name, results)
        picture = folder / "figures" / f"accuracy_and_opis_{set_name}.png"
        accuracy_and_opis(set_name, results, picture)
        lines += [f"![mAP@R and OPIS of the methods on {set_name}](figures/{picture.name})", ""]
    lines += [*_over_training(folder, sets), *_cost(folder), *_second(folder)]
    write_atomically(folder / "EVIDENCE.md", "\n".join(lines))
    write_guide(folder, results, sets)


def _about(results: Tested, sets: Sequence[str]) -> list[str]:
    runs = sum(results.trials.values()) + sum(map(len, results.tests.values()))
    return [
        "# The papers' claims, tested",
        "",
        "`python examples/evidence/run.py` writes this page; the data is in `results/`. Each loss trains one linear "
        f"layer on frozen features of an ImageNet network. Every method had {TRIALS} trials, drawn from its grid in "
        "`methods.py` (smaller grids are searched exhaustively), plus more if the best was at an end of an axis, "
        "judged by mAP@R on validation classes. It was then trained on all training classes with five seeds and tested "
        "once. Differences are paired (same seeds, batches and initial weights); intervals are 95 %, over seeds and "
        "test classes. R@1 and mAP@R in points, OPIS × 1000. Settings were chosen once, so the intervals do not "
        "include the randomness of tuning.",
        "",
        "A claim of lower (↓) or higher (↑) values holds if the interval is on that side of 0, and is reversed if it "
        "is on the other side. “≥” holds if the interval excludes a loss of more than a point, “≈” if it also excludes "
        "a gain of more than a point; they are reversed if it excludes 0 but not these. “Detectable” is the smallest "
        "difference that the comparison could detect. We decided to read claims 11, 21 and 24 in both directions after "
        "seeing their figures.",
        "",
        "[WHICH_LOSS.md](WHICH_LOSS.md) recommends losses.",
        "",
        f"{runs} runs on {', '.join(sets)}: {results.hours():.1f} hours of processor time; torch {torch.__version__}.",
        "",
    ]


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


def _judged(results: Tested, claim: Claim, set_name: str) -> list[tuple[Comparison, str, str, Difference, str]]:
    found = []
    for comparison in claim.comparisons:
        for metric, direction in comparison.expected:
            difference = results.difference(set_name, comparison.base, comparison.method, metric)
            if difference is not None:
                judged = verdict(difference, direction, metric)
                found.append((comparison, metric, direction, difference, judged))
    return found


def _summary(results: Tested, claims: Sequence[Claim], sets: Sequence[str]) -> list[str]:
    lines = [
        "## Summary",
        "",
        "Comparisons that hold / are reversed / all; the others are undecided. –: not run.",
        "",
    ]
    lines += [f"| | claim | {' | '.join(sets)} |", f"|---|---|{'---|' * len(sets)}"]
    for number, claim in enumerate(claims, 1):
        cells = []
        for set_name in sets:
            verdicts = Counter(judged for *_, judged in _judged(results, claim, set_name))
            total = sum(verdicts.values())
            cells.append(f"{verdicts[HOLDS]} / {verdicts[REVERSED]} / {total}" if total else "–")
        lines.append(f"| {number} | {claim.sentence} | {' | '.join(cells)} |")
    return [*lines, ""]


def _of_claim(number: int, claim: Claim, results: Tested, sets: Sequence[str]) -> list[str]:
    rows = []
    for set_name in sets:
        for comparison, metric, direction, difference, judged in _judged(results, claim, set_name):
            scale = SCALES[metric]
            values = [f"{scale * value:+.2f}" for value in (difference.mean, difference.low, difference.high)]
            rows.append(
                f"| {set_name} | {comparison.base} | {comparison.method} | {HEADINGS[metric]} {ARROWS[direction]} "
                f"| {scale * difference.base:.2f} | {values[0]} [{values[1]}, {values[2]}] "
                f"| {judged} | {scale * difference.smallest:.2f} |"
            )
    if not rows:
        return []
    return [
        f"## {number}. {claim.sentence}",
        "",
        f"Source: {claim.source}.",
        "",
        "| set | base | method | measure | base's value | difference [95 %] | verdict | detectable |",
        "|---|---|---|---|---|---|---|---|",
        *rows,
        "",
    ]


def means_and_deviations(set_name: str, method: str, results: Tested) -> list[str]:
    """Mean and deviation of each metric over seeds, as cells of a table."""
    cells = []
    for metric, scale in SCALES.items():
        values = scale * results.values(set_name, method, metric)
        cells.append(f"{values.mean():.2f} ± {values.std(ddof=1) if len(values) > 1 else 0:.2f}")
    return cells


def _of_set(set_name: str, results: Tested) -> list[str]:
    lines = [f"### {set_name}", "", "| method | R@1 | mAP@R | OPIS | 10 %-OPIS | trials | settings |"]
    lines.append("|---|---|---|---|---|---|---|")
    for method in METHODS:
        if (set_name, method) not in results.tests:
            continue
        cells = means_and_deviations(set_name, method, results)
        shown = ", ".join(f"{key} {value}" for key, value in results.settings(set_name, method).items())
        lines.append(f"| {method} | {' | '.join(cells)} | {results.trials[set_name, method]} | {shown} |")
    return [*lines, ""]
