"""Writes NORMALISED.md and results/normalised.csv from the runs that normalised.py has stored."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from methods import SEEDS
from normalised import BASES, DEFAULT, FOLDER, IDENTITIES, RESULTS, STORED, TOP, choice_for, compared
from rows import Row, of_difference, write_rows
from statistics_of_pairs import (
    HIGHER,
    HOLDS,
    LOWER,
    OPEN,
    REVERSED,
    Difference,
    level_of_family,
    paired_difference,
    paired_log_ratio,
)
from store import Store
from tested import Tested
from whole_grid import IDENTITY
from whole_report import NAMES

from pml_ext._shared.files import write_atomically

KINDS = {
    "others default": "other test identities",
    "training": "training samples, k and λ chosen",
    "both default": "both",
    "both": "both, k and λ chosen",
}
OF_NETWORKS = {"others": "other test identities", "training": "training samples", "both": "both"}
NETWORKS = RESULTS / "whole" / FOLDER
MEASURES = {"opis": (0, LOWER), "tar": (1, HIGHER)}
SCALED = {"opis": 1000, "tar": 100}
PAGE = """# What normalised scores change

[Normalised scores](../guides/NORMALISED_SCORES.md) against plain cosines, by cohorts that hold no judged identity.

- *Training samples and other identities together*: OPIS was {opis} % lower, and TAR at FAR 0.1 % {tar} points \
higher, on every set. The FAR of strangers was {far} %, with plain cosines {far_of_cosines} %.
- *Other identities alone*: they helped where there were more than 250 of them. With 50 or 100 it depended on the \
set, and 10 or 25 did harm.
- *Training samples alone*: do not use them. With linear layers OPIS fell on every set, but TAR fell on glyphs and \
omniglot; with networks TAR fell for every loss ([below](#whole-networks)).
- *Small networks from scratch*, on glyphs only, with both together: OPIS changed by {opis_of_networks} %, and TAR by \
{tar_of_networks} points ([below](#whole-networks)).

Each of {losses} losses trained a linear layer on frozen ImageNet features, with {seeds} seeds. OPIS and TAR are means \
over losses and seeds. For them the test identities are split in halves: each half is judged, and the other half is \
the cohort.

For the FAR of strangers they are split in thirds. The threshold is chosen for a FAR of 0.1 % on one third, and \
another third is the cohort. The last third are strangers to both, and the FAR at this threshold is theirs. {fars}

## By cohort

k = 10 and λ = 1, or chosen on validation identities. Each cell has the change of OPIS, that of TAR in points, and the \
FAR of strangers. In brackets: for how many losses it is better / worse, after a correction for all {comparisons} \
comparisons.

{by_cohort}
## By the number of cohort identities

Other test identities, k = 10, λ = 1: change of OPIS, that of TAR in points, and the FAR of strangers.

{curve}
[normalised.csv](results/normalised.csv) also has fewer images of each cohort identity, and methods that also divide \
by the standard deviation: AS-norm by the {top} nearest samples, S-norm by all. Fruits and grocery have 13 identities \
in a third: there the FAR of plain cosines is far from 0.1 %, too.

## Whole networks

[Networks trained from scratch](WHOLE_NETWORKS.md) on glyphs with a cross-entropy, alone or with another loss: \
{seeds_of_networks} seeds, the same halves and thirds, k = 10, λ = 1. The first column has values. The others have \
the changes of OPIS and of TAR in points, with 95 % intervals over seeds and test classes, and the FAR of strangers. \
Bold: decided after a correction for all {comparisons_of_networks} comparisons.

{networks}
By the judged identities themselves as the cohort, the FAR of strangers was {judged_of_networks} %. k and λ were not \
chosen on validation identities. Other sets were not measured.

## Rerun

```sh
python examples/evidence/normalised.py          # trains again, and measures
python examples/evidence/whole_normalised.py    # the same for whole networks
python examples/evidence/run.py --tables        # writes this page and results/normalised.csv
```
"""


class Runs(NamedTuple):
    """The stored runs of a loss on a set; by_class: (S, K, 2, C) of STORED kinds."""

    chosen: dict[str, Any]
    runs: list[dict[str, Any]]
    by_class: np.ndarray

    def mean(self, kind: str, measure: str) -> float:
        return float(np.mean([run["metrics"][kind][measure] for run in self.runs]))

    def strangers(self, kind: str) -> list[float]:
        """By seed, those that were measured."""
        return [run["strangers"][kind] for run in self.runs if kind in run["strangers"]]

    def difference(self, kind: str, measure: str) -> Difference:
        """Normalised minus plain; OPIS as a log-ratio."""
        find = paired_log_ratio if measure == "opis" else paired_difference
        plain, by_kind = (self.by_class[:, STORED.index(name), MEASURES[measure][0]] for name in ("plain", kind))
        return find(plain, by_kind)


def read(results: Tested, sets: Sequence[str]) -> dict[tuple[str, str], Runs]:
    """By set and loss, with the seeds that all of them have."""
    store, found = Store(RESULTS / FOLDER), {}
    for set_name in sets:
        for method, run in compared(results, set_name).items():
            choice = store.get(choice_for(run))
            runs = [kept for seed in SEEDS if (kept := store.get(run._replace(seed=seed)))]
            if choice and runs:
                by_class = np.stack([store.by_class(kept["key"], set_name) for kept in runs])
                found[set_name, method] = Runs(choice["chosen"], runs, by_class)
    complete = min((len(runs.runs) for runs in found.values()), default=0)
    return {key: Runs(of.chosen, of.runs[:complete], of.by_class[:complete]) for key, of in found.items()}


def read_networks() -> dict[tuple[str, str], Runs]:
    """The same of whole networks next to an identity loss, without a choice of k and λ."""
    store, tests = Store(NETWORKS), Tested(Store(NETWORKS)).tests
    complete = min(len(runs) for runs in tests.values())
    found = {}
    for set_name, method in sorted(tests, key=lambda key: [*IDENTITY].index(key[1])):
        runs = sorted(tests[set_name, method], key=lambda run: run["seed"])[:complete]
        by_class = np.stack([store.by_class(run["key"], set_name) for run in runs])
        found[set_name, method] = Runs({}, runs, by_class)
    return found


def write_normalised(folder: Path, results: Tested, sets: Sequence[str]) -> dict[str, Any]:
    """Write the page and the table, and return the numbers of the advice; nothing without runs."""
    found = read(results, sets)
    if not found:
        return {}
    tested = {set_name for set_name, _ in found}
    sets = [name for name in sets if name in tested]
    networks = read_networks()
    differences, of_networks = differences_of(found, STORED[1:]), differences_of(networks, OF_NETWORKS)
    level, level_of_networks = (
        level_of_family(difference.p() for difference in of.values()) for of in (differences, of_networks)
    )
    rows = (
        *_rows("normalised scores", found, differences, level),
        *_rows("normalised scores of whole networks", networks, of_networks, level_of_networks),
    )
    write_rows(folder / "results" / "normalised.csv", rows)
    of_both = [change_of(of_set(found, name), "both default") for name in sets]
    numbers: dict[str, Any] = {
        "opis": sorted(round(-opis) for opis, _ in of_both),
        "tar": sorted(round(tar, 1) for _, tar in of_both),
        "sets": len(sets),
    }
    for measure in MEASURES:
        counts = [_counts(differences, level, name, "both default", measure) for name in sets]
        numbers[f"{measure}_better"], numbers[f"{measure}_worse"] = (
            sum(column) for column in zip(*counts, strict=True)
        )
    for name, kind in (("far", "both default"), ("far_of_cosines", "plain")):
        numbers[name] = sorted(round(100 * _far(of_set(found, of), kind), 2) for of in sets)
    changes = [change_of([runs], "both") for runs in networks.values()]
    numbers["networks"] = {
        "opis": sorted(round(opis) for opis, _ in changes),
        "tar": sorted(round(tar, 1) for _, tar in changes),
    }
    opis_of_networks, tar_of_networks = numbers["networks"].values()
    judged = sorted(100 * _far([runs], "the judged") for runs in networks.values())
    numbers["combinations"] = len(found)
    numbers["seeds"] = len(next(iter(found.values())).runs)
    values = {
        "opis": f"{numbers['opis'][0]} to {numbers['opis'][-1]}",
        "tar": f"{numbers['tar'][0]} to {numbers['tar'][-1]}",
        "far": f"{numbers['far'][0]:.2f} to {numbers['far'][-1]:.2f}",
        "far_of_cosines": f"{numbers['far_of_cosines'][0]:.2f} to {numbers['far_of_cosines'][-1]:.2f}",
        "fars": _seeds_of_fars(found, sets),
        "losses": len(BASES),
        "seeds": numbers["seeds"],
        "comparisons": len(differences),
        "by_cohort": _by_cohort(found, differences, level, sets),
        "curve": _changes(found, sets, [*(f"{n} identities" for n in IDENTITIES), "others default"]),
        "top": TOP,
        "opis_of_networks": f"{opis_of_networks[0]:+d} to {opis_of_networks[-1]:+d}",
        "tar_of_networks": f"{tar_of_networks[0]:+.1f} to {tar_of_networks[-1]:+.1f}",
        "seeds_of_networks": len(next(iter(networks.values())).runs),
        "comparisons_of_networks": len(of_networks),
        "networks": _networks(networks, of_networks, level_of_networks),
        "judged_of_networks": f"{judged[0]:.2f} to {judged[-1]:.2f}",
    }
    write_atomically(folder / "NORMALISED.md", PAGE.format(**values))
    return numbers


def differences_of(found: Mapping[tuple[str, str], Runs], kinds: Sequence[str]) -> dict[Any, Difference]:
    """By set and loss, kind of cohort, and measure."""
    differences = {}
    for key, runs in found.items():
        for kind in kinds:
            for measure in MEASURES:
                differences[key, kind, measure] = runs.difference(kind, measure)
    return differences


def _rows(
    study: str, found: Mapping[tuple[str, str], Runs], differences: Mapping[Any, Difference], level: float
) -> Iterator[Row]:
    for ((set_name, method), kind, measure), difference in differences.items():
        direction, pair = MEASURES[measure][1], (f"{method}, cosines", f"{method}, cohort: {kind}")
        k, strength = found[set_name, method].chosen.get(kind, DEFAULT)
        more = {"expected": direction, "verdict": _verdict(difference, direction, level)}
        note = f"k = {k:.0f}, λ = {strength:g}"
        yield of_difference(study, set_name, pair, measure, difference, **more, note=note)
    for (set_name, method), runs in found.items():
        for kind in runs.runs[0]["metrics"]:
            if kind not in STORED:
                yield from _without_interval(set_name, method, runs, kind)


def _without_interval(set_name: str, method: str, runs: Runs, kind: str) -> Iterator[Row]:
    """Changes by a cohort whose values by class are not stored."""
    name, base = f"{method}, cohort: {kind}", f"{method}, cosines"
    for measure, scale in SCALED.items():
        plain, value = runs.mean("plain", measure), runs.mean(kind, measure)
        unit, change = "points", 100 * (value - plain)
        if measure == "opis":
            unit, change = "%", 100 * (value / plain - 1)
        yield Row("normalised scores", set_name, name, measure, unit, change, base=base, base_value=scale * plain)


def _verdict(difference: Difference, direction: str, level: float) -> str:
    low, high = difference.ends(level)
    if low <= 0 <= high:
        return OPEN
    return HOLDS if (high < 0) == (direction == LOWER) else REVERSED


def of_set(found: Mapping[tuple[str, str], Runs], set_name: str) -> list[Runs]:
    return [runs for (name, _), runs in found.items() if name == set_name]


def change_of(of_losses: Sequence[Runs], kind: str) -> tuple[float, float]:
    """Mean change over losses: of OPIS in per cent (by its logarithm), of TAR in points; nan without runs."""
    with_kind = [runs for runs in of_losses if kind in runs.runs[0]["metrics"]]
    if not with_kind:
        return np.nan, np.nan
    logs = [np.log(runs.mean(kind, "opis") / runs.mean("plain", "opis")) for runs in with_kind]
    points = [100 * (runs.mean(kind, "tar") - runs.mean("plain", "tar")) for runs in with_kind]
    return float(100 * np.expm1(np.mean(logs))), float(np.mean(points))


def _far(of_losses: Sequence[Runs], kind: str) -> float:
    """Mean FAR of strangers over losses; nan if it was not measured: a third has fewer identities than a half."""
    rates = [rate for runs in of_losses for rate in runs.strangers(kind)]
    return float(np.mean(rates)) if rates else np.nan


def _seeds_of_fars(found: Mapping[tuple[str, str], Runs], sets: Sequence[str]) -> str:
    """Which rates are of fewer runs than the others."""
    measured = [[len(runs.strangers("both")) for runs in of_set(found, name)] for name in sets]
    if all(min(of_losses) > 1 for of_losses in measured):
        return ""
    losses = sorted(sum(seeds > 0 for seeds in of_losses) for of_losses in measured)
    return (
        "Where k and λ were chosen or the cohort is smaller, and for AS-norm and S-norm, it is of one seed and of "
        f"{losses[0]} to {losses[-1]} losses."
    )


def _table(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rows = [headings, ["---"] * len(headings), *lines]
    return "".join(f"|{'|'.join(row)}|\n" for row in rows)


def _by_cohort(
    found: Mapping[tuple[str, str], Runs], differences: Mapping[Any, Difference], level: float, sets: Sequence[str]
) -> str:
    lines = []
    for set_name in sets:
        of_losses = of_set(found, set_name)
        opis = np.mean([runs.mean("plain", "opis") for runs in of_losses])
        tar = np.mean([runs.mean("plain", "tar") for runs in of_losses])
        far = 100 * _far(of_losses, "plain")
        line = [set_name, str(of_losses[0].by_class.shape[-1] // 2)]
        line.append(f"{1000 * opis:.1f}, {100 * tar:.1f} %, {far:.2f} %")
        for kind in KINDS:
            counts = [_counts(differences, level, set_name, kind, measure) for measure in MEASURES]
            change = change_of(of_losses, kind)
            of_opis, of_tar = (f"{better} / {worse}" for better, worse in counts)
            far = 100 * _far(of_losses, kind)
            line.append(f"{change[0]:+.0f} % ({of_opis}), {change[1]:+.1f} ({of_tar}), {far:.2f} %")
        lines.append(line)
    return _table(["set", "identities in a half", "cosines: OPIS × 1000, TAR, FAR", *KINDS.values()], lines)


def _networks(networks: Mapping[tuple[str, str], Runs], differences: Mapping[Any, Difference], level: float) -> str:
    """By loss, the changes with their intervals."""
    lines = []
    for key, runs in networks.items():
        name = f"+ {NAMES[key[1]]}" if key[1] in NAMES else "cross-entropy"
        opis, tar, far = 1000 * runs.mean("plain", "opis"), 100 * runs.mean("plain", "tar"), _far([runs], "plain")
        line = [name, f"{opis:.1f}, {tar:.1f} %, {100 * far:.2f} %"]
        for kind in OF_NETWORKS:
            cells = []
            for measure, unit in (("opis", " %"), ("tar", "")):
                difference = differences[key, kind, measure]
                mean, low, high = difference.shown()
                cell = f"{mean:+.1f}{unit} [{low:+.1f}, {high:+.1f}]"
                is_decided = _verdict(difference, MEASURES[measure][1], level) != OPEN
                cells.append(f"**{cell}**" if is_decided else cell)
            line.append(", ".join([*cells, f"{100 * _far([runs], kind):.2f} %"]))
        lines.append(line)
    headings = ["losses", "cosines: OPIS × 1000, TAR, FAR", *OF_NETWORKS.values()]
    return _table(headings, lines)


def _counts(
    differences: Mapping[Any, Difference], level: float, set_name: str, kind: str, measure: str
) -> tuple[int, int]:
    """For how many losses it is better, and worse."""
    direction, verdicts = MEASURES[measure][1], []
    for ((name, _), of_kind, of), difference in differences.items():
        if (name, of_kind, of) == (set_name, kind, measure):
            verdicts.append(_verdict(difference, direction, level))
    return verdicts.count(HOLDS), verdicts.count(REVERSED)


def _changes(found: Mapping[tuple[str, str], Runs], sets: Sequence[str], kinds: Sequence[str]) -> str:
    lines = []
    for set_name in sets:
        line = [set_name]
        for kind in kinds:
            opis, tar = change_of(of_set(found, set_name), kind)
            far = 100 * _far(of_set(found, set_name), kind)
            line.append("" if np.isnan(far) else f"{opis:+.0f} %, {tar:+.1f}, {far:.2f} %")
        lines.append(line)
    headings = [kind.replace("others default", "all").replace("1 images", "1 image") for kind in kinds]
    return _table(["set", *headings], lines)
