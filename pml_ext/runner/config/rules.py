"""What the values of config keys must be: rules, in a list for each node, which are applied once before a run.

They state what no constructor of the thing itself does: names, relations between keys, and values that a library would
take without a word. Whatever else is wrong with a value, building the thing finds out.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from yacs.config import CfgNode as CN

from pml_ext._names import hint


@dataclass(frozen=True)
class Problem:
    """A key whose value keeps a config from running; not_built: what FastReID does with that value is left out here."""

    key: str
    value: object
    reason: str
    not_built: bool = False

    def __str__(self) -> str:
        return f"{self.key} = {self.value!r}: {self.reason}"


Rule = Callable[[CN], Iterable[Problem]]
"""Problems of a node, with keys relative to it."""
Condition = Callable[[CN], object]


def _always(options: CN) -> bool:
    return True


def problems_of(cfg: CN, node: str, rules: Iterable[Rule]) -> list[Problem]:
    """Everything that the rules find wrong with a node such as MODEL.HEADS (empty: the whole config), by full keys."""
    if not node:
        return [found for rule in rules for found in rule(cfg)]
    return [replace(found, key=f"{node}.{found.key}") for rule in rules for found in rule(value_of(cfg, node))]


def one_of(
    key: str, known: Collection[str], *, not_built: Mapping[str, str] | None = None, where: Condition = _always
) -> Rule:
    """A key, or each entry of a key's list, holds one of the known names, in nodes `where` the key matters.

    not_built: names that FastReID knows and we do not, and why.
    """

    def rule(options: CN) -> Iterator[Problem]:
        if where(options):
            value = value_of(options, key)
            for name in [value] if isinstance(value, str) else value:
                if name in (not_built or {}):
                    yield Problem(key, name, (not_built or {})[name], not_built=True)
                elif name not in known:
                    yield Problem(key, name, f"unknown{hint(name, known)}")

    return rule


def must(keys: str, reason: str, holds: Callable[[Any], object], *, where: Condition = _always) -> Rule:
    """The value of each key (names with spaces between them) makes `holds` true; the reason says how."""
    return _each(keys, lambda options, value: None if not where(options) or holds(value) else reason)


def unset(keys: str, reason: str) -> Rule:
    """A key is false, 0 or empty, because what it asks for is not built."""
    return _each(keys, lambda options, value: reason if value else None, not_built=True)


def fits(key: str, complaint: Callable[[CN], str | None]) -> Rule:
    """A key's value goes with the other keys of the node; the complaint says why not, and is None where it does."""
    return _each(key, lambda options, value: complaint(options))


def _each(keys: str, complaint: Callable[[CN, Any], str | None], *, not_built: bool = False) -> Rule:
    def rule(options: CN) -> Iterator[Problem]:
        for key in keys.split():
            value = value_of(options, key)
            if reason := complaint(options, value):
                yield Problem(key, value, reason, not_built)

    return rule


def positive(keys: str) -> Rule:
    return must(keys, "must be above 0 and finite", lambda value: 0 < value < math.inf)


def not_negative(keys: str) -> Rule:
    return must(keys, "must be 0 or more and finite", lambda value: 0 <= value < math.inf)


def at_least_one(keys: str, *, where: Condition = _always) -> Rule:
    return must(keys, "must be 1 or more", lambda value: value >= 1, where=where)


def below_one(keys: str) -> Rule:
    return must(keys, "must be in [0, 1)", lambda value: 0 <= value < 1)


def value_of(options: CN, key: str) -> Any:
    """The value of a key with dots; without a key, the options themselves."""
    for part in filter(None, key.split(".")):
        options = options[part]
    return options
