"""Which runs have normalised scores, and those that are stored."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from methods import METHODS, SEEDS
from statistics_of_pairs import Difference, Spread, paired_difference, paired_log_ratio
from store import TEST, VALIDATION, Run, Store
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
