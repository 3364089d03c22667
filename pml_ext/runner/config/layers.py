"""The files of a config one over the other, before they are checked: keys taken out and put in, with their places."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


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
        """The value of a key that is there no longer."""
        value = self.get(key)
        if value is not None:
            *path, last = key.split(".")
            del self._node(path)[last]
        return value

    def put(self, key: str, value: Any) -> None:
        """Set a key; what stands in its way on the path is replaced."""
        *path, last = key.split(".")
        self._node(path)[last] = value

    def _node(self, path: list[str]) -> dict[str, Any]:
        """The node of a path, copied on the way: a YAML's anchors may share it with others."""
        node = self.tree = dict(self.tree)
        for part in path:
            below = node.get(part)
            node[part] = dict(below) if isinstance(below, dict) else {}
            node = node[part]
        return node


@dataclass
class Layers:
    """All layers of a config, the base first."""

    layers: list[Layer]

    def __iter__(self) -> Iterator[Layer]:
        return iter(self.layers)

    def last(self, *keys: str) -> Layer | None:
        """The last layer that sets one of the keys."""
        return next((layer for layer in reversed(self.layers) if any(layer.get(key) is not None for key in keys)), None)

    def value(self, key: str, default: Any = None) -> Any:
        """What the layers together say of a key."""
        layer = self.last(key)
        return default if layer is None else layer.get(key)
