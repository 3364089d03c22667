"""Writes WHICH_LOSS.md and the rows of the README's table from the stored results."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import cost
import numpy as np
from goals import GOALS, Goal, Group
from normalization_tables import section
from picture import OVERVIEW
from statistics_of_pairs import HEADINGS, HIGHER, HOLDS, LOWER, REVERSED, Difference, verdict
from tested import Tested

from pml_ext._files import write_atomically

LEADERS = 5


class Found(NamedTuple):
    """One comparison on one set, in the unit of its goal.

    pair: base and method.
    """

    set_name: str
    pair: tuple[str, str]
    mean: float
    low: float
    high: float
    verdict: str


def found(group: Group, measure: str, results: Tested, sets: Sequence[str]) -> list[Found]:
    """The comparisons of a group that have results."""
    rows = []
    for set_name in sets:
        for pair in group.pairs:
            difference = results.difference(set_name, *pair, measure)
            if difference is not None:
                direction = LOWER if measure == "opis" else HIGHER
                values = _in_unit(difference, measure)
                rows.append(Found(set_name, pair, *values, verdict(difference, direction, measure)))
    return rows


def _in_unit(difference: Difference, measure: str) -> list[float]:
    by = difference.base if measure == "opis" else 1.0
    return [100 * value / by for value in (difference.mean, difference.low, difference.high)]


def mean_of(rows: Sequence[Found]) -> tuple[float, float, float]:
    """Mean over comparisons and sets, with a 95 % interval for these sets and losses.

    Comparisons on one set share its classes: their half-widths are averaged as if fully dependent; sets are
    independent.
    """
    by_set: dict[str, list[Found]] = {}
    for row in rows:
        by_set.setdefault(row.set_name, []).append(row)
    means = [np.mean([row.mean for row in of]) for of in by_set.values()]
    halves = [np.mean([(row.high - row.low) / 2 for row in of]) for of in by_set.values()]
    mean, half = float(np.mean(means)), float(np.sqrt(np.sum(np.square(halves))) / len(halves))
    return mean, mean - half, mean + half


def _gain(measure: str, rows: Sequence[Found]) -> str:
    mean, low, high = mean_of(rows)
    return f"{mean:+.1f} {'%' if measure == 'opis' else 'points'} [{low:+.1f}, {high:+.1f}]"


def _cost(goal: Goal, costs: Mapping[str, Mapping[str, float]]) -> str:
    """Additional milliseconds of a step with a batch of 80."""
    pairs = [pair for pair in goal.costs if pair[0] in costs and pair[1] in costs]
    added = [costs[method]["80"] - costs[base]["80"] for base, method in pairs]
    ends = sorted({f"{value:+.1f}" for value in (min(added), max(added))}, key=float) if added else []
    return f"{' to '.join(ends)} ms" if ends else ""


def _when(rows: Sequence[Found]) -> str:
    """The number of comparisons that hold, and the bases and sets with the opposite result."""
    holds = sum(row.verdict == HOLDS for row in rows)
    worse: dict[str, list[str]] = {}
    for row in rows:
        if row.verdict == REVERSED:
            worse.setdefault(row.set_name, []).append(row.pair[0])
    named = "; ".join(f"{set_name}: {', '.join(bases)}" for set_name, bases in worse.items())
    return f"better in {holds} of {len(rows)}" + (f", worse on {named}" if named else "")


def write_guide(folder: Path, results: Tested, sets: Sequence[str]) -> None:
    """Write WHICH_LOSS.md, and the rows of the README's table to results/guide.json."""
    costs = cost.kept_cost(folder / "results" / "cost.json")
    lines = [
        "# Which loss for which goal",
        "",
        "`python examples/evidence/run.py` writes this page from `results/`. [EVIDENCE.md](EVIDENCE.md) has the "
        "papers' claims and all settings. Each loss was tuned on validation classes with the same number of trials "
        "(smaller grids were searched exhaustively, and TCM was added to tuned losses) and tested once with five "
        f"seeds, as a linear layer on frozen ImageNet features, on {', '.join(sets)}. For whole networks see "
        "[WHOLE_NETWORKS.md](WHOLE_NETWORKS.md).",
        "",
        "Differences have 95 % intervals over seeds and test classes. Better and worse mean that the interval excludes "
        "0; otherwise the result is undecided. Settings were chosen once, so the intervals do not include the "
        "randomness of tuning. Of some dozens of comparisons one or two exclude 0 by chance.",
        "",
    ]
    lines += section(folder / "results", sets)
    table: dict[str, dict[str, object]] = {}
    for goal in GOALS:
        of_groups = [(group, found(group, goal.measure, results, sets)) for group in goal.groups]
        of_groups = [(group, of_group) for group, of_group in of_groups if of_group]
        if of_groups:
            added = _cost(goal, costs)
            lines += _of_goal(goal, of_groups, added, sets)
            gains = [
                [group.words, f"{HEADINGS[goal.measure]} {_gain(goal.measure, rows)}"]
                for group, rows in of_groups
                if group.in_readme
            ]
            if gains:
                table[goal.goal] = {"loss": goal.loss, "gains": gains, "cost": added}
    lines += _leaders(results, sets)
    lines += [f"![mAP@R and OPIS of the methods on {name}](figures/accuracy_and_opis_{name}.png)" for name in sets[:1]]
    write_atomically(folder / "WHICH_LOSS.md", "\n".join(lines) + "\n")
    write_atomically(folder / "results" / "guide.json", json.dumps(table, indent=1, ensure_ascii=False) + "\n")


def _leaders(results: Tested, sets: Sequence[str]) -> list[str]:
    """The best methods of the figure on each set."""
    lines = [
        "## Best methods by set",
        "",
        "The methods of the figure below by their mean over five seeds on the test set. Neighbours often differ by "
        "less than their intervals.",
        "",
        f"| | {' | '.join(sets)} |",
        f"|---|{'---|' * len(sets)}",
    ]
    for measure, heading, scale, sign in (
        ("map_at_r", "highest mAP@R", 100, -1),
        ("opis", "lowest OPIS × 1000", 1000, 1),
    ):
        columns = []
        for set_name in sets:
            shown = [method for method in OVERVIEW if (set_name, method) in results.tests]
            values = {method: float(results.values(set_name, method, measure).mean()) for method in shown}
            first = sorted(values, key=lambda method: sign * values[method])[:LEADERS]
            columns.append([f"{method} {scale * values[method]:.1f}" for method in first])
        for place, row in enumerate(zip(*columns, strict=False), 1):
            lines.append(f"| {heading if place == 1 else ''} | {' | '.join(row)} |")
    return [*lines, ""]


def _of_goal(
    goal: Goal, of_groups: Sequence[tuple[Group, Sequence[Found]]], added: str, sets: Sequence[str]
) -> list[str]:
    lines = [f"## {goal.goal[0].upper()}{goal.goal[1:]}: {goal.loss}", "", goal.reading]
    if added:
        lines[-1] += f" A step with a batch of 80 takes {added} compared with the base."
    lines.append("")
    for group, rows in of_groups:
        heading = f"{HEADINGS[goal.measure]}, {'%' if goal.measure == 'opis' else 'points'}"
        lines += [f"**{_gain(goal.measure, rows)} {group.words}**; {_when(rows)}.", ""]
        lines += [f"| {heading} | {' | '.join(sets)} |", f"|---|{'---|' * len(sets)}"]
        by_place = {(row.pair, row.set_name): row for row in rows}
        for pair in group.pairs:
            shown = [by_place.get((pair, set_name)) for set_name in sets]
            values = [f"{row.mean:+.1f} [{row.low:+.1f}, {row.high:+.1f}]" if row else "–" for row in shown]
            lines.append(f"| {' → '.join(pair)} | {' | '.join(values)} |")
        lines.append("")
    return lines
