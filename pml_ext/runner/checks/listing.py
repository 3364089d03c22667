"""Lists the names that a config can use, for `pml-ext list`."""

import inspect
import json
from collections.abc import Mapping
from importlib.metadata import entry_points, version
from importlib.resources import files

from pml_ext.runner.config.defaults import get_cfg
from pml_ext.runner.config.load import require
from pml_ext.runner.config.part_keys import REQUIRED, keys_of
from pml_ext.runner.config.yaml_file import value_of
from pml_ext.runner.registry import (
    BACKBONE_REGISTRY,
    CALLBACK_REGISTRY,
    DATASET_REGISTRY,
    EVALUATOR_REGISTRY,
    GROUP,
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
STORED = "names.json"
"""File of this folder with the lists, written by `python -m tests.runner.checks.part_names`."""
LIBRARIES = {
    "losses": "pytorch-metric-learning",
    "miners": "pytorch-metric-learning",
    "optimizers": "torch",
    "schedulers": "torch",
}
"""Kind -> library whose parts are in its list."""
FASTREID_NAMES = "fastreid-names"
"""Kind of FastReID's imports."""
KINDS = (*_REGISTRIES, FASTREID_NAMES)
# Keys of every loss of pytorch-metric-learning
_OF_ALL = ("DISTANCE", "REDUCER", "EMBEDDING_REG", "WEIGHT_REG")


def list_names(kind: str | None, *, has_own_parts: bool = False) -> str:
    """Returns one line per name of a kind, below its config key; None: the kinds.

    Args:
        has_own_parts: modules of the user may have registered parts, so that the stored list is incomplete.
    """
    if kind is None:
        return "\n".join(KINDS)
    require(kind, KINDS, "list")
    if kind == FASTREID_NAMES:
        return "\n".join(map(_line_of_import, fastreid_names()))
    stored = None if has_own_parts or entry_points(group=GROUP) else _stored_names(kind)
    return registered_names(kind) if stored is None else stored


def _stored_names(kind: str) -> str | None:
    """Returns the list of the package's own parts as stored; None if it depends on another version of a library.

    Importing the parts loads torch, which takes seconds.
    """
    stored = json.loads(files("pml_ext.runner.checks").joinpath(STORED).read_text(encoding="utf-8"))
    library = LIBRARIES.get(kind)
    if library is not None and public_version(library) != stored["versions"][library]:
        return None
    text: str | None = stored["names"].get(kind)
    return text


def public_version(library: str) -> str:
    """Returns the version of an installed library, without a part such as +cpu."""
    return version(library).partition("+")[0]


def registered_names(kind: str) -> str:
    """Returns the list of the parts in a kind's registry."""
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


def fastreid_names() -> list[list[str]]:
    """Returns FastReID's import, ours or "", and what to write instead or "", for each name that projects import."""
    text = files("pml_ext.runner.checks").joinpath("fastreid_names.tsv").read_text(encoding="utf-8")
    return [line.split("\t") for line in text.splitlines()]


def _line_of_import(row: list[str]) -> str:
    theirs, ours, note = row
    return f"{theirs:52}  {ours or note}{f' ({note})' if ours and note else ''}"


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
