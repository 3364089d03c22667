"""Writes EVIDENCE.md, WHICH_LOSS.md and results/*.csv from the stored results."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import cost
import numpy as np
import over_training
from check import TOLERANCES, differing
from claims import Claim
from controls import FROZEN, UNTRAINED, kept_controls
from goals import GOALS
from guide import found, write_guide
from image_sets import COUNTED
from methods import HEADLINES, METHODS, SPLITS, TRIALS
from normalization_tables import normalization_rows
from rows import SCALES, UNITS, Row, of_difference, write_rows
from scipy import stats
from statistics_of_pairs import HEADINGS, HOLDS, OPEN, REVERSED
from store import Store, split_of
from tested import Tested
from verdicts import Verdicts

from pml_ext._files import write_atomically


def write_report(folder: Path, store: Store, claims: Sequence[Claim], sets: Sequence[str]) -> None:
    """Write the pages and tables for the sets and methods that have results."""
    results = Tested(store)
    sets = [name for name in sets if any(of == name for of, _ in results.tests)]
    verdicts = Verdicts(results, claims, sets)
    comparisons = [*_of_claims(verdicts, claims, sets), *_of_goals(verdicts, sets), *normalization_rows(results, sets)]
    write_rows(folder / "results" / "comparisons.csv", comparisons)
    write_rows(folder / "results" / "methods.csv", _methods(folder / "results", results, sets))
    write_rows(folder / "results" / "tunings.csv", _tunings(results, sets))
    write_atomically(folder / "EVIDENCE.md", "\n".join(_page(verdicts, claims, sets)) + "\n")
    write_guide(folder, verdicts, sets)


def _page(verdicts: Verdicts, claims: Sequence[Claim], sets: Sequence[str]) -> list[str]:
    results = verdicts.results
    alone, corrected = verdicts.excluding
    return [
        "# The papers' claims, tested",
        "",
        "Do the five papers' claims hold when every loss is tuned equally? [WHICH_LOSS.md](WHICH_LOSS.md) has the "
        "advice that follows.",
        "",
        "## Method",
        "",
        f"- One linear layer on frozen ImageNet features, on {', '.join(sets)}; {len(results.store.found)} runs, "
        f"{results.hours():.1f} hours of processor time. [Whole networks](WHOLE_NETWORKS.md) were trained on two sets.",
        f"- Every method had {TRIALS} trials (or its whole grid, if smaller), judged by mAP@R on validation classes. "
        f"{len(HEADLINES)} main methods were chosen over {SPLITS} validation splits, the others over one. If the best "
        "value was at the end of its range, the range was extended.",
        "- The chosen settings were trained with five seeds and tested on new classes.",
        "- Differences are paired by seed and class. Their 95 % intervals are Student's t over seeds, test classes and "
        "repeated tunings.",
        f"- {len(verdicts.family)} comparisons are one family. {alone} of their 95 % intervals exclude no effect; "
        f"{corrected} remain at a false discovery rate of 5 % (Benjamini and Hochberg). Only these decide.",
        "- A difference below that of one function tuned twice (`contrastive` and `tcm`) decides nothing.",
        "- “No worse” allows a loss of one point. “Little” means less than one point either way.",
        "",
        f"Decided after test figures were seen: the choice over {SPLITS} splits, repeated tuning, longer ranges, the "
        "methods `@added`, `@weighted` and `triplet_random`, and the set fruits. "
        f"{results.replaced} of {len(results.tests)} choices replace earlier ones that had been tested.",
        "",
        *_verdicts(verdicts, claims, [name for name in sets if name in COUNTED]),
        "## How far to trust it",
        "",
        *_repeated(results.store),
        "- A [second implementation](results/second_implementation.csv) in plain PyTorch agrees in 45 of 48 "
        "differences and 78 of 84 values; 5 % may disagree by chance.",
        "- Frozen features limit what a loss can change. Image sets are small; none is a paper's.",
        "- The bases ArcFace, ProxyNCA and normalised softmax are hardly better than an untrained layer on emoji and "
        "glyphs, where TCM's term does most of the learning.",
        "- The coverage of the [intervals](INTERVALS.md) of reports was checked on synthetic data.",
        "",
        "## Rerun",
        "",
        "```sh",
        "python examples/evidence/run.py --quick     # a trial run in a temporary folder",
        "python examples/evidence/run.py             # everything; can be stopped and continued",
        "python examples/evidence/run.py --check     # repeats a tenth of the stored tests and compares",
        "python examples/evidence/run.py --tables    # writes this page and the tables from the stored runs",
        "```",
        "",
        "All comparisons, settings and tunings are in [results/](results/README.md).",
    ]


def _verdicts(verdicts: Verdicts, claims: Sequence[Claim], sets: Sequence[str]) -> list[str]:
    """The claims in three groups, each with how many of its comparisons hold and are reversed."""
    groups: dict[str, list[str]] = {HOLDS: [], REVERSED: [], OPEN: []}
    for number, claim in enumerate(claims, 1):
        counts = _counts(verdicts, claim, sets)
        if total := sum(counts.values()):
            line = f"|{number}|{claim.sentence}|{counts[HOLDS]}|{counts[REVERSED]}|{total}|"
            groups[_group(counts)].append(line)
    return [
        "## Results",
        "",
        f"Comparisons on {', '.join(sets)}; those that neither hold nor are reversed are undecided.",
        "",
        *_listed("What holds on some set and is reversed on none", groups[HOLDS]),
        *_listed("What does not hold, or is mixed", groups[REVERSED]),
        *_listed("Undecided", groups[OPEN]),
    ]


def _group(counts: Counter[str]) -> str:
    if counts[REVERSED]:
        return REVERSED
    return HOLDS if counts[HOLDS] else OPEN


def _listed(heading: str, lines: list[str]) -> list[str]:
    head = ["|claim||hold|reversed|of|", "|---|---|---|---|---|"]
    return [f"### {heading}", "", *head, *lines, ""] if lines else []


def _counts(verdicts: Verdicts, claim: Claim, sets: Sequence[str]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for set_name in sets:
        for comparison in claim.comparisons:
            judged = [of.verdict for of in verdicts.of(set_name, comparison)]
            if judged:
                counts.update([_jointly(judged)] if claim.jointly else judged)
    return counts


def _jointly(verdicts: Sequence[str]) -> str:
    """The verdict on all measures together."""
    if set(verdicts) == {HOLDS}:
        return HOLDS
    return REVERSED if REVERSED in verdicts else OPEN


def _repeated(store: Store) -> list[str]:
    tests = [result for result in store.found.values() if split_of(result["stage"]) is None]
    again = [result for result in tests if "repeat" in result]
    if not again:
        return []
    agree = sum(not differing(result) for result in again)
    return [
        f"- {len(again)} of {len(tests)} test runs were repeated, partly on another processor. {agree} agree: R@1 and "
        f"mAP@R within {100 * TOLERANCES['r1']:.0f} point, OPIS within {100 * TOLERANCES['opis']:.0f} %."
    ]


def _of_claims(verdicts: Verdicts, claims: Sequence[Claim], sets: Sequence[str]) -> Iterator[Row]:
    for number, claim in enumerate(claims, 1):
        note = f"{claim.source}; jointly" if claim.jointly else claim.source
        for set_name in sets:
            for comparison in claim.comparisons:
                for _, _, measure, direction, difference, judged in verdicts.of(set_name, comparison):
                    yield of_difference(
                        f"claim {number}: {claim.sentence}",
                        set_name,
                        (comparison.base, comparison.method),
                        measure,
                        difference,
                        expected=direction,
                        verdict=judged,
                        note=note,
                    )


def _of_goals(verdicts: Verdicts, sets: Sequence[str]) -> Iterator[Row]:
    for goal in GOALS:
        for group in goal.groups:
            for judged in found(group, goal.measure, verdicts, sets):
                yield of_difference(
                    f"which loss: {goal.goal}",
                    judged.set_name,
                    (judged.comparison.base, judged.comparison.method),
                    judged.measure,
                    judged.difference,
                    expected=judged.direction,
                    verdict=judged.verdict,
                    note=group.words,
                )


def _methods(folder: Path, results: Tested, sets: Sequence[str]) -> Iterator[Row]:
    """Means of every method, its settings and its cost, and the curves over training."""
    for set_name in sets:
        controls = kept_controls(folder, set_name)
        for control in (FROZEN, UNTRAINED):
            if control in controls:
                yield from means("heads", set_name, control, controls[control], "no training")
        for method in METHODS:
            if runs := results.tests.get((set_name, method)):
                note = (
                    f"{json.dumps(results.settings(set_name, method))}; {results.trials[set_name, method]} trials; "
                    f"{results.splits(set_name, method)} splits"
                )
                if at_end := results.at_end(set_name, method):
                    note += f"; at the end of its range: {', '.join(at_end)}"
                yield from means("heads", set_name, method, [run["metrics"] for run in runs], note)
        if (kept := folder / f"over_training_{set_name}.json").is_file():
            yield from over_training.rows(set_name, over_training.kept_looks(kept))
    for method, took in cost.kept_cost(folder / "cost.json").items():
        for batch, milliseconds in took.items():
            yield Row("time of a step", "", method, f"batch of {batch}", "ms", milliseconds)


def means(study: str, set_name: str, method: str, runs: Sequence[dict[str, float]], note: str) -> Iterator[Row]:
    """The mean of each measure over seeds, with its 95 % interval by t; the note is in the first row only."""
    for measure, scale in SCALES.items():
        values = scale * np.array([run.get(measure, np.nan) for run in runs])
        if np.isnan(values).any():
            continue
        half = np.nan
        if len(values) > 1:
            half = stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
        mean = float(values.mean())
        yield Row(study, set_name, method, measure, UNITS[measure], mean, mean - half, mean + half, note=note)
        note = ""


def _tunings(results: Tested, sets: Sequence[str]) -> Iterator[Row]:
    """Standard deviation of test values over single tunings, of each main method."""
    for set_name in sets:
        for method in HEADLINES:
            for measure in HEADINGS:
                if spread := results.spread_of(set_name, method, measure):
                    unit = "%" if measure == "opis" else "points"
                    deviation = 100 * spread.variance**0.5
                    yield Row("spread of tuning", set_name, method, measure, unit, deviation)
