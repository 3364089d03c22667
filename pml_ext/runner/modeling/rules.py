"""What the values under a config's MODEL must be."""

import re
from collections.abc import Iterator

from yacs.config import CfgNode as CN

from pml_ext.runner.config.loss_nodes import LOSS_NODES, MINER_NODES
from pml_ext.runner.config.rules import Problem, Rule, must, named, not_negative, one_of, positive, unset
from pml_ext.runner.modeling.image_sizes import ImageSizes
from pml_ext.runner.modeling.losses.kinds import facts_of_name
from pml_ext.runner.modeling.names import (
    ARCHITECTURES,
    ARCHITECTURES_NOT_BUILT,
    BACKBONES,
    BACKBONES_NOT_BUILT,
    CLS_LAYERS,
    HEADS,
    HEADS_NOT_BUILT,
    LIBRARIES,
    LOSSES_NOT_BUILT,
    NECK_FEATS,
    NORMS,
    NORMS_NOT_BUILT,
    POOL_LAYERS,
)

_DISTILLATION = "knowledge distillation is not built"
_PATCH = 16  # of the vision transformer, in pixels


def _depth(options: CN) -> Iterator[Problem]:
    if options.NAME in BACKBONES and (depths := BACKBONES[options.NAME].depths):
        yield from named("DEPTH", options.DEPTH, depths, {})
    if options.NAME == "build_resnext_backbone" and options.WITH_NL and options.DEPTH == "152x":
        yield Problem("WITH_NL", True, "FastReID has no non-local blocks for ResNeXt of DEPTH 152x")


def _switches(options: CN) -> Iterator[Problem]:
    """FastReID's YAMLs inherit switches that its backbones ignore; ours are asked for by name."""
    if options.NAME == "build_convnet_backbone" or options.NAME.startswith(LIBRARIES):
        for key in ("WITH_IBN", "WITH_SE", "WITH_NL"):
            if options[key]:
                yield Problem(key, True, f"is not an option of {options.NAME}; set it to False")


def _of_one_backbone(options: CN) -> Iterator[Problem]:
    if options.NAME in BACKBONES and "LAST_STRIDE" in BACKBONES[options.NAME].options:
        if options.LAST_STRIDE not in (1, 2):
            yield Problem("LAST_STRIDE", options.LAST_STRIDE, "must be 1 or 2")
    elif options.NAME == "build_iresnet_backbone":
        if not 0 <= options.DROPOUT < 1:
            yield Problem("DROPOUT", options.DROPOUT, "must be in [0, 1)")
    elif options.NAME == "build_convnet_backbone":
        if options.FEAT_DIM < 1:
            yield Problem("FEAT_DIM", options.FEAT_DIM, "must be 1 or more")
    elif options.NAME == "build_vit_backbone":
        stride = options.STRIDE_SIZE
        if len(stride) != 2 or not all(1 <= side <= _PATCH for side in stride):
            yield Problem("STRIDE_SIZE", stride, f"must be two numbers from 1 to {_PATCH}")
        for key in ("DROP_RATIO", "ATT_DROP_RATE", "DROP_PATH_RATIO"):
            if not 0 <= options[key] < 1:
                yield Problem(key, options[key], "must be in [0, 1)")


def one_size(backbone: str, images: CN) -> Iterator[Problem]:
    """The rule that a vision transformer sees images of one size.

    Args:
        backbone: MODEL.BACKBONE.NAME.
        images: the config's INPUT.
    """
    sizes = ImageSizes.of(images)
    if backbone == "build_vit_backbone" and (
        len(sizes.train) != 2 or min(sizes.train) < _PATCH or sizes.train != sizes.test
    ):
        reason = f"{backbone} needs one image size of {_PATCH}×{_PATCH} or more; of tests it is {sizes.test}"
        yield Problem("SIZE_TRAIN", sizes.train, reason)


BACKBONE_RULES: list[Rule] = [
    one_of(
        "NAME", BACKBONES, not_built=BACKBONES_NOT_BUILT, where=lambda options: not options.NAME.startswith(LIBRARIES)
    ),
    one_of("NORM", NORMS, not_built=NORMS_NOT_BUILT),
    _depth,
    _switches,
    _of_one_backbone,
]


def _hidden(options: CN) -> Iterator[Problem]:
    if options.HIDDEN_DIM < 0 or (options.HIDDEN_DIM and not options.EMBEDDING_DIM):
        reason = "must be 0 (none) or more, and then needs an EMBEDDING_DIM, the size of the layer after it"
        yield Problem("HIDDEN_DIM", options.HIDDEN_DIM, reason)


HEADS_RULES: list[Rule] = [
    one_of("NAME", HEADS, not_built=HEADS_NOT_BUILT),
    one_of("NORM", NORMS, not_built=NORMS_NOT_BUILT, where=lambda options: options.WITH_BNNECK),
    one_of("POOL_LAYER", POOL_LAYERS),
    one_of("CLS_LAYER", CLS_LAYERS),
    one_of("NECK_FEAT", NECK_FEATS),
    unset("PFC.ENABLED", "the class-sharded classifier (Partial FC) is not built; False trains all classes"),
    must("EMBEDDING_DIM", "must be 0 (no reduction) or more", lambda value: value >= 0),
    _hidden,
    *not_negative("NUM_CLASSES"),
    *positive("SCALE"),
]


def _different(options: CN) -> Iterator[Problem]:
    if not options.NAME or len(set(options.NAME)) < len(options.NAME):
        yield Problem("NAME", options.NAME, "must name one or more different losses")


def _loss_scales(options: CN) -> Iterator[Problem]:
    for node in dict.fromkeys(LOSS_NODES[name] for name in options.NAME if name in LOSS_NODES):
        if options[node].SCALE < 0:
            reason = "must be 0 or more; a negative weight would maximise the loss"
            yield Problem(f"{node}.SCALE", options[node].SCALE, reason)


LOSSES_RULES: list[Rule] = [_different, one_of("NAME", LOSS_NODES, not_built=LOSSES_NOT_BUILT), _loss_scales]
MINER_RULES: list[Rule] = [one_of("NAME", MINER_NODES, where=lambda options: options.NAME)]


def _pixels(options: CN) -> Iterator[Problem]:
    mean, deviation = list(options.PIXEL_MEAN), list(options.PIXEL_STD)
    if len(mean) not in (1, 3) or len(deviation) != len(mean):
        yield Problem("PIXEL_MEAN", mean, f"must both have 1 value (grey) or 3 (RGB); PIXEL_STD is {deviation}")


def _freeze_layers(options: CN) -> Iterator[Problem]:
    for pattern in options.FREEZE_LAYERS:
        try:
            re.compile(pattern)
        except (re.error, TypeError) as error:
            yield Problem("FREEZE_LAYERS", pattern, f"must be a regular expression: {error}")


def _untrained_reduction(options: CN) -> Iterator[Problem]:
    """A BNNeck alone normalises without training, as in FastReID; a reduction would stay as it was initialised."""
    heads, compared = options.HEADS, [facts_of_name(name).compares for name in options.LOSSES.NAME]
    if heads.NECK_FEAT == "before" and heads.EMBEDDING_DIM > 0 and "class scores" not in compared:
        reason = (
            "the losses do not train the reduction to EMBEDDING_DIM that tests use: set it to after, or add "
            "CrossEntropyLoss to MODEL.LOSSES.NAME"
        )
        yield Problem("HEADS.NECK_FEAT", "before", reason)


def _miner_without_a_loss(options: CN) -> Iterator[Problem]:
    if options.MINER.NAME and not any(facts_of_name(name).takes_miner for name in options.LOSSES.NAME):
        reason = f"none of the losses {', '.join(options.LOSSES.NAME)} takes a miner"
        yield Problem("MINER.NAME", options.MINER.NAME, reason)


def stages_and_stripes(options: CN) -> Iterator[Problem]:
    """The rule that MGN branches into a ResNet with bottlenecks, and that its heads pool stripes of maps."""
    if options.META_ARCHITECTURE != "MGN":
        return
    name, depth = options.BACKBONE.NAME, options.BACKBONE.DEPTH
    if (name in BACKBONES or name.startswith(LIBRARIES)) and name != "build_resnet_backbone":
        yield Problem("BACKBONE.NAME", name, "must be build_resnet_backbone, whose stages MGN branches into")
    elif name == "build_resnet_backbone" and depth in ("18x", "34x"):
        yield Problem("BACKBONE.DEPTH", depth, "must be 50x or 101x, which have the bottlenecks that MGN branches into")
    if options.HEADS.POOL_LAYER in ("Identity", "Flatten"):
        reason = "does not fit MGN, whose heads see maps of several sizes; the other POOL_LAYERs do"
        yield Problem("HEADS.POOL_LAYER", options.HEADS.POOL_LAYER, reason)


def _class_weights(options: CN) -> Iterator[Problem]:
    if options.META_ARCHITECTURE == "MGN":
        for loss in options.LOSSES.NAME:
            if facts_of_name(loss).compares == "class vectors":
                reason = "learns vectors of one size for the identities, and MGN's features have several sizes"
                yield Problem("LOSSES.NAME", loss, reason)


ARCHITECTURE_RULES: list[Rule] = [one_of("META_ARCHITECTURE", ARCHITECTURES, not_built=ARCHITECTURES_NOT_BUILT)]
MODEL_RULES: list[Rule] = [
    *ARCHITECTURE_RULES,
    stages_and_stripes,
    _class_weights,
    _pixels,
    must("PIXEL_STD", "must be above 0, pixels are divided by it", lambda value: min(value, default=1) > 0),
    must("DEVICE", "must be cuda, cuda:0 and so on, cpu or auto", re.compile(r"cuda(:\d+)?|cpu|auto").fullmatch),
    _freeze_layers,
    _untrained_reduction,
    _miner_without_a_loss,
]
KD_RULES: list[Rule] = [
    must("MODEL_CONFIG", _DISTILLATION, lambda value: not any(value)),
    must("MODEL_WEIGHTS", _DISTILLATION, lambda value: not any(value)),
    unset("EMA.ENABLED", _DISTILLATION),
]
