"""The config keys that embedding needs: the network and its input transform."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from yacs.config import CfgNode as CN

from pml_ext.runner.config.defaults import get_cfg, projects_keys
from pml_ext.runner.config.load import accepted, read_config
from pml_ext.runner.config.yaml_file import leaves, value_of
from pml_ext.runner.registry import META_ARCH_REGISTRY, REID_HEADS_REGISTRY

log = logging.getLogger("pml_ext")

SHAPING = (
    "MODEL.META_ARCHITECTURE", "MODEL.BACKBONE", "MODEL.HEADS", "MODEL.PIXEL_MEAN", "MODEL.PIXEL_STD",
    "INPUT.SIZE_TRAIN", "INPUT.SIZE_TEST", "INPUT.INTERPOLATION", "INPUT.CROP", "TEST.FLIP.ENABLED",
)  # fmt: skip
"""Keys whose values determine an embedding."""

HOW_FAST = ("TEST.IMS_PER_BATCH", "DATALOADER.NUM_WORKERS")
_RUNNING = ("MODEL.DEVICE", "MODEL.WEIGHTS", *HOW_FAST)
_ONLY_FOR_TRAINING = ("MODEL.LOSSES", "MODEL.MINER", "MODEL.FREEZE_LAYERS", "MODEL.QUEUE_SIZE")


def is_grey(cfg: CN) -> bool:
    """Returns whether images are read as grey."""
    return len(cfg.MODEL.PIXEL_MEAN) == 1


def load_for_embedding(config_file: str | Path | None, overrides: list[str] | None = None) -> CN:
    """Returns a config with the keys that embedding needs, and defaults for all others; loads no pretrained weights.

    Mistakes in other keys (SOLVER, DATASETS, our augmentation in INPUT, MODEL.LOSSES and so on) give a single warning,
    whereas load_config raises an error.
    """
    read = read_config(config_file, overrides)
    needed = [mistake for mistake in read.mistakes if _is_needed(mistake.key)]
    accepted_config = accepted(read._replace(mistakes=needed))
    if read.mistakes:
        log.warning("ignored, because embedding does not need it: %s", "; ".join(read.lines))
    cfg = get_cfg()
    accepted_config.defrost()  # its nodes are moved into cfg
    for key in (*_shaping_keys(), *_RUNNING):
        node, _, name = key.rpartition(".")
        value_of(cfg, node)[name] = value_of(accepted_config, key)
    cfg.MODEL.BACKBONE.PRETRAIN = False  # MODEL.WEIGHTS replace every weight, so nothing is downloaded
    if has_users_parts(cfg):  # they may have a classifier, whose weights are loaded
        return cfg
    classifier = get_cfg().MODEL.HEADS
    for name in ("CLS_LAYER", "NUM_CLASSES", "PFC", "MARGIN", "SCALE", "FILTER_COSINE"):
        cfg.MODEL.HEADS[name] = classifier[name]
    return cfg


def has_users_parts(cfg: CN) -> bool:
    """Returns whether the architecture or head is user-defined; it may then need NUM_CLASSES."""
    parts = ((META_ARCH_REGISTRY, cfg.MODEL.META_ARCHITECTURE), (REID_HEADS_REGISTRY, cfg.MODEL.HEADS.NAME))
    # An ONNX file's may be unknown here.
    return any(name not in registry or not registry.entry(name).is_ours for registry, name in parts)


def shaping(cfg: CN) -> dict[str, Any]:
    """Returns the keys that determine an embedding, with their values."""
    keys = _shaping_keys()
    return {key: value for key, value in leaves(cfg) if key.startswith(keys) and not key.endswith("_OPTIONAL")}


def config_of(keys: Mapping[str, Any]) -> CN:
    """Returns the config for embedding with the keys that `shaping` returned."""
    return load_for_embedding(None, [word for key, value in keys.items() for word in (str(key), str(value))])


def _shaping_keys() -> tuple[str, ...]:
    """Returns SHAPING, and the keys of projects_keys, except those of losses and miners."""
    return (*SHAPING, *(key for key in projects_keys() if not key.startswith(_ONLY_FOR_TRAINING)))


def _is_needed(key: str) -> bool:
    """Returns whether a mistake in this key may concern the network. An empty key concerns the file."""
    needed = ("MODEL", *_shaping_keys(), *_RUNNING)
    is_parent = any(other.startswith(f"{key}.") for other in needed)
    return not key or is_parent or (key.startswith(needed) and not key.startswith(_ONLY_FOR_TRAINING))
