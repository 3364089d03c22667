"""Warnings about undefined metrics (nan: no pairs) and misleading ones (OPIS of indistinguishable classes).

For undefined metrics see `AccuracyCalculator`.
"""

from collections.abc import Iterable, Sequence

from pml_ext._shared.checks import warn_caller
from pml_ext.functional.opis.utility import UtilityCurves, why_opis_says_nothing
from pml_ext.functional.verification.roc import ROC


def lacking_pairs(roc: ROC) -> str:
    """Returns the kinds of pairs that a curve lacks, as a clause; "" if it has both."""
    counts = {"genuine": roc.genuine, "impostor": roc.impostors}
    lacking = " and ".join(f"no {kind} pair" for kind, count in counts.items() if not count)
    return lacking and f"there is {lacking}"


def warn_undefined(undefined: Iterable[tuple[str, str]]) -> None:
    """Warn the caller of this package about nan metrics, as (name, reason); one warning for all."""
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
    """Warn that OPIS, under these names, is meaningless because no threshold separates the classes."""
    if names and (reason := why_opis_says_nothing(curves)):
        warn_caller(f"a low {' or '.join(names)} is meaningless here: {reason}")
