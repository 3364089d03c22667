"""The rule for a set without the pairs that a metric measures: it is nan, and one warning says what lacks."""

from collections.abc import Iterable

from pml_ext._checks import warn_caller
from pml_ext.functional.verification.roc import ROC

NO_MATCH = "no query has a match to find"
NO_CLASSES = "no two samples share a class or a cluster"


def lacking_pairs(roc: ROC) -> str:
    """Which kind of pair a curve lacks; "" where it has both."""
    counts = {"genuine": roc.genuine, "impostor": roc.impostors}
    lacking = " and ".join(f"no {kind} pair" for kind, count in counts.items() if not count)
    return lacking and f"there is {lacking}"


def warn_undefined(undefined: Iterable[tuple[str, str]]) -> None:
    """One warning, at the caller of this package, for (name, reason) of metrics that are nan; none for none."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in undefined:
        by_reason.setdefault(reason, []).append(name)
    if by_reason:
        said = (f"{', '.join(names)} {'are' if names[1:] else 'is'} nan: {why}" for why, names in by_reason.items())
        warn_caller("; ".join(said))
