"""What became of each attempt, and the table of all of them."""

from collections import Counter
from dataclasses import dataclass, field

BAD = ("wrong value", "foreign traceback", "hang")


@dataclass
class Tally:
    """Counts by outcome ("accepted", "clear error: ValueError", or one of BAD) and the bad ones' descriptions."""

    outcomes: Counter[str] = field(default_factory=Counter)
    found: list[str] = field(default_factory=list)

    def add(self, outcome: str, what: str, detail: str = "") -> None:
        """Count one attempt; `what` and `detail` are kept where the outcome is bad."""
        self.outcomes[outcome] += 1
        if outcome in BAD:
            self.found.append(f"{outcome}: {what}\n    {detail}")

    @property
    def bad(self) -> int:
        return sum(self.outcomes[kind] for kind in BAD)

    def table(self) -> str:
        names = sorted(set(self.outcomes) - set(BAD)) + list(BAD)
        rows = [("tried", sum(self.outcomes.values())), *((name, self.outcomes[name]) for name in names)]
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:{width}}  {count:>8,}" for name, count in rows)
