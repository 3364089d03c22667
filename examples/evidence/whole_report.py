"""Writes WHOLE_NETWORKS.md and results/whole_networks.csv from the stored runs."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from claims import CLAIMS, Comparison
from image_sets import SOURCES
from normalization_tables import PLAIN, WORST, read_results, whole_rows
from rows import SCALES, UNITS, Row, means, of_difference, write_rows
from statistics_of_pairs import HEADINGS, OPEN, verdict
from store import Store
from tested import Result, Tested, Verdicts
from whole_grid import ADDED, COMPARISONS, METHODS, SCHEDULES, SETS

from pml_ext._files import write_atomically

PAGE = """# Do the results carry over to whole networks?

Partly. Normalised scores help here, too; what TCM does to OPIS depends on loss and set.

The trainer trained small convolutional networks from scratch with its own configs, on images of 16 × 16 pixels. Each \
method had {trials} short trials on validation classes (30 % of the training classes), judged by mAP@R; its best \
settings were trained with three seeds on all training classes.

## Results

Differences from the base, with 95 % intervals by Student's t over seeds and test classes.

|set|base|method|measure|difference|
|---|---|---|---|---|
{differences}
{undecided} of {compared} comparisons are undecided and left out; [whole_networks.csv](results/whole_networks.csv) has \
all of them, and the verdicts for linear heads. In `triplet_tcm` and `smoothap_tcm` TCM's margins and the learning \
rate were tuned; in `…_added` the base keeps its own best settings.

{normalised}## How far to trust it

- Intervals contain neither the spread of tuning (each method was tuned once) nor a correction for their number.
- Trials of about 90 steps favour losses that learn fast: `discriminative` had hardly started on Glyphs.
- Ranges were not extended if the best value was at their end.
- The methods `…_added` were added after Glyphs' other test figures were seen.
{repeats}
## Rerun

```sh
python examples/evidence/whole.py                  # trains, and writes this page
python examples/evidence/whole_normalization.py    # trains again for normalised scores
```
"""
NORMALISED = """## Normalised scores

With the unlabelled test images as cohort (`CohortNormalization`), in {combinations} combinations of loss and set:

- OPIS changes by {opis}.
- TAR at FAR 0.1 % changes by {tar}.
- The highest FAR of a class at a pooled FAR of 1 % is lower in {better} of {combinations}.

"""
REPEATS = """- {methods} were trained twice with the same seeds, before and after the identity sampler was rewritten. \
Runs changed by up to {r1:.1f} points of R@1 and {opis:.0f} % of OPIS; a seed's value is the mean of both. Pairing by \
seed gains nothing: the variance of differences is {pairing} times the sum of variances.
"""


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
    """Write WHOLE_NETWORKS.md and results/whole_networks.csv.

    Args:
        heads: the runs of run.py, for their verdicts on the same comparisons.
    """
    results, of_heads = Networks(whole), Verdicts(Tested(heads), CLAIMS, list(SOURCES))
    sets = [name for name in SETS if any(of == name for of, _ in results.tests)]
    compared = [row for name in sets for row in _comparisons(name, results, of_heads)]
    normalised = [*whole_rows(results, list(SETS))]
    methods = [row for name in sets for row in _methods(name, results)]
    (folder / "results").mkdir(exist_ok=True)
    write_rows(folder / "results" / "whole_networks.csv", [*compared, *normalised, *methods, *_schedules(whole)])
    write_atomically(folder / "WHOLE_NETWORKS.md", _page(results, compared, normalised))


def _page(results: Networks, compared: list[Row], normalised: list[Row]) -> str:
    decided = [row for row in compared if row.verdict != OPEN]
    lines = [f"|{row.set}|{row.base}|{row.method}|{HEADINGS[row.measure]}|{shown(row)}|\n" for row in decided]
    return PAGE.format(
        trials=len(METHODS["triplet"]),
        differences="".join(lines),
        undecided=len(compared) - len(decided),
        compared=len(compared),
        normalised=_normalised(normalised),
        repeats=_repeats(results),
    )


def shown(row: Row) -> str:
    return f"{row.value:+.1f} {row.unit} [{row.low:+.1f}, {row.high:+.1f}]"


def _normalised(rows: list[Row]) -> str:
    if not rows:
        return ""
    ranges = {}
    for measure in ("opis", "tar"):
        changes = sorted(row.value for row in rows if row.measure == measure)
        unit = next(row.unit for row in rows if row.measure == measure)
        ranges[measure] = f"{changes[0]:+.0f} to {changes[-1]:+.0f} {unit}"
    far = [row for row in rows if row.measure == WORST]
    return NORMALISED.format(combinations=len(far), better=sum(row.value < row.base_value for row in far), **ranges)


def _repeats(results: Networks) -> str:
    """How far repeated runs are apart, and what pairing by seed gains."""
    if not results.again:
        return ""
    pairing = ", ".join(f"{_pairing(results, metric):.1f} ({heading})" for metric, heading in HEADINGS.items())
    r1, opis = (np.stack([results.of_runs(*which, metric) for which in results.again]) for metric in ("r1", "opis"))
    return REPEATS.format(
        methods=", ".join(dict.fromkeys(f"`{method}`" for _, method in results.again)),
        r1=100 * np.abs(r1[:, 1] - r1[:, 0]).max(),
        opis=100 * np.abs(opis[:, 1] / opis[:, 0] - 1).max(),
        pairing=pairing,
    )


def _pairing(results: Networks, metric: str) -> float:
    """The variance of the differences of log values over seeds, as a share of the sum of variances."""
    differences, variances = 0.0, 0.0
    for set_name in SETS:
        for base, method, _ in COMPARISONS:
            names = (base.name, method.name)
            if all((set_name, name) in results.tests for name in names):
                pair = np.log([results.values(set_name, name, metric) for name in names])
                differences += np.var(pair[1] - pair[0])
                variances += np.var(pair, axis=1).sum()
    return float(differences / variances)


def _comparisons(set_name: str, results: Tested, heads: Verdicts) -> Iterator[Row]:
    for base, method, expected in COMPARISONS:
        of_heads = {j.measure: j for j in heads.of(set_name, Comparison(base.head, method.head, expected))}
        for metric, direction in expected:
            difference = results.difference(set_name, base.name, method.name, metric)
            if difference is None:
                continue
            note = ""
            if metric in of_heads:
                mean = of_heads[metric].difference.shown()[0]
                note = f"linear heads: {of_heads[metric].verdict} ({mean:+.2f})"
            pair, judged = (base.name, method.name), verdict(difference, direction, metric)
            more = {"expected": direction, "verdict": judged, "note": note}
            yield of_difference("whole networks", set_name, pair, metric, difference, **more)


def _methods(set_name: str, results: Tested) -> Iterator[Row]:
    for method in (*METHODS, *ADDED):
        if (set_name, method) in results.tests:
            measures = ("r1", "map_at_r", "opis", "epsilon_opis")
            by_seed = np.stack([results.values(set_name, method, metric) for metric in measures], axis=1)
            runs = [dict(zip(measures, of_seed, strict=True)) for of_seed in by_seed]
            settings = json.dumps(results.tests[set_name, method][0]["settings"])
            yield from means("whole networks", set_name, method, runs, settings)


def _schedules(whole: Store) -> Iterator[Row]:
    """smoothap_tcm at its defaults on Glyphs' validation classes, 32 x 32 pixels, one seed."""
    for schedule in SCHEDULES:
        for result in whole.found.values():
            if result["settings"] == schedule:
                for measure in HEADINGS:
                    value = SCALES[measure] * result["metrics"][measure]
                    note = json.dumps(schedule)
                    yield Row("schedules", "glyphs", "smoothap_tcm", measure, UNITS[measure], value, note=note)
