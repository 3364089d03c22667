"""What a rule about config values consists of: a requirement, and the problem if a value does not meet it."""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from yacs.config import CfgNode as CN

from pml_ext._shared.names import hint
from pml_ext.runner.config.yaml_file import shown, value_of
from pml_ext.runner.registry import HOW_TO_REGISTER, Registry


@dataclass(frozen=True)
class Problem:
    """A key with a value that a run cannot use."""

    key: str
    value: object
    reason: str
    is_unknown_name: bool = False
    is_relation: bool = False
    """Whether the value is only wrong together with those of other keys."""

    def __str__(self) -> str:
        return f"{self.key} = {shown(self.value)}: {self.reason}"


Rule = Callable[[CN], Iterable[Problem]]
"""Problems of a node, with keys relative to it."""
Condition = Callable[[CN], object]


def _always(options: CN) -> bool:
    return True


def problems_of(cfg: CN, node: str, rules: Iterable[Rule]) -> list[Problem]:
    """Returns the problems in a node such as MODEL.HEADS (empty: the complete config), with full keys."""
    prefix, options = (f"{node}." if node else ""), value_of(cfg, node)
    return [replace(problem, key=f"{prefix}{problem.key}") for rule in rules for problem in rule(options)]


def one_of(
    key: str, known: Collection[str], *, not_built: Mapping[str, str] | None = None, where: Condition = _always
) -> Rule:
    """Requires that a key, or each entry of its list, is a known name.

    not_built: name in FastReID that we do not support -> reason. where: checks only options for which this is true.
    """

    def rule(options: CN) -> Iterator[Problem]:
        if not where(options):
            return
        value, reasons = value_of(options, key), not_built or {}
        for name in value if isinstance(value, (list, tuple)) else [value]:
            if name not in known:
                yield Problem(key, name, _unknown(name, known, reasons.get(name, "")), is_unknown_name=True)

    return rule


def _unknown(name: str, known: Collection[str], reason: str) -> str:
    if isinstance(known, Registry):
        return f"{reason}. {HOW_TO_REGISTER}" if reason else f"unknown{known.hint(name)}"
    return reason or f"unknown{hint(name, known)}"


def must(keys: str, reason: str, holds: Callable[[Any], object], *, where: Condition = _always) -> Rule:
    """Requires that `holds` is true for the value of each key (space-separated); reason: the requirement in words."""

    def rule(options: CN) -> Iterator[Problem]:
        for key in keys.split():
            value = value_of(options, key)
            if where(options) and not _is_met(holds, value):
                yield Problem(key, value, reason, is_relation=where is not _always)

    return rule


def _is_met(holds: Callable[[Any], object], value: object) -> bool:
    """Returns whether a requirement is met; a value of another type, as a user's part may define, does not meet it."""
    try:
        return bool(holds(value))
    except TypeError:
        return False


def fits(key: str, complaint: Callable[[CN], str | None]) -> Rule:
    """Requires that a key's value is consistent with the node's other keys; complaint: returns the reason or None."""

    def rule(options: CN) -> Iterator[Problem]:
        if reason := complaint(options):
            yield Problem(key, value_of(options, key), reason, is_relation=True)

    return rule


def positive(keys: str) -> Rule:
    return must(keys, "must be above 0 and finite", lambda value: 0 < value < math.inf)


def not_negative(keys: str) -> Rule:
    return must(keys, "must be 0 or more and finite", lambda value: 0 <= value < math.inf)


def at_least_one(keys: str) -> Rule:
    return must(keys, "must be 1 or more", lambda value: value >= 1)


def fraction(keys: str) -> Rule:
    return must(keys, "must be in [0, 1]", lambda value: 0 <= value <= 1)


def below_one(keys: str) -> Rule:
    return must(keys, "must be in [0, 1)", lambda value: 0 <= value < 1)
