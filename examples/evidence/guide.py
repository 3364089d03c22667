"""Writes WHICH_LOSS.md, and the numbers of the README's table, from the stored results."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import cost
import numpy as np
from claims import Comparison
from controls import FROZEN, kept_controls
from goals import GOALS, Goal, Group
from image_sets import COUNTED
from normalization_tables import section, summary
from picture import OVERVIEW
from statistics_of_pairs import HEADINGS, HIGHER, HOLDS, LOWER, REVERSED, Difference, Spread, sum_of
from tested import Tested
from verdicts import Judged, Verdicts

from pml_ext._files import write_atomically

LEADERS = 5
# method -> the code to write, of the first table
START = {
    "ms": "PML's `MultiSimilarityLoss` with `MultiSimilarityMiner`",
    "triplet@0.05": "PML's `TripletMarginLoss()` at its default margin",
    "gpw@weighting": '`PairWeightingLoss("multi_similarity")`',
    "circle": "PML's `CircleLoss`",
    "smoothap": "`SmoothAPLoss`",
    "id + tcm@added": "PML's `NormalizedSoftmaxLoss` in `TCMRegularizer`",
    "proxy_nca + tcm@added": "PML's `ProxyNCALoss` in `TCMRegularizer`",
    "arcface + tcm@added": "PML's `ArcFaceLoss` in `TCMRegularizer`",
    "cit@1.0": "`CITLoss(gamma=1)`",
    "discriminative@one_hot": "`DiscriminativeLoss`",
    "id": "PML's `NormalizedSoftmaxLoss`",
    "proxy_nca": "PML's `ProxyNCALoss`",
    "arcface": "PML's `ArcFaceLoss`",
}


def found(group: Group, measure: str, verdicts: Verdicts, sets: Sequence[str]) -> list[Judged]:
    """The comparisons of a group that have results."""
    direction = LOWER if measure == "opis" else HIGHER
    asked = [Comparison(*pair, ((measure, direction),)) for pair in group.pairs]
    return [judged for set_name in sets for comparison in asked for judged in verdicts.of(set_name, comparison)]


def mean_of(by_set: Mapping[str, Sequence[Difference]]) -> tuple[Difference, Difference]:
    """Mean over comparisons and sets: for these sets, and with the sets as a sample.

    Comparisons on one set share its classes and often the base: their deviations are averaged as if fully dependent;
    sets are independent.
    """
    found = list(by_set.values())
    means = np.array([np.mean([difference.mean for difference in of]) for of in found])
    deviations = [np.mean([difference.spread.variance**0.5 for difference in of]) for of in found]
    parts = [
        Spread(float(deviation / len(found)) ** 2, min(difference.spread.freedom for difference in of))
        for deviation, of in zip(deviations, found, strict=True)
    ]
    here = found[0][0]._replace(mean=float(means.mean()), spread=sum_of(*parts))
    if len(found) == 1:
        return here, here._replace(spread=Spread(np.inf, 1))
    return here, here._replace(spread=Spread(float(means.var(ddof=1) / len(found)), len(found) - 1))


def _counted(rows: Sequence[Judged]) -> list[Judged]:
    """Without the sets that have another's objects."""
    return [row for row in rows if row.set_name in COUNTED]


def _mean(rows: Sequence[Judged]) -> tuple[Difference, Difference, int]:
    """The mean for these sets, with the sets as a sample, and the number of sets.

    Sets on which fewer of the comparisons were run do not count, nor those that have another's objects.
    """
    by_set: dict[str, list[Difference]] = {}
    for row in _counted(rows):
        by_set.setdefault(row.set_name, []).append(row.difference)
    most = max(map(len, by_set.values()))
    by_set = {name: of for name, of in by_set.items() if len(of) == most}
    return *mean_of(by_set), len(by_set)


def _gain(rows: Sequence[Judged]) -> str:
    """The mean with its interval for these sets, and the interval with the sets as a sample."""
    here, anywhere, sets = _mean(rows)
    (mean, low, high), (_, lowest, highest) = here.shown(), anywhere.shown()
    unit = "%" if here.is_log_ratio else "points"
    text = f"{mean:+.1f} {unit} [{low:+.1f}, {high:+.1f}]"
    if sets == 1:
        return text
    return f"{text} on these {sets} sets, [{lowest:+.1f}, {highest:+.1f}] on any"


def _cost(group: Group, costs: Mapping[str, Mapping[str, float]]) -> str:
    """Additional milliseconds of a step with a batch of 80, compared with the base; "" where it was not measured."""
    pairs = [pair for pair in group.pairs if pair[0] in costs and pair[1] in costs]
    added = [costs[method]["80"] - costs[base]["80"] for base, method in pairs]
    ends = sorted({f"{value:+.1f}" for value in (min(added), max(added))}, key=float) if added else []
    return f"{' to '.join(ends)} ms" if ends else ""


def _when(rows: Sequence[Judged]) -> str:
    """The number of comparisons that hold, and the bases and sets with the opposite result."""
    rows = _counted(rows)
    holds = sum(row.verdict == HOLDS for row in rows)
    worse: dict[str, list[str]] = {}
    for row in rows:
        if row.verdict == REVERSED:
            worse.setdefault(row.set_name, []).append(row.comparison.base)
    named = "; ".join(f"{set_name}: {', '.join(bases)}" for set_name, bases in worse.items())
    return f"better in {holds} of {len(rows)}" + (f", worse on {named}" if named else "")


def write_guide(folder: Path, verdicts: Verdicts, sets: Sequence[str]) -> None:
    """Write WHICH_LOSS.md, and the numbers of the README's table to results/guide.json."""
    of_set = {name: sum(found == name for found, _ in verdicts.results.tests) for name in sets}
    partly = [f"{name} ({number} methods)" for name, number in of_set.items() if number < max(of_set.values())]
    costs = cost.kept_cost(folder / "results" / "cost.json")
    losses, gains = _over_sets(verdicts.results, sets), {}
    lines = [
        "# Which loss for which goal",
        "",
        *_start(losses, [name for name in sets if name in COUNTED]),
        "## How it was measured",
        "",
        "`python examples/evidence/run.py` writes this page from `results/`. [EVIDENCE.md](EVIDENCE.md) has the "
        "papers' claims and all settings. Each loss was tuned on validation classes by the same rule (16 trials, or a "
        "smaller grid whole, and more where the best was at an end; TCM was added to tuned losses) and tested with "
        f"five seeds, as a linear layer on frozen ImageNet features, on {', '.join(sets)}; "
        f"{'fewer, without ablations, on ' + ', '.join(partly) if partly else 'all on every set'}. For whole networks "
        "see [WHOLE_NETWORKS.md](WHOLE_NETWORKS.md).",
        "",
        "Differences have 95 % intervals by Student's t over seeds and test classes and over repeated tunings. "
        "Better and worse are said after the correction for the number of comparisons and not of a difference below "
        "that of one function tuned twice ([EVIDENCE.md](EVIDENCE.md#tuning)); otherwise the result is undecided. An "
        "average's first interval is for these sets, the second takes them as a sample of all sets, of which there "
        "are few. Sets on which only some comparisons of a group were run do not count in its average; "
        "fruits_colour, which has the pictures of fruits in colour, counts nowhere. Some losses were chosen over three "
        "validation splits, the others over one (EVIDENCE.md marks such pairs). Steps were timed with a batch of 80.",
        "",
    ]
    lines += section(verdicts.results, sets)
    for goal in GOALS:
        of_groups = [(group, found(group, goal.measure, verdicts, sets)) for group in goal.groups]
        of_groups = [(group, of_group) for group, of_group in of_groups if of_group]
        if of_groups:
            lines += _of_goal(goal, of_groups, costs, sets)
            gains |= {group.readme: _mean(rows)[0].shown() for group, rows in of_groups if group.readme}
    lines += _leaders(verdicts.results, folder / "results", sets)
    lines += [f"![mAP@R and OPIS of the methods on {name}](figures/accuracy_and_opis_{name}.png)" for name in sets[:1]]
    write_atomically(folder / "WHICH_LOSS.md", "\n".join(lines) + "\n")
    numbers = {"losses": losses, "gains": gains, "normalised": summary(verdicts.results, sets)}
    write_atomically(folder / "results" / "guide.json", json.dumps(numbers, indent=1) + "\n")


def _over_sets(results: Tested, sets: Sequence[str]) -> dict[str, dict[str, float]]:
    """OPIS (geometric mean) and mAP@R (mean) over the sets that count, of methods that were tested on all of them."""
    counted = [name for name in sets if name in COUNTED]
    means = {}
    for method in START:
        if all((name, method) in results.tests for name in counted):
            opis = [results.values(name, method, "opis").mean() for name in counted]
            map_at_r = [results.values(name, method, "map_at_r").mean() for name in counted]
            means[method] = {"opis": float(np.exp(np.log(opis).mean())), "map_at_r": float(np.mean(map_at_r))}
    return means


def _start(losses: Mapping[str, Mapping[str, float]], sets: Sequence[str]) -> list[str]:
    """The answer, and the table that it is read from."""
    lines = [
        "- No loss yet: start with PML's `MultiSimilarityLoss` and `MultiSimilarityMiner`, or with PML's "
        "`TripletMarginLoss()`.",
        "- One threshold for all classes: normalise the scores of any loss by the "
        "[gallery](#one-threshold-for-all-classes-without-training-cohortnormalization), without training.",
        "- A classification loss already: wrap it in `TCMRegularizer`. This was measured on heads only.",
        "- An identity loss, and no data to tune a margin with: `CITLoss` beside it, not alone. Against the "
        "identity loss alone it was better on one of four sets and worse on one.",
        "- Few random triplets: `LoOp`. Around losses that use the whole batch it gains nothing.",
        "",
        f"Linear layers on frozen features; means over {', '.join(sets)}, of OPIS geometric. OPIS is a variance "
        "between classes: at 0.002 their utilities at one threshold spread by about ±4.5 points (√0.002). It is low, "
        "too, if nearly everything is rejected, so read it together with mAP@R. Neighbours often differ by less than "
        "their intervals.",
        "",
        "| loss | OPIS × 1000 | mAP@R, % |",
        "|---|---|---|",
    ]
    for method, means in sorted(losses.items(), key=lambda item: item[1]["opis"]):
        lines.append(f"| {START[method]} | {1000 * means['opis']:.1f} | {100 * means['map_at_r']:.1f} |")
    return [*lines, ""]


def _leaders(results: Tested, folder: Path, sets: Sequence[str]) -> list[str]:
    """The best methods of the figure on each set, and what no training gives."""
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
        ("mean_utility", "highest utility, %", 100, -1),
    ):
        columns = []
        for set_name in sets:
            shown = [method for method in OVERVIEW if (set_name, method) in results.tests]
            values = {method: float(results.values(set_name, method, measure).mean()) for method in shown}
            first = sorted(shown, key=lambda method: sign * values[method])[:LEADERS]
            measured = not np.isnan(sum(values.values()))  # else who leads is not known
            columns.append([f"{method} {scale * values[method]:.1f}" if measured else "–" for method in first])
        for place, row in enumerate(zip(*columns, strict=False), 1):
            lines.append(f"| {heading if place == 1 else ''} | {' | '.join(row)} |")
        controls = [kept_controls(folder, set_name).get(FROZEN) for set_name in sets]
        cells = [f"{FROZEN} {scale * runs[0][measure]:.1f}" if runs else "–" for runs in controls]
        lines.append(f"| | {' | '.join(cells)} |")
    return [*lines, ""]


def _of_goal(
    goal: Goal,
    of_groups: Sequence[tuple[Group, Sequence[Judged]]],
    costs: Mapping[str, Mapping[str, float]],
    sets: Sequence[str],
) -> list[str]:
    lines = [f"## {goal.goal[0].upper()}{goal.goal[1:]}: {goal.loss}", "", goal.reading, ""]
    for group, rows in of_groups:
        heading = f"{HEADINGS[goal.measure]}, {'%' if goal.measure == 'opis' else 'points'}"
        added = _cost(group, costs)
        lines += [f"**{_gain(rows)} {group.words}**; {_when(rows)}{f'; a step takes {added}' if added else ''}.", ""]
        lines += [f"| {heading} | {' | '.join(sets)} |", f"|---|{'---|' * len(sets)}"]
        by_place = {(row.comparison.base, row.comparison.method, row.set_name): row.difference for row in rows}
        for pair in group.pairs:
            shown = [by_place.get((*pair, set_name)) for set_name in sets]
            values = ["{:+.1f} [{:+.1f}, {:+.1f}]".format(*row.shown()) if row else "–" for row in shown]
            lines.append(f"| {' → '.join(pair)} | {' | '.join(values)} |")
        lines.append("")
    return lines
