"""Rules for the values of config keys, in a list for each node; they are applied once, before a run.

They cover what no constructor checks: names, relations between keys, and values that a library accepts silently.
Whatever else is wrong with a value, building the part finds out.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from yacs.config import CfgNode as CN

from pml_ext._names import hint


@dataclass(frozen=True)
class Problem:
    """A key whose value keeps a config from running."""

    key: str
    value: object
    reason: str

    def __str__(self) -> str:
        return f"{self.key} = {self.value!r}: {self.reason}"


Rule = Callable[[CN], Iterable[Problem]]
"""Problems of a node, with keys relative to it."""
Condition = Callable[[CN], object]


def _always(options: CN) -> bool:
    return True


def problems_of(cfg: CN, node: str, rules: Iterable[Rule]) -> list[Problem]:
    """The problems that the rules find in a node such as MODEL.HEADS (empty: the whole config), with full keys."""
    prefix, options = (f"{node}." if node else ""), value_of(cfg, node)
    return [replace(found, key=f"{prefix}{found.key}") for rule in rules for found in rule(options)]


def one_of(
    key: str, known: Collection[str], *, not_built: Mapping[str, str] | None = None, where: Condition = _always
) -> Rule:
    """A key, or each entry of a key's list, holds one of the known names, in nodes `where` the key matters.

    not_built: names that FastReID knows and we do not, and why.
    """

    def rule(options: CN) -> Iterator[Problem]:
        if not where(options):
            return
        value, reasons = value_of(options, key), not_built or {}
        for name in [value] if isinstance(value, str) else value:
            if name not in known or name in reasons:
                yield Problem(key, name, reasons.get(name) or f"unknown{hint(name, known)}")

    return rule


def must(keys: str, reason: str, holds: Callable[[Any], object], *, where: Condition = _always) -> Rule:
    """`holds` is true for the value of each key (names with spaces between them); the reason says how."""

    def rule(options: CN) -> Iterator[Problem]:
        for key in keys.split():
            value = value_of(options, key)
            if where(options) and not holds(value):
                yield Problem(key, value, reason)

    return rule


def fits(key: str, complaint: Callable[[CN], str | None]) -> Rule:
    """A key's value goes with the other keys of the node; the complaint says why not, and is None if it does."""

    def rule(options: CN) -> Iterator[Problem]:
        if reason := complaint(options):
            yield Problem(key, value_of(options, key), reason)

    return rule


def positive(keys: str) -> Rule:
    return must(keys, "must be above 0 and finite", lambda value: 0 < value < math.inf)


def not_negative(keys: str) -> Rule:
    return must(keys, "must be 0 or more and finite", lambda value: 0 <= value < math.inf)


def at_least_one(keys: str, *, where: Condition = _always) -> Rule:
    return must(keys, "must be 1 or more", lambda value: value >= 1, where=where)


def below_one(keys: str) -> Rule:
    return must(keys, "must be in [0, 1)", lambda value: 0 <= value < 1)


def leaves(node: CN, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Keys with dots and their values."""
    for name, value in node.items():
        if isinstance(value, CN):
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def value_of(options: CN, key: str) -> Any:
    """The value of a key with dots; without a key, the options themselves."""
    for part in filter(None, key.split(".")):
        options = options[part]
    return options
