"""The registries of the trainer's parts: what the names in a config stand for.

The package's own parts register as a user's do:

>>> from torch import nn
>>> @LOSS_REGISTRY.register()
... class MeanLength(nn.Module):
...     def __init__(self, weight=0.5):
...         super().__init__()
...         self.weight = weight
...
...     def forward(self, embeddings, labels):
...         return self.weight * embeddings.norm(dim=1).mean()
>>> LOSS_REGISTRY.get("MeanLength") is MeanLength
True

`MODEL.LOSSES.NAME ("MeanLength",)` then trains with it, and `MODEL.LOSSES.MEANLENGTH.WEIGHT 0.1` sets its argument.
"""

import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pml_ext._errors import UserError
from pml_ext._names import hint
from pml_ext.runner.config.loss_nodes import LOSS_NODES, MINER_NODES
from pml_ext.runner.plugins import import_installed

Part = TypeVar("Part")


@dataclass(frozen=True)
class Entry:
    """A registered part."""

    name: str
    part: Any
    node: str
    """The part's node in the config, below that of its registry."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """Keys of the node -> arguments of the part, where a key is not the argument in capitals."""

    @property
    def module(self) -> str:
        return str(getattr(self.part, "__module__", type(self.part).__module__))


class Registry:
    """Parts of one kind by their names.

    Args:
        key: the config key that takes the names.
        built_in: the module that registers the package's own parts, if there are any; it is imported when the registry
            is first read.
        nodes: name -> node, of the package's own parts whose nodes are not their names in capitals.
    """

    def __init__(self, key: str, built_in: str = "", nodes: Mapping[str, str] | None = None) -> None:
        self.key = key
        self.nodes = nodes or {}
        self._built_in = built_in
        self._entries: dict[str, Entry] = {}
        self._is_loaded = False

    def register(
        self, name: str | None = None, *, node: str = "", keys: Mapping[str, str] | None = None
    ) -> Callable[[Part], Part]:
        """A decorator that registers a class or a function.

        Args:
            name: what a config calls it; None: its own name.
            node: its node in the config, where that is not the name in capitals.
            keys: keys of the node -> arguments of the part, where a key is not the argument in capitals.
        Raises:
            UserError: another module has registered this name.
        """

        def add(part: Part) -> Part:
            self._load()
            called = name or str(getattr(part, "__name__", type(part).__name__))
            entry = Entry(called, part, node or self.nodes.get(called, called.upper()), dict(keys or {}))
            before = self._entries.get(called)
            if before is not None and before.module != entry.module:
                raise UserError(
                    f"{self.key}: {called} of {entry.module} has the name of a part that {before.module} registered; "
                    "register it under another name"
                )
            self._entries[called] = entry
            return part

        return add

    def entry(self, name: str) -> Entry:
        """All that is known of a part; a UserError with the closest names if there is none."""
        self._load()
        if name not in self._entries:
            raise UserError(f"{self.key}: unknown value {name!r}{hint(name, self._entries)}")
        return self._entries[name]

    def get(self, name: str) -> Any:
        """The part of a name; a UserError with the closest names if there is none."""
        return self.entry(name).part

    def of_node(self, node: str) -> Entry | None:
        """The part whose node this is; None if no part has it."""
        self._load()
        return next((entry for entry in self._entries.values() if entry.node == node), None)

    def __contains__(self, name: object) -> bool:
        self._load()
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        self._load()
        return iter(self._entries)

    def __len__(self) -> int:
        self._load()
        return len(self._entries)

    def _load(self) -> None:
        if self._is_loaded:
            return
        self._is_loaded = True  # before the imports, whose parts register here
        if self._built_in:
            importlib.import_module(self._built_in)
        import_installed()


LOSS_REGISTRY = Registry("MODEL.LOSSES.NAME", "pml_ext.runner.modeling.losses.built_in", LOSS_NODES)
"""Classes or functions; called with (embeddings, labels), they return a scalar."""
MINER_REGISTRY = Registry("MODEL.MINER.NAME", "pml_ext.runner.modeling.losses.built_in", MINER_NODES)
"""Classes of miners, as in pytorch-metric-learning."""
DATASET_REGISTRY = Registry("DATASETS.NAMES", "pml_ext.runner.data.datasets.built_in")
"""Classes, called with `root=`, as `pml_ext.runner.ImageDataset`."""
BACKBONE_REGISTRY = Registry("MODEL.BACKBONE.NAME", "pml_ext.runner.modeling.backbones.built_in")
"""Functions of the whole config: a network of images (B, C, H, W) to maps (B, FEAT_DIM, h, w)."""
REID_HEADS_REGISTRY = Registry("MODEL.HEADS.NAME", "pml_ext.runner.modeling.heads")
"""Classes, made with the whole config, as `pml_ext.runner.EmbeddingHead`."""
META_ARCH_REGISTRY = Registry("MODEL.META_ARCHITECTURE", "pml_ext.runner.modeling.architectures")
"""Classes, made with the whole config, as `pml_ext.runner.Baseline`."""
EVALUATOR_REGISTRY = Registry("TEST.EVALUATOR")
"""Classes, made with (cfg, num_query), as in FastReID."""
CALLBACK_REGISTRY = Registry("CALLBACKS")
"""Lightning's callbacks, made without arguments."""

OF_NODES = {"MODEL.LOSSES": LOSS_REGISTRY, "MODEL.MINER": MINER_REGISTRY}
"""Nodes of the config -> the registry whose parts have nodes in it."""
