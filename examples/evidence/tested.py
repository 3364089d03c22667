"""The stored results by set and method: chosen settings, values, and differences of methods."""

from collections import Counter
from typing import Any

import numpy as np
from statistics_of_pairs import MEASURES, Difference, paired_difference
from store import VALIDATION, Store


class Tested:
    """The stored results by set and method."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.tests: dict[tuple[str, str], list[dict[str, Any]]] = {}
        self.trials: Counter[tuple[str, str]] = Counter()
        self._differences: dict[tuple[str, str, str, str], Difference | None] = {}
        chosen: dict[tuple[str, str], str] = {}
        for result in store.found.values():
            which = (result["set"], result["method"])
            if result["stage"] == VALIDATION:
                self.trials[which] += 1
            else:
                # If a method was tuned again, the settings of the last run count.
                settings = repr((result["settings"], result["fingerprint"]))
                if chosen.get(which) != settings:
                    chosen[which], self.tests[which] = settings, []
                self.tests[which].append(result)
        for results in self.tests.values():
            results.sort(key=lambda result: result["seed"])

    def values(self, set_name: str, method: str, metric: str) -> np.ndarray:
        return np.array([result["metrics"][metric] for result in self.tests[set_name, method]])

    def settings(self, set_name: str, method: str) -> dict[str, Any]:
        """The settings that validation chose."""
        chosen: dict[str, Any] = self.tests[set_name, method][0]["settings"]
        return chosen

    def all_settings(self, set_name: str) -> dict[str, dict[str, Any]]:
        """Method to the settings that validation chose on a set."""
        return {method: self.settings(of, method) for of, method in self.tests if of == set_name}

    def hours(self) -> float:
        """Hours of CPU time of all results; runs without a recorded time count as the mean."""
        timed = [result["seconds"] for result in self.store.found.values() if "seconds" in result]
        return len(self.store.found) * sum(timed) / max(len(timed), 1) / 3600

    def by_class(self, set_name: str, method: str, metric: str) -> np.ndarray:
        """(S, C)"""
        kept = [self.store.by_class(result["key"], set_name) for result in self.tests[set_name, method]]
        return np.stack(kept)[:, MEASURES[metric]]

    def difference(self, set_name: str, base: str, method: str, metric: str) -> Difference | None:
        """The difference of two methods, cached; None unless both were run with the same seeds."""
        asked = (set_name, base, method, metric)
        if asked not in self._differences:
            seeds = [[result["seed"] for result in self.tests.get((set_name, name), [])] for name in (base, method)]
            self._differences[asked] = None
            if seeds[0] and seeds[0] == seeds[1]:
                values = [self.by_class(set_name, name, metric) for name in (base, method)]
                self._differences[asked] = paired_difference(*values)
        return self._differences[asked]
