"""Writes WHOLE_NETWORKS.md and results/whole_networks.csv from the stored runs."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from rows import Row, means, of_difference, write_rows
from statistics_of_pairs import HEADINGS, MEASURES, OPEN, verdict
from store import Store, run_of
from tested import Result, Tested
from whole_grid import ADDED, COMPARISONS, METHODS, SETS

from pml_ext._files import write_atomically

PAGE = """# Do the results carry over to whole networks?

Partly: what TCM does to OPIS depends on loss and set.

The trainer trained small convolutional networks from scratch with its own configs, on images of 16 × 16 pixels. Each \
method had {trials} short trials on validation classes (30 % of the training classes), judged by mAP@R; its best \
settings were trained with three seeds on all training classes.

## Results

Differences from the base, with 95 % intervals by Student's t over seeds and test classes.

|set|base|method|measure|difference|
|---|---|---|---|---|
{differences}
{undecided} of {compared} comparisons are undecided and left out; [whole_networks.csv](results/whole_networks.csv) has \
all of them. In `triplet_tcm` and `smoothap_tcm` TCM's margins and the learning \
rate were tuned; in `…_added` the base keeps its own best settings.

## How far to trust it

- Intervals contain neither the spread of tuning (each method was tuned once) nor a correction for their number.
- Trials of about 90 steps favour losses that learn fast: `discriminative` had hardly started on Glyphs.
- Ranges were not extended if the best value was at their end.
- The methods `…_added` were added after Glyphs' other test figures were seen.
{repeats}
## Rerun

```sh
python examples/evidence/whole.py    # trains, and writes this page
```
"""
REPEATS = """\
- {methods} were trained twice with the same seeds, before and after the identity sampler was rewritten. Runs changed \
by up to {r1:.1f} points of R@1 and {opis:.0f} % of OPIS; a seed's value is the mean of both.
"""


class Networks(Tested):
    """The tests; if they were trained a second time, a seed's value is the mean of both runs.

    second: the second runs by set and method, from the folder `repeats`.
    """

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.repeats = Store(store.folder / "repeats")
        self.second: dict[tuple[str, str], list[Result]] = {}
        for which, runs in self.tests.items():
            again = [found for run in runs if (found := self.repeats.get(run_of(run))) is not None]
            if again:
                self.second[which] = again

    def values(self, set_name: str, method: str, metric: str) -> np.ndarray:
        first = super().values(set_name, method, metric)
        if (set_name, method) not in self.second:
            return first
        mean: np.ndarray = (first + self.repeated_values(set_name, method, metric)) / 2
        return mean

    def repeated_values(self, set_name: str, method: str, metric: str) -> np.ndarray:
        """Of the second runs, by seed."""
        return np.array([result["metrics"][metric] for result in self.second[set_name, method]])

    def by_class(self, results: list[Result], metric: str) -> np.ndarray:
        first, which = super().by_class(results, metric), (results[0]["set"], results[0]["method"])
        if which not in self.second:
            return first
        again = [self.repeats.by_class(result["key"], result["set"]) for result in self.second[which]]
        mean: np.ndarray = (first + np.stack(again)[:, MEASURES[metric]]) / 2
        return mean


def write_report(folder: Path, store: Store) -> None:
    """Write WHOLE_NETWORKS.md and results/whole_networks.csv."""
    results = Networks(store)
    sets = [name for name in SETS if name in results.sets]
    compared = [row for name in sets for row in _comparisons(name, results)]
    methods = [row for name in sets for row in _methods(name, results)]
    (folder / "results").mkdir(exist_ok=True)
    write_rows(folder / "results" / "whole_networks.csv", [*compared, *methods])
    decided = [row for row in compared if row.verdict != OPEN]
    lines = [f"|{row.set}|{row.base}|{row.method}|{HEADINGS[row.measure]}|{shown(row)}|\n" for row in decided]
    page = PAGE.format(
        trials=len(METHODS["triplet"]),
        differences="".join(lines),
        undecided=len(compared) - len(decided),
        compared=len(compared),
        repeats=_repeats(results),
    )
    write_atomically(folder / "WHOLE_NETWORKS.md", page)


def shown(row: Row) -> str:
    return f"{row.value:+.1f} {row.unit} [{row.low:+.1f}, {row.high:+.1f}]"


def _repeats(results: Networks) -> str:
    """How far repeated runs are apart."""
    if not results.second:
        return ""
    r1, opis = [], []
    for which in results.second:
        r1 += [*np.abs(results.repeated_values(*which, "r1") - Tested.values(results, *which, "r1"))]
        opis += [*np.abs(results.repeated_values(*which, "opis") / Tested.values(results, *which, "opis") - 1)]
    methods = dict.fromkeys(f"`{method}`" for _, method in results.second)
    return REPEATS.format(methods=", ".join(methods), r1=100 * max(r1), opis=100 * max(opis))


def _comparisons(set_name: str, results: Tested) -> Iterator[Row]:
    for base, method, expected in COMPARISONS:
        for metric, direction in expected:
            difference = results.difference(set_name, base, method, metric)
            if difference is not None:
                more = {"expected": direction, "verdict": verdict(difference, direction, metric)}
                yield of_difference("whole networks", set_name, (base, method), metric, difference, **more)


def _methods(set_name: str, results: Tested) -> Iterator[Row]:
    for method in (*METHODS, *ADDED):
        if (set_name, method) in results.tests:
            values = {metric: results.values(set_name, method, metric) for metric in HEADINGS}
            yield from means("whole networks", set_name, method, values, json.dumps(results.settings(set_name, method)))
