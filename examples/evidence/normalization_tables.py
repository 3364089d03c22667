"""Which runs have normalised scores, and the rows and numbers of those that normalization.py has stored."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from image_sets import COUNTED
from methods import METHODS, SEEDS
from rows import SCALES, UNITS, Row, of_difference
from statistics_of_pairs import (
    HIGHER,
    HOLDS,
    LOWER,
    OPEN,
    REVERSED,
    Difference,
    Spread,
    level_of_family,
    paired_difference,
    paired_log_ratio,
    verdict,
)
from store import TEST, VALIDATION, Run, Store, run_of
from tested import Tested
from tuning import made

FOLDER = "normalization"  # in the folder of the runs
OF_SAMPLES, OF_CLASSES = ("triplet", "ms", "smoothap", "recall"), ("proxy_nca", "arcface", "id")
WITH_TCM = (*OF_SAMPLES, *OF_CLASSES)
BASES = (*WITH_TCM, "contrastive", "cit@1.0", "circle", "angular", "lifted", "soft_triple", "softmax")
TCM, AS_BASE = " + tcm@added", " as base"
PLAIN, NORMALIZED = 0, 1  # of the stored values by class
BY_CLASS = {"r1": 0, "map_at_r": 1, "opis": 2, "tar": 3}

Side = tuple[str, int]  # a name, and PLAIN or NORMALIZED
WORST, WHOLE = "highest FAR of a class", "whole networks, normalised scores"  # at a pooled FAR of 1 %
KINDS = {"gallery": "the gallery itself", "train": "training samples"}
CHANGED = ("", PLAIN), ("", NORMALIZED)  # two sides: what follows the base's name, and which scores
ADDED = (AS_BASE, NORMALIZED), (TCM, NORMALIZED)
CONDITIONS = {
    "normalised, all losses": CHANGED,
    "normalised": ((AS_BASE, PLAIN), (AS_BASE, NORMALIZED)),
    "TCM": ((AS_BASE, PLAIN), (TCM, PLAIN)),
    "both": ((AS_BASE, PLAIN), (TCM, NORMALIZED)),
}


def compared(results: Tested, set_name: str) -> dict[str, Run]:
    """Name to run of seed 0: at the settings that validation chose; "BASE as base": at those that TCM was added to.

    Stored runs at other settings or with another arithmetic are not shown.
    """
    chosen = results.all_settings(set_name)
    found = {name: (name, chosen[name]) for name in BASES if name in chosen}
    for base in WITH_TCM:
        if (both := base + TCM) in chosen:
            found[both] = both, chosen[both]
            found[base + AS_BASE] = base, {k: v for k, v in chosen[both].items() if k not in METHODS[both].axes}
    return {name: made(set_name, TEST, *run, 0) for name, run in found.items()}


def choice_for(test: Run) -> Run:
    """The run that chose cohort, k and strength for the tests of these settings."""
    return test._replace(stage=VALIDATION, seed=0)


class Results(NamedTuple):
    """The stored runs of a set.

    chosen: by name, what `choice_for` found.
    runs: by name and seed.
    by_class: (2, 4, C), plain and normalised as chosen, by name and seed.
    """

    chosen: dict[str, dict[str, Any]]
    runs: dict[tuple[str, int], dict[str, Any]]
    by_class: dict[tuple[str, int], np.ndarray]

    @classmethod
    def read(cls, store: Store, wanted: Mapping[str, Run]) -> "Results":
        chosen = {name: choice for name, run in wanted.items() if (choice := store.get(choice_for(run)))}
        runs = {
            (name, seed): found
            for name in chosen
            for seed in SEEDS
            if (found := store.get(wanted[name]._replace(seed=seed)))
        }
        by_class = {which: store.by_class(run["key"], run["set"]) for which, run in runs.items()}
        return cls({name: choice["chosen"] for name, choice in chosen.items()}, runs, by_class)

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys(name for name, _ in self.runs))

    def values(self, side: Side, metric: str, seeds: list[int]) -> np.ndarray:
        """(S, C)"""
        name, which = side
        return np.stack([self.by_class[name, seed][which, BY_CLASS[metric]] for seed in seeds])

    def seeds(self, *names: str) -> list[int]:
        return [seed for seed in SEEDS if all((name, seed) in self.runs for name in names)]

    def difference(self, base: Side, other: Side, metric: str, tuning: Iterable[Spread] = ()) -> Difference | None:
        """Over the seeds of both; OPIS as a log-ratio. None without a common seed."""
        if not (seeds := self.seeds(base[0], other[0])):
            return None
        find = paired_log_ratio if metric == "opis" else paired_difference
        return find(self.values(base, metric, seeds), self.values(other, metric, seeds), tuning=tuple(tuning))


Found = Mapping[str, Results]
Differences = Mapping[tuple[str, str], Difference]  # by base and set


def normalization_rows(results: Tested, sets: Sequence[str]) -> Iterator[Row]:
    """What normalised scores change, what TCM adds to them, both kinds of cohort, and a gallery that grows."""
    found = _read(results, sets)
    if not found:
        return
    opis, tar = (differences(found, *CHANGED, metric) for metric in ("opis", "tar"))
    added = _added(found, results)
    level = _level(*map(_counted, (opis, tar, added)))
    for measure, of, direction in (("opis", opis, LOWER), ("tar", tar, HIGHER)):
        yield from _judged("normalised scores", ", normalised", measure, of, (direction, level))
    yield from _judged("TCM on normalised scores", " + tcm, normalised", "opis", added, (LOWER, level))
    for name, results_of_set in found.items():
        yield from _by_condition(name, results_of_set)
        yield from _by_cohort(name, results_of_set)
        yield from _growth(name, results_of_set)


def _read(results: Tested, sets: Sequence[str]) -> Found:
    """The results of the sets that have any."""
    store = Store(results.store.folder / FOLDER)
    found = {name: Results.read(store, compared(results, name)) for name in sets}
    return {name: of_set for name, of_set in found.items() if of_set.runs}


def _judged(study: str, added: str, measure: str, of: Differences, rule: tuple[str, float]) -> Iterator[Row]:
    direction, level = rule
    for (base, name), difference in of.items():
        judged = verdict(difference, direction, measure, level=level)
        pair = (base, base + added)
        yield of_difference(study, name, pair, measure, difference, expected=direction, verdict=judged)


def summary(results: Tested, sets: Sequence[str]) -> dict[str, Any]:
    """Numbers of the README: mean changes by set, and in how many combinations TAR is higher and lower."""
    found = _read(results, [name for name in sets if name in COUNTED])
    opis, tar = (differences(found, *CHANGED, metric) for metric in ("opis", "tar"))
    level = _level(opis, tar, _added(found, results))
    higher = counts(tar.values(), level)
    return {
        "opis": {name: mean_change(opis, name) for name in found},
        "tar": {name: mean_change(tar, name) for name in found},
        "combinations": len(tar),
        "tar_higher": higher[HIGHER],
        "tar_lower": higher[LOWER],
    }


def mean_change(differences: Differences, set_name: str) -> float:
    """Over the losses of a set: of OPIS in per cent of the base's, of others in points."""
    found = [difference for (_, name), difference in differences.items() if name == set_name]
    mean = float(np.mean([difference.mean for difference in found]))
    return 100 * float(np.expm1(mean) if found[0].is_log_ratio else mean)


def _added(found: Found, results: Tested) -> Differences:
    """Of TCM, added to normalised scores, with a cohort on both sides or on neither: else it is normalisation."""
    added = {}
    for (base, name), difference in differences(found, *ADDED, "opis", tuned=results).items():
        with_cohort = [best_kind(found[name].chosen[base + end]) is not None for end, _ in ADDED]
        if all(with_cohort) or not any(with_cohort):
            added[base, name] = difference
    return added


def _level(*families: Differences) -> float:
    return level_of_family(difference.p() for family in families for difference in family.values())


def differences(found: Found, before: Side, after: Side, metric: str, tuned: Tested | None = None) -> Differences:
    """Of each base and set that has both sides; tuned: has the spread of tuning of the second side."""
    found_differences = {}
    for base in BASES:
        sides = (base + before[0], before[1]), (base + after[0], after[1])
        for name, of_set in found.items():
            spread = tuned.tuning_of(name, base + after[0], metric) if tuned else None
            difference = of_set.difference(*sides, metric, [spread] if spread else [])
            if difference is not None:
                found_differences[base, name] = difference
    return found_differences


def _counted(differences: Differences) -> Differences:
    """Without the sets that have another's objects."""
    return {(base, name): difference for (base, name), difference in differences.items() if name in COUNTED}


def counts(differences: Iterable[Difference], level: float) -> Counter[str]:
    """How many are LOWER, HIGHER and OPEN by intervals of the level."""
    names = {HOLDS: LOWER, REVERSED: HIGHER, OPEN: OPEN}
    return Counter(names[verdict(difference, LOWER, "opis", level=level)] for difference in differences)


def _by_condition(set_name: str, results: Results) -> Iterator[Row]:
    """Means over losses, of OPIS geometric: TCM alone, normalisation alone, both; the highest FAR at a pooled 1 %."""
    study = "mean over losses"
    for condition, sides in CONDITIONS.items():
        changes = {m: differences({set_name: results}, *sides, m) for m in ("opis", "tar", "r1", "map_at_r")}
        if not changes["opis"]:
            continue
        for measure in changes:
            unit = "%" if measure == "opis" else "points"
            yield Row(study, set_name, condition, measure, unit, mean_change(changes[measure], set_name))
        bases = [base for base, _ in changes["opis"]]
        before, after = ([(base + end, scores) for base in bases] for end, scores in sides)
        worst = _mean_worst(results, after)
        yield Row(study, set_name, condition, WORST, "%", worst, base_value=_mean_worst(results, before))


def _mean_worst(results: Results, sides: Iterable[Side]) -> float:
    found = []
    for method, which in sides:
        kind = "plain" if which == PLAIN else best_kind(results.chosen[method]) or "plain"
        found += [run["metrics"][kind]["worst_far"] for (name, _), run in results.runs.items() if name == method]
    return 100 * float(np.mean(found))


def best_kind(chosen: dict[str, Any]) -> str | None:
    """The recommended cohort with the lowest OPIS on the validation classes; None: the tool advises against all."""
    advised = [kind for kind in chosen if chosen[kind]["recommended"]]
    return min(advised, key=lambda kind: chosen[kind]["used"][3], default=None)


def _by_cohort(set_name: str, results: Results) -> Iterator[Row]:
    """Both cohorts on the test classes, whether the validation classes advised them or not."""
    study, methods = "kinds of cohort", [name for name in results.names if not name.endswith(AS_BASE)]
    for kind, words in KINDS.items():
        opis, tar, advised = [], [], 0
        for method in methods:
            plain_opis, plain_tar = _opis_and_tar(results, method, "plain")
            own_opis, own_tar = _opis_and_tar(results, method, kind)
            opis.append(np.log(own_opis / plain_opis))
            tar.append(100 * (own_tar - plain_tar))
            advised += results.chosen[method][kind]["recommended"]
        note = f"mean over {len(tar)} losses; advised for {advised}; lower TAR for {sum(value < 0 for value in tar)}"
        yield Row(study, set_name, words, "opis", "%", float(100 * np.expm1(np.mean(opis))), note=note)
        yield Row(study, set_name, words, "tar", "points", float(np.mean(tar)), min(tar), max(tar), note=note)


def _opis_and_tar(results: Results, method: str, kind: str) -> tuple[float, float]:
    """Means over seeds."""
    metrics = [run["metrics"][kind] for (name, _), run in results.runs.items() if name == method]
    return float(np.mean([found["opis"] for found in metrics])), float(np.mean([found["tar"] for found in metrics]))


def read_results(whole: Tested, set_name: str) -> Results:
    """Of whole networks, with the settings of their tests."""
    tests = {method: run_of(runs[0]) for (name, method), runs in whole.tests.items() if name == set_name}
    return Results.read(Store(whole.store.folder / FOLDER), tests)


def whole_rows(whole: Tested, sets: Sequence[str]) -> Iterator[Row]:
    """Normalised scores of whole networks."""
    for name in sets:
        results = read_results(whole, name)
        for method in results.names:
            chosen, sides = results.chosen[method]["gallery"], ((method, PLAIN), (method, NORMALIZED))
            note = "k = {:.0f}, λ = {:g}".format(*chosen["used"]) if chosen["recommended"] else "none advised"
            for measure in ("opis", "tar", "r1", "map_at_r"):
                if change := results.difference(*sides, measure):
                    pair = (method, f"{method}, normalised")
                    yield of_difference(WHOLE, name, pair, measure, change, note=note)
            before, after = (_mean_worst(results, [side]) for side in sides)
            yield Row(WHOLE, name, f"{method}, normalised", WORST, "%", after, base=method, base_value=before)


def _growth(set_name: str, results: Results) -> Iterator[Row]:
    """A gallery that grows and is its own cohort, and the FAR of its threshold once all identities have come."""
    grown = [run["growth"] for (of, _), run in results.runs.items() if "growth" in run and not of.endswith(AS_BASE)]
    ways = {"plain": "cosines", "k": "normalised, k kept", "share": "normalised, k in proportion"}
    for row in range(len(grown[0]) if grown else 0):
        note = f"{grown[0][row]['identities']} identities; mean of triplet, MS and ArcFace"
        for way, words in ways.items():
            for key, measure in (("opis", "opis"), ("tar", "tar"), ("far_of_all", "FAR of all, threshold at 0.1 %")):
                value = float(np.mean([of[row][way][key] for of in grown]))
                unit = UNITS.get(measure, "%")
                scaled = SCALES.get(measure, 100) * value
                yield Row("growing gallery", set_name, words, measure, unit, scaled, note=note)
