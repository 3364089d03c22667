"""The warnings about metrics that are undefined (nan: no pairs) or mislead (OPIS of classes that look alike).

`AccuracyCalculator` documents what is undefined.
"""

from collections.abc import Iterable, Sequence

from pml_ext._checks import warn_caller
from pml_ext.functional.operating_points.utility import UtilityCurves, why_opis_says_nothing
from pml_ext.functional.verification.roc import ROC


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
        said = []
        for reason, names in by_reason.items():
            verb = "are" if len(names) > 1 else "is"
            said.append(f"{', '.join(names)} {verb} nan: {reason}")
        warn_caller("; ".join(said))


def warn_meaningless_opis(names: Sequence[str], curves: UtilityCurves) -> None:
    """A warning that OPIS, under these names, says nothing of classes that no threshold tells apart."""
    if names and (reason := why_opis_says_nothing(curves)):
        warn_caller(f"a low {' or '.join(names)} is no merit here: {reason}")
