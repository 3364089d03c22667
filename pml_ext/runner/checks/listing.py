"""Lists the names that a config can use, for `pml-ext list`."""

import inspect
from collections.abc import Mapping

from pml_ext.runner.config.defaults import get_cfg
from pml_ext.runner.config.load import require
from pml_ext.runner.config.part_keys import REQUIRED, keys_of
from pml_ext.runner.config.yaml_file import value_of
from pml_ext.runner.registry import (
    BACKBONE_REGISTRY,
    CALLBACK_REGISTRY,
    DATASET_REGISTRY,
    EVALUATOR_REGISTRY,
    LOSS_REGISTRY,
    META_ARCH_REGISTRY,
    MINER_REGISTRY,
    OPTIMIZER_REGISTRY,
    REID_HEADS_REGISTRY,
    SAMPLER_REGISTRY,
    SCHEDULER_REGISTRY,
    TRANSFORM_REGISTRY,
    Entry,
    Registry,
)

_REGISTRIES = {
    "losses": LOSS_REGISTRY,
    "miners": MINER_REGISTRY,
    "backbones": BACKBONE_REGISTRY,
    "heads": REID_HEADS_REGISTRY,
    "architectures": META_ARCH_REGISTRY,
    "datasets": DATASET_REGISTRY,
    "transforms": TRANSFORM_REGISTRY,
    "schedulers": SCHEDULER_REGISTRY,
    "optimizers": OPTIMIZER_REGISTRY,
    "samplers": SAMPLER_REGISTRY,
    "evaluators": EVALUATOR_REGISTRY,
    "callbacks": CALLBACK_REGISTRY,
}
# Keys of every loss of pytorch-metric-learning
_OF_ALL = ("DISTANCE", "REDUCER", "EMBEDDING_REG", "WEIGHT_REG")


def list_names(kind: str | None) -> str:
    """Returns one line per name of a kind, below its config key; None: the kinds."""
    if kind is None:
        return "\n".join(_REGISTRIES)
    require(kind, _REGISTRIES, "list")
    registry = _REGISTRIES[kind]
    tables: dict[str, Mapping[str, str]] = {registry.key: _table(registry)}
    if kind == "heads":
        from pml_ext.runner.modeling.heads import CLS_LAYERS, POOL_LAYERS

        tables["MODEL.HEADS.POOL_LAYER"] = dict.fromkeys(POOL_LAYERS, "")
        tables["MODEL.HEADS.CLS_LAYER"] = {name: _about(layer) for name, layer in CLS_LAYERS.items()}
    lines = []
    for key, names in tables.items():
        width = max(map(len, names), default=0)
        lines.append(key)
        lines += [f"  {name:{width}}  {about}".rstrip() for name, about in names.items()]
    return "\n".join(lines)


def _table(registry: Registry) -> dict[str, str]:
    """Name -> what it is, the keys of its node with their defaults, and another package's name."""
    if registry is DATASET_REGISTRY:
        from pml_ext.runner.data.datasets import USERS_DATA, data_set  # takes seconds; other lists do not need it

        return {**{name: data_set(name).about for name in registry}, **USERS_DATA}
    tree = value_of(get_cfg(), registry.parent)
    table = {}
    for entry in map(registry.entry, registry):
        words = []
        if registry not in (LOSS_REGISTRY, MINER_REGISTRY):
            words.append(_about(entry.part))
        if registry is BACKBONE_REGISTRY and (depths := getattr(entry.part, "depths", ())):
            words.append(f"DEPTH {', '.join(depths)}")
        if registry.parent:
            words.append(_keys(entry, tree.get(entry.node, {})))
        if not entry.is_ours:
            words.append(f"(of {entry.module.partition('.')[0]})")
        table[entry.name] = " ".join(filter(None, words))
    return table


def _about(part: object) -> str:
    return (inspect.getdoc(part) or "").partition("\n")[0]


def _keys(entry: Entry, node: Mapping[str, object]) -> str:
    defaults = {key: default for key, (_, default) in keys_of(entry).items()} | dict(node)
    words = []
    for key, default in defaults.items():
        if key != "ENABLED" and not key.startswith(_OF_ALL):
            words.append(key if default is REQUIRED else f"{key} {default}")
    keys = ", ".join(words)
    return keys if entry.name == entry.node or not keys else f"{entry.node}: {keys}"
