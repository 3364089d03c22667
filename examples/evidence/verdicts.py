"""Verdicts of comparisons, which allow for their number and for the luck of tuning."""

from collections.abc import Sequence
from typing import NamedTuple

from claims import Claim, Comparison
from goals import GOALS
from statistics_of_pairs import HIGHER, LEVEL, LOWER, Difference, bound_of, level_of_family, verdict
from tested import Tested


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
