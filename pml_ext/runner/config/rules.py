"""What the value of a config key must be: one table of rules, for check-config and for those who build from it."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from yacs.config import CfgNode as CN

from pml_ext._errors import UserError
from pml_ext.runner.config.load import known_values


@dataclass(frozen=True)
class Problem:
    """A key whose value keeps a config from running as it says.

    Args:
        not_built: the value is FastReID's, but what it asks for is left out here.
    """

    key: str
    value: object
    reason: str
    not_built: bool = False

    def __str__(self) -> str:
        return f"{self.key} = {self.value!r}: {self.reason}"


Rule = Callable[[CN], Iterable[Problem]]
"""Problems of a node, with keys relative to it."""


def problems_of(options: CN, node: str, rules: Iterable[Rule]) -> list[Problem]:
    """All that the rules find wrong with a node, by full keys.

    Args:
        options: the node.
        node: its name, such as MODEL.HEADS.
    """
    return [replace(found, key=f"{node}.{found.key}") for rule in rules for found in rule(options)]


def require_rules(options: CN, node: str, rules: Iterable[Rule]) -> None:
    """Raise one UserError with all that the rules find wrong with a node."""
    found = problems_of(options, node, rules)
    if found:
        raise UserError("\n".join(map(str, found)))


def one_of(
    key: str,
    known: Collection[str],
    *,
    not_built: Mapping[str, str] | None = None,
    where: Callable[[CN], object] = lambda options: True,
) -> Rule:
    """A key, or each entry of a key's list, holds one of the known names.

    Args:
        not_built: names that FastReID knows and we do not, and why.
        where: nodes for which the key matters.
    """

    def rule(options: CN) -> Iterator[Problem]:
        if where(options):
            value = value_of(options, key)
            for name in [value] if isinstance(value, str) else value:
                yield from named(key, name, known, not_built or {})

    return rule


def named(key: str, name: str, known: Collection[str], not_built: Mapping[str, str]) -> Iterator[Problem]:
    """The problem with a name that is not among the known."""
    if name in not_built:
        yield Problem(key, name, not_built[name], not_built=True)
    elif name not in known:
        yield Problem(key, name, f"unknown{known_values(name, known)}")


def must(key: str, reason: str, holds: Callable[[Any], object]) -> Rule:
    """A key's value makes `holds` true; the reason says how."""

    def rule(options: CN) -> Iterator[Problem]:
        value = value_of(options, key)
        if not holds(value):
            yield Problem(key, value, reason)

    return rule


def unset(key: str, reason: str) -> Rule:
    """A key is false, 0 or empty, because what it asks for is not built."""

    def rule(options: CN) -> Iterator[Problem]:
        value = value_of(options, key)
        if value:
            yield Problem(key, value, reason, not_built=True)

    return rule


def positive(*keys: str) -> list[Rule]:
    return [must(key, "must be above 0", lambda value: value > 0) for key in keys]


def not_negative(*keys: str) -> list[Rule]:
    return [must(key, "must be 0 or more", lambda value: value >= 0) for key in keys]


def counts(*keys: str) -> list[Rule]:
    return [must(key, "must be 1 or more", lambda value: value >= 1) for key in keys]


def value_of(options: CN, key: str) -> Any:
    """The value of a key with dots."""
    for part in key.split("."):
        options = options[part]
    return options
