"""The files of a config, one over the other, before they are checked: keys are taken out and put in."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pml_ext.runner.config.yaml_file import shown

COMMAND_LINE = "the command line"


@dataclass
class Layer:
    """A file's tree of keys, or the command line's; later ones win."""

    source: str
    tree: dict[str, Any]

    def get(self, key: str) -> Any:
        """The value of a key with dots; None where it is not there."""
        node: Any = self.tree
        for part in key.split("."):
            if not isinstance(node, dict) or part not in node:
                return None
            node = node[part]
        return node

    def pop(self, key: str) -> Any:
        """Remove a key; its value."""
        value = self.get(key)
        if value is not None:
            *path, last = key.split(".")
            del self._node(path)[last]
        return value

    def put(self, key: str, value: Any) -> None:
        """Set a key; what stands in its way on the path is replaced."""
        *path, last = key.split(".")
        self._node(path)[last] = value

    def convert(self, old: str, new: str, converted: Callable[[Any], Any] = lambda value: value) -> list[str]:
        """Move a key's value, converted, to a new key, or replace it; a line about it.

        Where `converted` gives None the value stays, to be refused as unknown.
        """
        given = self.get(old)
        value = None if given is None else converted(given)
        if value is None:
            return []
        self.pop(old)
        self.put(new, value)
        was = old if value is given else f"{old} {shown(given)}"
        return [f"{self.source}: {was} is {new} {shown(value)} today"]

    def rename(self, key: str, names: Mapping[str, str]) -> list[str]:
        """Replace the name that a key holds, where it is an old one; a line about it."""
        name = self.get(key)
        if not isinstance(name, str) or name not in names:
            return []
        self.put(key, names[name])
        return [f"{self.source}: {key} {name} is {names[name]} today"]

    def _node(self, path: list[str]) -> dict[str, Any]:
        """The node of a path, copied on the way: a YAML's anchors may share it with others."""
        node = self.tree = dict(self.tree)
        for part in path:
            below = node.get(part)
            node[part] = dict(below) if isinstance(below, dict) else {}
            node = node[part]
        return node


class Layers(list[Layer]):
    """All layers of a config, the base first."""

    def last(self, *keys: str) -> Layer | None:
        """The last layer that sets one of the keys."""
        return next((layer for layer in reversed(self) if any(layer.get(key) is not None for key in keys)), None)

    def value(self, key: str, default: Any = None) -> Any:
        """What the layers together say of a key."""
        layer = self.last(key)
        return default if layer is None else layer.get(key)
