"""Which runs have normalised scores, and the rows and numbers of those that normalization.py has stored."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from methods import SEEDS
from rows import Row, of_difference
from statistics_of_pairs import (
    HIGHER,
    LOWER,
    Difference,
    level_of_family,
    paired_difference,
    paired_log_ratio,
    verdict,
)
from store import TEST, VALIDATION, Run, Store, run_of
from tested import Tested
from tuning import made

FOLDER = "normalization"  # in the folder of the runs
BASES = (
    *("triplet", "ms", "smoothap", "recall", "proxy_nca", "arcface", "id", "contrastive", "cit@1.0", "circle"),
    *("angular", "lifted", "soft_triple", "softmax"),
)
BY_CLASS = {"r1": 0, "map_at_r": 1, "opis": 2, "tar": 3}
WORST, WHOLE = "highest FAR of a class", "whole networks, normalised scores"  # at a pooled FAR of 1 %
KINDS = ("gallery", "train")  # of cohorts: the gallery itself, and training samples

Differences = dict[tuple[str, str], Difference]  # by set and method


def compared(results: Tested, set_name: str) -> dict[str, Run]:
    """Method to run of seed 0, at the settings that validation chose.

    Stored runs at other settings or with another arithmetic are not shown.
    """
    runs = {}
    for method in BASES:
        if (set_name, method) in results.tests:
            runs[method] = made(set_name, TEST, method, results.settings(set_name, method), 0)
    return runs


def choice_for(test: Run) -> Run:
    """The run that chose cohort, k and strength for the tests of these settings."""
    return test._replace(stage=VALIDATION, seed=0)


def best_kind(chosen: Mapping[str, Any]) -> str | None:
    """The recommended cohort with the lowest OPIS on the validation classes; None: the tool advises against all."""
    advised = [kind for kind in chosen if chosen[kind]["recommended"]]
    return min(advised, key=lambda kind: chosen[kind]["used"][3], default=None)


class Normalized(NamedTuple):
    """The stored runs of a method.

    chosen: what `choice_for` found.
    runs: by seed.
    by_class: (S, 2, 4, C), of plain cosines and of the chosen normalised scores.
    """

    chosen: dict[str, Any]
    runs: list[dict[str, Any]]
    by_class: np.ndarray

    def plain(self, metric: str) -> np.ndarray:
        """(S, C) of plain cosines."""
        return self.by_class[:, 0, BY_CLASS[metric]]

    def difference(self, metric: str) -> Difference:
        """Normalised minus plain; OPIS as a log-ratio."""
        find = paired_log_ratio if metric == "opis" else paired_difference
        return find(self.plain(metric), self.by_class[:, 1, BY_CLASS[metric]])

    def values(self, metric: str) -> np.ndarray:
        """Of plain cosines, by seed."""
        return np.array([run["metrics"]["plain"][metric] for run in self.runs])

    def worst_far(self, kind: str) -> float:
        """The highest FAR of a class, in per cent."""
        return 100 * float(np.mean([run["metrics"][kind]["worst_far"] for run in self.runs]))


def read(store: Store, wanted: Mapping[str, Run]) -> dict[str, Normalized]:
    """By method, those that have been chosen and run."""
    found = {}
    for method, run in wanted.items():
        choice = store.get(choice_for(run))
        runs = [kept for seed in SEEDS if (kept := store.get(run._replace(seed=seed)))]
        if choice and runs:
            by_class = np.stack([store.by_class(kept["key"], run.set) for kept in runs])
            found[method] = Normalized(choice["chosen"], runs, by_class)
    return found


def _differences(results: Tested, sets: Sequence[str]) -> dict[str, Differences]:
    """Of OPIS and of TAR at FAR 0.1 %."""
    store = Store(results.store.folder / FOLDER)
    found: dict[str, Differences] = {"opis": {}, "tar": {}}
    for set_name in sets:
        for method, of_method in read(store, compared(results, set_name)).items():
            for measure, differences in found.items():
                differences[set_name, method] = of_method.difference(measure)
    return found


def _level(found: Mapping[str, Differences]) -> float:
    return level_of_family(difference.p() for differences in found.values() for difference in differences.values())


def normalization_rows(results: Tested, sets: Sequence[str]) -> Iterator[Row]:
    """What normalised scores change."""
    found = _differences(results, sets)
    level = _level(found)
    for measure, direction in (("opis", LOWER), ("tar", HIGHER)):
        for (set_name, method), difference in found[measure].items():
            judged = verdict(difference, direction, measure, level=level)
            pair = (method, f"{method}, normalised")
            more = {"expected": direction, "verdict": judged}
            yield of_difference("normalised scores", set_name, pair, measure, difference, **more)


def summary(results: Tested, sets: Sequence[str]) -> dict[str, Any]:
    """Numbers of the README: mean changes by set, and in how many combinations TAR is higher and lower."""
    found = _differences(results, sets)
    level = _level(found)
    counts: Counter[str] = Counter()
    for difference in found["tar"].values():
        low, high = difference.ends(level)
        counts["higher"] += low > 0
        counts["lower"] += high < 0
    return {
        "opis": _mean_changes(found["opis"]),
        "tar": _mean_changes(found["tar"]),
        "combinations": len(found["tar"]),
        "tar_higher": counts["higher"],
        "tar_lower": counts["lower"],
    }


def _mean_changes(differences: Differences) -> dict[str, float]:
    """By set, over its losses: of OPIS in per cent of the base's, of others in points."""
    by_set: dict[str, list[Difference]] = {}
    for (set_name, _), difference in differences.items():
        by_set.setdefault(set_name, []).append(difference)
    changes = {}
    for set_name, of_set in by_set.items():
        mean = float(np.mean([difference.mean for difference in of_set]))
        changes[set_name] = of_set[0]._replace(mean=mean).shown()[0]
    return changes


def read_whole(whole: Tested, set_name: str) -> dict[str, Normalized]:
    """Of whole networks, with the settings of their tests."""
    tests = {method: run_of(runs[0]) for (name, method), runs in whole.tests.items() if name == set_name}
    return read(Store(whole.store.folder / FOLDER), tests)


def whole_rows(whole: Tested, sets: Sequence[str]) -> Iterator[Row]:
    """Normalised scores of whole networks."""
    for set_name in sets:
        for method, found in read_whole(whole, set_name).items():
            chosen, normalised = found.chosen["gallery"], f"{method}, normalised"
            note = "none advised"
            if chosen["recommended"]:
                note = "k = {:.0f}, λ = {:g}".format(*chosen["used"])
            for measure in BY_CLASS:
                pair = (method, normalised)
                yield of_difference(WHOLE, set_name, pair, measure, found.difference(measure), note=note)
            after = found.worst_far(best_kind(found.chosen) or "plain")
            yield Row(WHOLE, set_name, normalised, WORST, "%", after, base=method, base_value=found.worst_far("plain"))
