"""Which loss when: the page examples/WHICH_LOSS.md and the rows of the README's table, from the kept results alone."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import cost
import numpy as np
from claims import Comparison
from statistics_of_pairs import HIGHER, HOLDS, LOWER, REVERSED, Difference, verdict
from tested import Tested

UNITS = {"opis": "OPIS, %", "map_at_r": "mAP@R, points", "r1": "R@1, points"}


class Goal(NamedTuple):
    """What somebody wants, the loss for it, and what tells whether it helps.

    pairs: base and method; what is gained is averaged over them and over the sets.
    measure: opis is given in per cent of the base's value, the others in points.
    against: what the method is compared with, in words.
    reading: what the results say, in words.
    """

    goal: str
    loss: str
    pairs: tuple[tuple[str, str], ...]
    measure: str
    against: str
    reading: str


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


_BASES = ("smoothap", "recall", "triplet", "ms", "proxy_nca", "arcface", "id")
GOALS = (
    Goal(
        "one threshold that treats all classes alike",
        "`TCMRegularizer(loss)`",
        tuple((base, f"{base} + tcm") for base in _BASES),
        "opis",
        "the same seven losses without it",
        "",
    ),
    Goal(
        "accuracy",
        "`TCMLoss`, on its own",
        (("triplet", "tcm"), ("ms", "tcm"), ("smoothap", "tcm")),
        "map_at_r",
        "triplet, multi-similarity and SmoothAP losses",
        "",
    ),
    Goal(
        "no margin to tune",
        "`CITLoss(gamma=1)`",
        (("triplet", "cit@1.0"), ("circle", "cit@1.0"), ("centroid_triplet", "cit@1.0"), ("angular", "cit@1.0")),
        "map_at_r",
        "triplet, circle, centroid triplet and angular losses at their best margins",
        "",
    ),
    Goal(
        "harder negatives from the same batch",
        "`LoOp(loss)`",
        (("triplet", "loop_triplet"), ("hphn", "loop_hphn"), ("lifted", "loop_lifted"), ("ms", "loop_ms")),
        "map_at_r",
        "the same four losses without it",
        "",
    ),
    Goal(
        "cost linear in the batch, many classes",
        "`DiscriminativeLoss`",
        (("softmax", "discriminative@one_hot"), ("triplet_semihard", "discriminative@one_hot")),
        "map_at_r",
        "softmax and semi-hard triplets",
        "",
    ),
    Goal(
        "weights of pairs by rule",
        '`PairWeightingLoss("multi_similarity", 0.1)`',
        (("gpw@binomial", "gpw@weighting+mining"), ("triplet", "ms")),
        "map_at_r",
        "binomial deviance and triplet losses",
        "",
    ),
    Goal(
        "retrieval with large batches",
        "`SmoothAPLoss`, `RecallAtKSurrogateLoss`",
        (("triplet", "smoothap"), ("triplet", "recall")),
        "map_at_r",
        "the triplet loss, at batches of 80",
        "",
    ),
)


METHODS_OF_GOALS = tuple(dict.fromkeys(name for goal in GOALS for pair in goal.pairs for name in pair))


def found(goal: Goal, results: Tested, sets: Sequence[str]) -> list[Found]:
    """Every comparison of a goal that there are results of."""
    rows = []
    for set_name in sets:
        for pair in goal.pairs:
            difference = results.difference(set_name, Comparison(*pair, ()), goal.measure)
            if difference is not None:
                direction = LOWER if goal.measure == "opis" else HIGHER
                values = _in_unit(difference, goal.measure)
                rows.append(Found(set_name, pair, *values, verdict(difference, direction, goal.measure)))
    return rows


def _in_unit(difference: Difference, measure: str) -> list[float]:
    by = difference.base if measure == "opis" else 1.0
    return [100 * value / by for value in (difference.mean, difference.low, difference.high)]


def mean_of(rows: Sequence[Found]) -> tuple[float, float, float]:
    """Mean over comparisons and sets, with a 95 % interval for these sets and losses.

    Comparisons on one set share its classes: their half-widths are averaged as if they went together; sets are
    independent.
    """
    by_set: dict[str, list[Found]] = {}
    for row in rows:
        by_set.setdefault(row.set_name, []).append(row)
    means = [np.mean([row.mean for row in of]) for of in by_set.values()]
    halves = [np.mean([(row.high - row.low) / 2 for row in of]) for of in by_set.values()]
    mean, half = float(np.mean(means)), float(np.sqrt(np.sum(np.square(halves))) / len(halves))
    return mean, mean - half, mean + half


def _gain(goal: Goal, rows: Sequence[Found]) -> str:
    mean, low, high = mean_of(rows)
    unit = "%" if goal.measure == "opis" else "points"
    name = {"opis": "OPIS", "map_at_r": "mAP@R"}[goal.measure]
    return f"{name} {mean:+.1f} {unit} [{low:+.1f}, {high:+.1f}] against {goal.against}"


def _cost(goal: Goal, costs: Mapping[str, Mapping[str, float]]) -> str:
    pairs = [pair for pair in goal.pairs if pair[0] in costs and pair[1] in costs]
    if not pairs:
        return ""
    added = [costs[method]["80"] - costs[base]["80"] for base, method in pairs]
    ends = sorted({f"{min(added):+.1f}", f"{max(added):+.1f}"}, key=float)
    return f"{' to '.join(ends)} ms a step"


def _when(rows: Sequence[Found]) -> str:
    """How many comparisons hold, and the bases and sets where it is the other way."""
    holds = sum(row.verdict == HOLDS for row in rows)
    against: dict[str, list[str]] = {}
    for row in rows:
        if row.verdict == REVERSED:
            against.setdefault(row.set_name, []).append(row.pair[0])
    worse = "; ".join(f"{set_name}: {', '.join(bases)}" for set_name, bases in against.items())
    return f"better in {holds} of {len(rows)}" + (f"; worse on {worse}" if worse else "")


def write_guide(folder: Path, results: Tested, sets: Sequence[str]) -> None:
    """WHICH_LOSS.md in the folder, and guide.json beside the results: the rows of the README's table."""
    costs = cost.kept_cost(folder / "results" / "cost.json")
    lines = [
        "# Which loss when",
        "",
        "Written by `python examples/evidence/run.py` from the results in `results/`; every claim of the papers and "
        "every setting are in [EVIDENCE.md](EVIDENCE.md). Each loss was tuned with the same number of trials on "
        "validation classes and tested once with five seeds, as a linear layer on frozen ImageNet features, on "
        f"{', '.join(sets)}.",
        "",
        "Differences have 95 % intervals over seeds and test classes. Better and worse mean that the interval excludes "
        "0; where neither is said, it cannot be told. The intervals do not contain the luck of tuning: settings were "
        "chosen once. Of some dozens of comparisons one or two exclude 0 by chance.",
        "",
    ]
    rows: dict[str, list[str]] = {}
    for goal in GOALS:
        of_goal = found(goal, results, sets)
        if of_goal:
            rows[goal.goal] = [goal.loss, _gain(goal, of_goal), _cost(goal, costs), _when(of_goal)]
            lines += _of_goal(goal, of_goal, rows[goal.goal], sets)
    lines += [f"![mAP@R and OPIS of the methods on {name}](figures/accuracy_and_opis_{name}.png)" for name in sets[:1]]
    _write(folder / "WHICH_LOSS.md", "\n".join(lines) + "\n")
    _write(folder / "results" / "guide.json", json.dumps(rows, indent=1, ensure_ascii=False) + "\n")


def _of_goal(goal: Goal, rows: Sequence[Found], cells: Sequence[str], sets: Sequence[str]) -> list[str]:
    _, gain, added, when = cells
    lines = [f"## {goal.goal[0].upper()}{goal.goal[1:]}: {goal.loss}", ""]
    if goal.reading:
        lines += [goal.reading, ""]
    lines += [f"{gain}; {when}. Its cost in batches of 80: {added or 'not measured'}.", ""]
    lines += [f"| base → method, {UNITS[goal.measure]} | {' | '.join(sets)} |", f"|---|{'---|' * len(sets)}"]
    by_place = {(row.pair, row.set_name): row for row in rows}
    for pair in goal.pairs:
        shown = [by_place.get((pair, set_name)) for set_name in sets]
        values = [f"{row.mean:+.1f} [{row.low:+.1f}, {row.high:+.1f}]" if row else "–" for row in shown]
        lines.append(f"| {' → '.join(pair)} | {' | '.join(values)} |")
    return [*lines, ""]


def _write(path: Path, text: str) -> None:
    partial = path.with_suffix(".tmp")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
