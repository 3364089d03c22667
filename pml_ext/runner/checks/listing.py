"""What a config can name, for `pml-ext list`."""

import inspect
from collections.abc import Callable, Mapping

from pml_ext.runner.config.defaults import get_cfg
from pml_ext.runner.config.load import require
from pml_ext.runner.config.part_keys import REQUIRED, keys_of
from pml_ext.runner.config.rules import value_of
from pml_ext.runner.data.names import OWN_DATA
from pml_ext.runner.modeling.names import CLS_LAYERS, POOL_LAYERS, backbone_facts
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

# Keys of every loss of pytorch-metric-learning
_OF_ALL = ("DISTANCE", "REDUCER", "EMBEDDING_REG", "WEIGHT_REG")


def _with_keys(registry: Registry, *, docs: bool = True) -> dict[str, Mapping[str, str]]:
    """The registry's key -> name -> what it is, its node's keys and their defaults, and another package's name."""
    tree = value_of(get_cfg(), registry.parent)
    entries = map(registry.entry, registry)
    return {registry.key: {entry.name: _about(entry, tree.get(entry.node, {}), docs) for entry in entries}}


def _about(entry: Entry, node: Mapping[str, object], docs: bool) -> str:
    defaults = {key: default for key, (_, default) in keys_of(entry).items() if not key.startswith(_OF_ALL)}
    defaults.update(node)
    defaults.pop("ENABLED", None)
    keys = ", ".join(key if default is REQUIRED else f"{key} {default}" for key, default in defaults.items())
    about = [(inspect.getdoc(entry.part) or "").partition("\n")[0]] if docs else []
    if keys or not docs:
        about.append(keys if entry.name == entry.node else f"{entry.node}: {keys}")
    if not entry.is_ours:
        about.append(f"(of {entry.module.partition('.')[0]})")
    return " ".join(filter(None, about))


def _datasets() -> dict[str, Mapping[str, str]]:
    from pml_ext.runner.data.datasets import data_set  # takes seconds, and the other lists need nothing of it

    return {"DATASETS.NAMES, DATASETS.TESTS": {**{name: data_set(name).about for name in DATASET_REGISTRY}, **OWN_DATA}}


def _first_lines(registry: Registry) -> dict[str, str]:
    """name -> the first line of the part's docstring, and the package if it is another one's."""
    return {name: _first_line(registry.entry(name)) for name in registry}


def _first_line(entry: Entry) -> str:
    line = (inspect.getdoc(entry.part) or "").partition("\n")[0]
    return line if entry.is_ours else f"{line} (of {entry.module.partition('.')[0]})".lstrip()


def _about_backbone(name: str) -> str:
    facts = backbone_facts(name)
    return _first_line(BACKBONE_REGISTRY.entry(name)) if facts is None else str(facts)


# kind -> config key -> name -> what it is
_LISTS: dict[str, Callable[[], dict[str, Mapping[str, str]]]] = {
    "losses": lambda: _with_keys(LOSS_REGISTRY, docs=False),
    "miners": lambda: _with_keys(MINER_REGISTRY, docs=False),
    "backbones": lambda: {"MODEL.BACKBONE.NAME": {name: _about_backbone(name) for name in BACKBONE_REGISTRY}},
    "heads": lambda: {
        "MODEL.HEADS.NAME": _first_lines(REID_HEADS_REGISTRY),
        "MODEL.HEADS.POOL_LAYER": POOL_LAYERS,
        "MODEL.HEADS.CLS_LAYER": CLS_LAYERS,
    },
    "architectures": lambda: {"MODEL.META_ARCHITECTURE": _first_lines(META_ARCH_REGISTRY)},
    "datasets": _datasets,
    "transforms": lambda: _with_keys(TRANSFORM_REGISTRY),
    "schedulers": lambda: _with_keys(SCHEDULER_REGISTRY),
    "optimizers": lambda: _with_keys(OPTIMIZER_REGISTRY),
    "samplers": lambda: _with_keys(SAMPLER_REGISTRY),
    "evaluators": lambda: {"TEST.EVALUATOR": _first_lines(EVALUATOR_REGISTRY)},
    "callbacks": lambda: {"CALLBACKS": _first_lines(CALLBACK_REGISTRY)},
}
KINDS = tuple(_LISTS)


def list_names(kind: str | None) -> str:
    """A line for each name of a kind, under the config key that takes it; None: the kinds."""
    if kind is None:
        return "\n".join(KINDS)
    require(kind, KINDS, "list")
    lines = []
    for key, names in _LISTS[kind]().items():
        width = max(map(len, names), default=0)
        lines.append(key)
        lines += [f"  {name:{width}}  {about}" for name, about in names.items()]
    return "\n".join(lines)
