"""Rules for the values in a config's MODEL and KD."""

import math
import re
from collections.abc import Iterator

from yacs.config import CfgNode as CN

from pml_ext._names import hint
from pml_ext.runner.config.rules import (
    Problem,
    Rule,
    at_least_one,
    below_one,
    fits,
    must,
    not_negative,
    one_of,
    positive,
)
from pml_ext.runner.modeling import names
from pml_ext.runner.modeling.heads import CLS_LAYERS, POOL_LAYERS
from pml_ext.runner.modeling.losses.factory import facts_of_name
from pml_ext.runner.registry import (
    BACKBONE_REGISTRY,
    LOSS_REGISTRY,
    META_ARCH_REGISTRY,
    MINER_REGISTRY,
    REID_HEADS_REGISTRY,
)

_DISTILLATION = "knowledge distillation is not supported"
_PATCH = 16  # patch size of build_vit_backbone


def _depth(options: CN) -> str | None:
    depths = names.depths_of(options.NAME)
    return None if not depths or options.DEPTH in depths else f"unknown{hint(options.DEPTH, depths)}"


BACKBONE_RULES: list[Rule] = [
    one_of(
        "NAME",
        BACKBONE_REGISTRY,
        not_built=names.BACKBONES_NOT_BUILT,
        where=lambda options: not options.NAME.startswith(names.LIBRARIES),
    ),
    one_of("NORM", names.NORMS, not_built=names.NORMS_NOT_BUILT),
    fits("DEPTH", _depth),
    # FastReID's YAMLs inherit switches that its backbones ignore, so this applies only to our backbones.
    must(
        "WITH_IBN WITH_SE WITH_NL",
        "is not an option of this backbone; set it to False",
        lambda value: not value,
        where=lambda options: options.NAME.startswith(("build_convnet_backbone", *names.LIBRARIES)),
    ),
    must("LAST_STRIDE", "must be 1 or 2", lambda value: value in (1, 2)),
    below_one("DROPOUT DROP_RATIO ATT_DROP_RATE DROP_PATH_RATIO"),
    at_least_one("FEAT_DIM", where=lambda options: options.NAME == "build_convnet_backbone"),
    must(
        "STRIDE_SIZE",
        f"must be two numbers from 1 to {_PATCH}",
        lambda stride: len(stride) == 2 and all(1 <= side <= _PATCH for side in stride),
    ),
]
HEADS_RULES: list[Rule] = [
    one_of("NAME", REID_HEADS_REGISTRY, not_built=names.HEADS_NOT_BUILT),
    one_of("NORM", names.NORMS, not_built=names.NORMS_NOT_BUILT, where=lambda options: options.WITH_BNNECK),
    one_of("POOL_LAYER", POOL_LAYERS),
    one_of("CLS_LAYER", CLS_LAYERS),
    one_of("NECK_FEAT", names.NECK_FEATS),
    not_negative("EMBEDDING_DIM HIDDEN_DIM NUM_CLASSES"),
    must(
        "HIDDEN_DIM",
        "needs an EMBEDDING_DIM, the size of the layer after it",
        lambda value: value <= 0,
        where=lambda options: not options.EMBEDDING_DIM,
    ),
    positive("SCALE"),
    must("FILTER_COSINE", "must be in [0, 1]", lambda value: 0 <= value <= 1),
    must(
        "FILTER_COSINE",
        "filters by cosine, which Linear does not compute: set another CLS_LAYER, or 0",
        lambda value: not value,
        where=lambda options: options.CLS_LAYER == "Linear",
    ),
]


def _loss_scales(options: CN) -> Iterator[Problem]:
    for node in dict.fromkeys(LOSS_REGISTRY.entry(name).node for name in options.NAME if name in LOSS_REGISTRY):
        scale = options.get(node, {}).get("SCALE", 1.0)
        if not 0 <= scale < math.inf:
            reason = "must be 0 or more and finite; a negative weight would maximise the loss"
            yield Problem(f"{node}.SCALE", scale, reason)


LOSSES_RULES: list[Rule] = [
    must("NAME", "must be one or more different losses", lambda names: names and len({*names}) == len(names)),
    one_of("NAME", LOSS_REGISTRY, not_built=names.LOSSES_NOT_BUILT),
    _loss_scales,
]
MINER_RULES: list[Rule] = [one_of("NAME", MINER_REGISTRY, where=lambda options: options.NAME)]


def _pixels(options: CN) -> str | None:
    if len(options.PIXEL_MEAN) == len(options.PIXEL_STD) and len(options.PIXEL_MEAN) in (1, 3):
        return None
    return f"must have 1 value (grey) or 3 (RGB), and PIXEL_STD as many; PIXEL_STD is {list(options.PIXEL_STD)}"


def _untrained_reduction(options: CN) -> str | None:
    """Returns the problem if no loss trains the reduction; a BNNeck alone works without training, as in FastReID."""
    heads, compared = options.HEADS, [facts_of_name(name).compares for name in options.LOSSES.NAME]
    if heads.NECK_FEAT != "before" or heads.EMBEDDING_DIM <= 0 or not compared or "class scores" in compared:
        return None
    return (
        "the losses do not train the reduction to EMBEDDING_DIM, which tests use: set it to after, or add "
        "CrossEntropyLoss to MODEL.LOSSES.NAME"
    )


def _miner_without_a_loss(options: CN) -> str | None:
    losses = options.LOSSES.NAME
    if not options.MINER.NAME or not losses or any(facts_of_name(name).takes_miner for name in losses):
        return None
    return f"none of the losses {', '.join(losses)} accepts a miner"


def _partial_fc(options: CN) -> str | None:
    if not options.HEADS.PFC.ENABLED:
        return None
    if _is_mgn(options):
        return "does not fit MGN, which has eight classifiers; set it to False"
    facts = [facts_of_name(name) for name in options.LOSSES.NAME]
    of_classes = [each.partial_fc for each in facts if each.partial_fc or each.compares == "class scores"]
    if len(of_classes) != 1 or not of_classes[0]:
        known = " or ".join(name for name in LOSS_REGISTRY if facts_of_name(name).partial_fc)
        return f"shards the classes of {known}: MODEL.LOSSES.NAME must have exactly one of these, and no FocalLoss"
    return None


def _is_mgn(options: CN) -> bool:
    return bool(options.META_ARCHITECTURE == "MGN")


def _class_vectors(options: CN) -> str | None:
    wrong = [name for name in options.LOSSES.NAME if facts_of_name(name).compares == "class vectors"]
    if not _is_mgn(options) or not wrong:
        return None
    return f"{wrong[0]} learns identity vectors of one size, but MGN's features have several sizes"


MODEL_RULES: list[Rule] = [
    one_of("META_ARCHITECTURE", META_ARCH_REGISTRY, not_built=names.ARCHITECTURES_NOT_BUILT),
    must(
        "BACKBONE.NAME",
        "must be build_resnet_backbone, whose stages MGN branches into",
        lambda name: name == "build_resnet_backbone",
        where=_is_mgn,
    ),
    must(
        "HEADS.POOL_LAYER",
        "does not fit MGN, whose heads get maps of several sizes; use another POOL_LAYER",
        lambda pool: pool not in ("Identity", "Flatten"),
        where=_is_mgn,
    ),
    fits("LOSSES.NAME", _class_vectors),
    fits("PIXEL_MEAN", _pixels),
    must("PIXEL_STD", "must be above 0, because pixels are divided by it", lambda value: min(value, default=1) > 0),
    must("DEVICE", "must be cuda, cuda:0 and so on, cpu or auto", re.compile(r"cuda(:\d+)?|cpu|auto").fullmatch),
    fits("HEADS.NECK_FEAT", _untrained_reduction),
    fits("MINER.NAME", _miner_without_a_loss),
    fits("HEADS.PFC.ENABLED", _partial_fc),
]
KD_RULES: list[Rule] = [
    must("MODEL_CONFIG MODEL_WEIGHTS", _DISTILLATION, lambda value: not any(value)),
    must("EMA.ENABLED", _DISTILLATION, lambda value: not value),
]
