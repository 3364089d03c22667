"""Trees of config keys: reads one from a YAML file, as plain data and never Python objects, and looks up its keys."""

import reprlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from pml_ext._shared.errors import UserError
from pml_ext._shared.files import read_regular
from pml_ext._shared.names import closest_path

_short = reprlib.Repr()
_short.maxlevel, _short.maxstring, _short.maxother = 2, 120, 120


def shown(value: object) -> str:
    """Shortens a value for a message: a few hundred bytes of anchors can expand to gigabytes."""
    try:
        return _short.repr(value)
    except ValueError as error:  # an integer with thousands of digits
        return f"a value that cannot be shown ({error})"


def read_tree(path: Path, *, named_by: str = "") -> tuple[dict[str, Any], list[str]]:
    """Returns the mapping in a YAML file, and a line for each duplicate key. Raises UserError if it has no mapping.

    named_by: where the file is referenced, for the error if it cannot be read.
    """
    try:
        text = read_regular(path).decode("utf-8")
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a NUL in the name
        hint = closest_path(path) if isinstance(error, FileNotFoundError) else ""
        hint = hint or ("" if named_by else " (`pml-ext configs` lists the bundled ones)")
        raise UserError(f"cannot read config file {shown(str(path))[1:-1]}{named_by}: {error}{hint}") from error
    try:
        loader = _StrictLoader(text)
        tree = loader.get_single_data()
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:  # a 13th month, 5,000 digits, depth
        raise UserError(f"{path}: not a usable YAML file: {error}") from error
    if tree is None:
        tree = {}
    if not isinstance(tree, dict):
        raise UserError(f"{path}: expected a mapping of config keys; got {type(tree).__name__}")
    return tree, [f"{path}: {duplicate}" for duplicate in loader.duplicates]


def leaves(node: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields dotted keys and their values."""
    for name, value in node.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def value_of(options: Any, key: str) -> Any:
    """Returns the value of a dotted key; for an empty key, the options themselves."""
    for part in filter(None, key.split(".")):
        options = options[part]
    return options


class _StrictLoader(yaml.SafeLoader):
    """SafeLoader that reports duplicate keys (SafeLoader silently uses the last one) and accepts the tuple tag."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.duplicates: list[str] = []

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        lines: dict[str, int] = {}
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a key must be a word", key.start_mark)
            if key.tag == "tag:yaml.org,2002:merge":
                continue
            if key.value in lines:
                self.duplicates.append(f"duplicate key {shown(key.value)} in lines {lines[key.value]} and {line}")
            lines[key.value] = line
        return super().construct_mapping(node, deep)


def _tuple(loader: yaml.SafeLoader, node: yaml.SequenceNode) -> tuple[Any, ...]:
    return tuple(loader.construct_sequence(node, deep=True))


def _integer(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    number: int = loader.construct_yaml_int(node)
    if number.bit_length() > 64:
        raise yaml.constructor.ConstructorError(None, None, "a number beyond 64 bits", node.start_mark)
    return number


_StrictLoader.add_constructor("tag:yaml.org,2002:int", _integer)
_StrictLoader.add_constructor("tag:yaml.org,2002:python/tuple", _tuple)
