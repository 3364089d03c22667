"""The stored results by set and method: chosen settings, values, differences of methods, and verdicts on them."""

from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from claims import GOALS, Claim, Comparison
from methods import HEADLINES, METHODS, REPEATED_SEEDS, SPLITS
from statistics_of_pairs import (
    HIGHER,
    LEVEL,
    LOWER,
    MEASURES,
    Difference,
    Spread,
    bound_of,
    level_of_family,
    paired_difference,
    paired_log_ratio,
    verdict,
)
from store import TEST, TEST_AS_BASE, Store, split_of, test_of_draw, validation

TWICE = ("contrastive", "tcm")  # one function (with λ = 1), tuned as two methods on two grids
PRIOR = 4  # degrees of freedom of the pooled spread of tuning, when it is combined with a method's own

Result = dict[str, Any]


class Tested:
    """The stored results by set and method.

    tests: of the chosen settings: the last ones with the most seeds, as a method may have been tuned again.
    trials: the number of settings tried on the first validation split.
    replaced: the number of these choices that replace one which had been tested.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.tests: dict[tuple[str, str], list[Result]] = {}
        self.trials: Counter[tuple[str, str]] = Counter()
        self.replaced = 0
        self._stages: dict[tuple[str, str], dict[str, list[Result]]] = {}
        for result in store.found.values():
            which = (result["set"], result["method"])
            self._stages.setdefault(which, {}).setdefault(result["stage"], []).append(result)
        for which, stages in self._stages.items():
            self.trials[which] = len(stages.get(validation(0), []))
            if groups := _by_settings(stages.get(TEST, [])):
                most = max(map(len, groups))
                self.tests[which] = next(group for group in reversed(groups) if len(group) == most)
                self.replaced += sum(len(group) == most for group in groups) > 1
        self.difference = cache(self._difference)
        self.tuning = cache(self._tuning)

    def values(self, set_name: str, method: str, metric: str) -> np.ndarray:
        """By seed; nan where it was not measured."""
        return np.array([result["metrics"].get(metric, np.nan) for result in self.tests[set_name, method]])

    def settings(self, set_name: str, method: str) -> dict[str, Any]:
        """The settings that validation chose."""
        chosen: dict[str, Any] = self.tests[set_name, method][0]["settings"]
        return chosen

    def all_settings(self, set_name: str) -> dict[str, dict[str, Any]]:
        """Method to the settings that validation chose on a set."""
        return {method: self.settings(of, method) for of, method in self.tests if of == set_name}

    def splits(self, set_name: str, method: str) -> int:
        """The number of validation splits that chose the settings."""
        chosen, stages = self.settings(set_name, method), self._stages[set_name, method]
        return sum(
            any(result["settings"] == chosen for result in stages.get(validation(split), [])) for split in range(SPLITS)
        )

    def at_end(self, set_name: str, method: str) -> list[str]:
        """The settings whose chosen value is the last that was tried in a direction which has no natural end.

        TCM's margins end where they meet.
        """
        chosen, spec = self.settings(set_name, method), METHODS[method]
        stages = self._stages[set_name, method]
        found, meet = [], chosen.get("tcm.margin_plus") == chosen.get("tcm.margin_minus")
        for key, axis in spec.axes.items():
            tried = {r["settings"][key] for stage in stages if split_of(stage) is not None for r in stages[stage]}
            below, above = (len(end) > 1 for end in axis.ends(farther=True))
            below, above = (
                below and not (meet and key == "tcm.margin_plus"),
                above and not (meet and key == "tcm.margin_minus"),
            )
            if (
                len(axis.values) > 1
                and chosen[key] not in axis.bounds
                and ((below and chosen[key] == min(tried)) or (above and chosen[key] == max(tried)))
            ):
                found.append(key)
        return found

    def hours(self) -> float:
        """Hours of CPU time of all results; runs without a recorded time count as the mean."""
        timed = [result["seconds"] for result in self.store.found.values() if "seconds" in result]
        return len(self.store.found) * sum(timed) / max(len(timed), 1) / 3600

    def by_class(self, results: list[Result], metric: str) -> np.ndarray:
        """(S, C)"""
        kept = [self.store.by_class(result["key"], result["set"]) for result in results]
        return np.stack(kept)[:, MEASURES[metric]]

    def luck(self, set_name: str, metric: str) -> float:
        """The absolute difference of one function that was tuned as two methods; 0 if it was not."""
        found = self.difference(set_name, *TWICE, metric)
        return 0.0 if found is None else abs(found.mean)

    def _difference(
        self, set_name: str, base: str, method: str, metric: str, *, base_anew: bool = False
    ) -> Difference | None:
        """The difference of two methods, cached; None unless both were run with the same seeds.

        A method that was added to a base is compared with the base's runs at the same settings, unless base_anew: then
        with the base's own choice.
        """
        of_base, of_method = (self.tests.get((set_name, name), []) for name in (base, method))
        settings = of_method[0]["settings"].items() if of_method else {}.items()
        added = method in METHODS and METHODS[method].on == base
        if added and not base_anew:
            stages = self._stages.get((set_name, base), {})
            groups = _by_settings([*stages.get(TEST_AS_BASE, []), *stages.get(TEST, [])])
            of_base = next((group for group in reversed(groups) if group[0]["settings"].items() <= settings), [])
        if not of_base or [r["seed"] for r in of_base] != [r["seed"] for r in of_method]:
            return None
        find = paired_log_ratio if metric == "opis" else paired_difference
        shares_settings = added and of_base[0]["settings"].items() <= settings
        tuned = [self.tuning_of(set_name, of, metric) for of in ([method] if shares_settings else [base, method])]
        sides = [side for side in tuned if side is not None]
        return find(self.by_class(of_base, metric), self.by_class(of_method, metric), tuning=sides)

    def tuning_of(self, set_name: str, method: str, metric: str) -> Spread | None:
        """The spread of tuning of one method: its own and the pooled one, weighted by degrees of freedom.

        A moderated variance (Smyth 2004) with PRIOR degrees of freedom, as methods differ in their spread and three
        tunings show little of it.
        """
        pooled, own = self.tuning(set_name, metric), self.spread_of(set_name, method, metric)
        if pooled is None:
            return None
        own = own or Spread(0.0, 0)
        prior = min(PRIOR, pooled.freedom - own.freedom)
        freedom = own.freedom + prior
        return Spread((own.variance * own.freedom + pooled.variance * prior) / freedom, freedom)

    def _tuning(self, set_name: str, metric: str) -> Spread | None:
        """The spread of tuning: of a method's test values, over the settings that each of its tunings chose.

        Pooled over the methods that were tuned repeatedly on the set; else of all sets; None if none was.
        """
        found = [spread for method in HEADLINES if (spread := self.spread_of(set_name, method, metric))]
        if not found:
            others = {of for of, _ in self.tests} - {set_name}
            found = [s for of in sorted(others) for m in HEADLINES if (s := self.spread_of(of, m, metric))]
        if not found:
            return None
        freedom = sum(spread.freedom for spread in found)
        return Spread(sum(spread.variance * spread.freedom for spread in found) / freedom, freedom)

    def spread_of(self, set_name: str, method: str, metric: str) -> Spread | None:
        """The spread of a method's test values over its single tunings; None if it was not tuned so often."""
        stages = self._stages.get((set_name, method), {})
        values = []
        for draw in range(SPLITS):
            groups = _by_settings(stages.get(test_of_draw(draw), []))
            if not groups or len(groups[-1]) < len(REPEATED_SEEDS):
                return None
            mean = float(np.nanmean(self.by_class(groups[-1], metric)))
            values.append(np.log(mean) if metric == "opis" else mean)
        return Spread(float(np.var(values, ddof=1)), len(values) - 1)


def _by_settings(results: list[Result]) -> list[list[Result]]:
    """Results of the same settings and arithmetic, by seed, in the order in which they were stored first."""
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(repr((result["settings"], result["fingerprint"])), []).append(result)
    return [sorted(group, key=lambda result: result["seed"]) for group in groups.values()]


class Judged(NamedTuple):
    """A comparison on one set in one measure."""

    set_name: str
    comparison: Comparison
    measure: str
    direction: str
    difference: Difference
    verdict: str


class Verdicts:
    """The verdicts of all comparisons; those of the claims and the goals together are one family.

    family: the p values against what each verdict must exclude.
    level: of the intervals that decide, see level_of_family.
    """

    def __init__(self, results: Tested, claims: Sequence[Claim], sets: Sequence[str]) -> None:
        self.results = results
        asked = [comparison for claim in claims for comparison in claim.comparisons]
        for goal in GOALS:
            expected = ((goal.measure, LOWER if goal.measure == "opis" else HIGHER),)
            asked += [Comparison(*pair, expected) for group in goal.groups for pair in group.pairs]
        family = {}
        for set_name in sets:
            for c in asked:
                for measure, direction in c.expected:
                    difference = self._difference(set_name, c.base, c.method, c.base_anew, measure)
                    if difference is not None:
                        bound = bound_of(difference, direction, measure)
                        which = (set_name, c.base, c.method, c.base_anew, measure, bound)
                        family[which] = difference.p(bound)
        self.family = [*family.values()]
        self.level = level_of_family(self.family)
        self.excluding = [sum(p <= level for p in self.family) for level in (LEVEL, self.level)]

    def of(self, set_name: str, comparison: Comparison) -> list[Judged]:
        """In each measure; none if it was not run."""
        base, method, anew = comparison.base, comparison.method, comparison.base_anew
        found = []
        for measure, direction in comparison.expected:
            difference = self._difference(set_name, base, method, anew, measure)
            if difference is not None:
                luck = self.results.luck(set_name, measure)
                judged = verdict(difference, direction, measure, level=self.level, luck=luck)
                found.append(Judged(set_name, comparison, measure, direction, difference, judged))
        return found

    def _difference(self, set_name: str, base: str, method: str, anew: bool, measure: str) -> Difference | None:
        if anew and (set_name, base) in self.results.tests and self.results.splits(set_name, base) == 1:
            return None  # the base has no choice of its own besides the one that the method was added to
        return self.results.difference(set_name, base, method, measure, base_anew=anew)
