"""Verdicts of comparisons, which allow for their number and for the luck of tuning."""

from collections.abc import Sequence
from typing import NamedTuple

from claims import Claim, Comparison
from goals import GOALS
from statistics_of_pairs import LEVEL, Difference, level_of_family, verdict
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

    level: of the intervals that decide, see level_of_family.
    """

    def __init__(self, results: Tested, claims: Sequence[Claim], sets: Sequence[str]) -> None:
        self.results = results
        asked = {(c, measure) for claim in claims for c in claim.comparisons for measure, _ in c.expected}
        named = {(c.base, c.method, c.base_anew, measure) for c, measure in asked}
        named |= {(*pair, False, goal.measure) for goal in GOALS for group in goal.groups for pair in group.pairs}
        family = [self._difference(set_name, *name) for set_name in sets for name in named]
        self.family = [difference for difference in family if difference is not None]
        self.level = level_of_family(self.family)
        self.excluding = [sum(d.p <= level for d in self.family) for level in (LEVEL, self.level)]

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
