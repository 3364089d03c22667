"""The stored results by set and method: chosen settings, values, differences of methods, and verdicts on them."""

import json
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from claims import AVERAGES, CLAIMS, Comparison
from methods import HEADLINES, METHODS, REPEATED_SEEDS, SPLITS
from statistics_of_pairs import (
    LEVEL,
    MEASURES,
    Difference,
    Spread,
    bound_of,
    level_of_family,
    paired_difference,
    paired_log_ratio,
    pooled,
    verdict,
)
from store import TEST, TEST_AS_BASE, Store, test_of_draw

PRIOR = 4  # degrees of freedom of the pooled spread of tuning, when it is combined with a method's own

Result = dict[str, Any]


class Tested:
    """The stored results by set and method.

    tests: of the chosen settings: the last ones with the most seeds, as a method may have been tuned again.
    replaced: the number of these choices that replace one which had been tested.
    sets: those that have tests.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.tests: dict[tuple[str, str], list[Result]] = {}
        self.replaced = 0
        self._stages: dict[tuple[str, str], dict[str, list[Result]]] = {}
        for result in store.found.values():
            which = (result["set"], result["method"])
            self._stages.setdefault(which, {}).setdefault(result["stage"], []).append(result)
        for which, stages in self._stages.items():
            groups = _by_settings(stages.get(TEST, []))
            if groups:
                most = max(map(len, groups))
                complete = [group for group in groups if len(group) == most]
                self.tests[which] = complete[-1]
                self.replaced += len(complete) > 1
        self.sets = {set_name for set_name, _ in self.tests}
        self.difference = cache(self._difference)
        self.tuning = cache(self._tuning)

    def values(self, set_name: str, method: str, metric: str) -> np.ndarray:
        """By seed; none if it was not measured."""
        return np.array([result["metrics"][metric] for result in _with(metric, self.tests[set_name, method])])

    def settings(self, set_name: str, method: str) -> dict[str, Any]:
        """The settings that validation chose."""
        chosen: dict[str, Any] = self.tests[set_name, method][0]["settings"]
        return chosen

    def by_class(self, results: list[Result], metric: str) -> np.ndarray:
        """(S, C)"""
        return np.stack([self.store.by_class(result["key"], result["set"])[MEASURES[metric]] for result in results])

    def _difference(self, set_name: str, base: str, method: str, metric: str) -> Difference | None:
        """The difference of two methods, cached; over the seeds of both; None if there are none.

        A method that was added to a base is compared with the base's runs at the same settings.
        """
        of_base, of_method = self.tests.get((set_name, base), []), self.tests.get((set_name, method), [])
        is_added = method in METHODS and METHODS[method].on == base
        if is_added and of_method:
            of_base = self._at_settings(set_name, base, of_method[0]["settings"])
        of_base, of_method = _with(metric, of_base), _with(metric, of_method)
        seeds = {result["seed"] for result in of_base} & {result["seed"] for result in of_method}
        if not seeds:
            return None
        of_base, of_method = ([result for result in side if result["seed"] in seeds] for side in (of_base, of_method))
        tuned = [method] if is_added else [base, method]
        sides = [side for name in tuned if (side := self.tuning_of(set_name, name, metric)) is not None]
        find = paired_log_ratio if metric == "opis" else paired_difference
        return find(self.by_class(of_base, metric), self.by_class(of_method, metric), tuning=sides)

    def _at_settings(self, set_name: str, base: str, settings: dict[str, Any]) -> list[Result]:
        """The base's last test runs whose settings are among these."""
        stages = self._stages.get((set_name, base), {})
        for group in reversed(_by_settings([*stages.get(TEST_AS_BASE, []), *stages.get(TEST, [])])):
            if group[0]["settings"].items() <= settings.items():
                return group
        return []

    def tuning_of(self, set_name: str, method: str, metric: str) -> Spread | None:
        """The spread of tuning of one method: its own and the pooled one, weighted by degrees of freedom.

        A moderated variance (Smyth 2004) with PRIOR degrees of freedom, as methods differ in their spread and three
        tunings show little of it.
        """
        of_all, own = self.tuning(set_name, metric), self.spread_of(set_name, method, metric)
        if of_all is None:
            return None
        own = own or Spread(0.0, 0)
        return pooled([own, Spread(of_all.variance, min(PRIOR, of_all.freedom - own.freedom))])

    def _tuning(self, set_name: str, metric: str) -> Spread | None:
        """The spread of tuning: of a method's test values, over the settings that each of its tunings chose.

        Pooled over the methods that were tuned repeatedly on the set; else of all sets; None if none was.
        """
        found = self._spreads([set_name], metric)
        if not found:
            found = self._spreads(sorted(self.sets), metric)
        return pooled(found) if found else None

    def _spreads(self, sets: Sequence[str], metric: str) -> list[Spread]:
        found = [self.spread_of(name, method, metric) for name in sets for method in HEADLINES]
        return [spread for spread in found if spread is not None]

    def spread_of(self, set_name: str, method: str, metric: str) -> Spread | None:
        """The spread of a method's test values over its single tunings; None if it was not tuned so often."""
        stages = self._stages.get((set_name, method), {})
        values = []
        for draw in range(SPLITS):
            groups = _by_settings(_with(metric, stages.get(test_of_draw(draw), [])))
            if not groups or len(groups[-1]) < len(REPEATED_SEEDS):
                return None
            mean = float(np.nanmean(self.by_class(groups[-1], metric)))
            values.append(np.log(mean) if metric == "opis" else mean)
        return Spread(float(np.var(values, ddof=1)), len(values) - 1)


def _with(metric: str, results: Sequence[Result]) -> list[Result]:
    return [result for result in results if metric in result["metrics"]]


def _by_settings(results: list[Result]) -> list[list[Result]]:
    """Results of the same settings and arithmetic, by seed, in the order in which they were stored first."""
    groups: dict[str, list[Result]] = {}
    for result in results:
        # Sorted, as in a file: settings of this process may be in another order.
        group = json.dumps([result["settings"], result["fingerprint"]], sort_keys=True)
        groups.setdefault(group, []).append(result)
    return [sorted(group, key=lambda result: result["seed"]) for group in groups.values()]


class Judged(NamedTuple):
    """A comparison on one set in one measure."""

    set_name: str
    comparison: Comparison
    measure: str
    direction: str
    difference: Difference
    verdict: str


# 933 comparisons were made before the ablations were left out; 177 were decided. Judged as a smaller family, the rest
# would be decided more easily.
MADE, DECIDED = 933, 177


class Verdicts:
    """The verdicts of all comparisons; those of the claims and the averages together are one family.

    family: the p values against what each verdict must exclude.
    level: of the intervals that decide, see level_of_family; never above that of all comparisons made.
    excluding: how many p values are below 5 %, and below the level.
    """

    def __init__(self, results: Tested, sets: Sequence[str]) -> None:
        self.results = results
        asked = [comparison for claim in CLAIMS for comparison in claim.comparisons]
        asked += [comparison for comparisons in AVERAGES.values() for comparison in comparisons]
        family = {}
        for set_name in sets:
            for base, method, _, expected in asked:
                for measure, direction in expected:
                    difference = results.difference(set_name, base, method, measure)
                    if difference is not None:
                        bound = bound_of(difference, direction, measure)
                        family[set_name, base, method, measure, bound] = difference.p(bound)
        self.family = [*family.values()]
        self.level = min(level_of_family(self.family), LEVEL * DECIDED / MADE)
        values = np.array(self.family)
        self.excluding = [int((values <= level).sum()) for level in (LEVEL, self.level)]

    def of(self, set_name: str, comparison: Comparison) -> list[Judged]:
        """In each measure; none if it was not run."""
        found = []
        for measure, direction in comparison.expected:
            difference = self.results.difference(set_name, comparison.base, comparison.method, measure)
            if difference is not None:
                judged = verdict(difference, direction, measure, level=self.level)
                found.append(Judged(set_name, comparison, measure, direction, difference, judged))
        return found
