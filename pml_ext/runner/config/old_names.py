"""FastReID's spellings before version 1.1, read with the meanings that they had there.

| version | until | told by |
|---|---|---|
| 0.1 | September 2020 | heads of their own for each neck (BNneckHead, …), HEADS.IN_FEAT |
| 0.2 | December 2020 | SOLVER.MAX_ITER and Warmup… schedules, both in epochs |
| 0.3, 1.0 | March 2021 | SOLVER.MAX_EPOCH, still DO_PAD, PK_SAMPLER, FP16_ENABLED and small letters in layers' names |
"""

from collections.abc import Callable
from typing import Any

from pml_ext.runner.config.layers import COMMAND_LINE, Layer, Layers
from pml_ext.runner.config.old_defaults import set_old_defaults
from pml_ext.runner.config.old_mgn import read_mgn
from pml_ext.runner.config.old_schedule import counts_epochs, read_schedule
from pml_ext.runner.config.yaml_file import shown

RENAMED = {
    "INPUT.DO_FLIP": "INPUT.FLIP.ENABLED",
    "INPUT.FLIP_PROB": "INPUT.FLIP.PROB",
    "INPUT.DO_PAD": "INPUT.PADDING.ENABLED",
    "INPUT.PADDING_MODE": "INPUT.PADDING.MODE",
    "INPUT.DO_AFFINE": "INPUT.AFFINE.ENABLED",
    "INPUT.DO_AUTOAUG": "INPUT.AUTOAUG.ENABLED",
    "INPUT.AUTOAUG_PROB": "INPUT.AUTOAUG.PROB",
    "INPUT.DO_AUGMIX": "INPUT.AUGMIX.ENABLED",
    "INPUT.AUGMIX_PROB": "INPUT.AUGMIX.PROB",
    "INPUT.REA.MEAN": "INPUT.REA.VALUE",
    "MODEL.HEADS.IN_FEAT": "MODEL.BACKBONE.FEAT_DIM",
    "MODEL.LOSSES.CIRCLE.ALPHA": "MODEL.LOSSES.CIRCLE.GAMMA",
    "SOLVER.FP16_ENABLED": "SOLVER.AMP.ENABLED",
    "SOLVER.AMP_ENABLED": "SOLVER.AMP.ENABLED",
    "TEST.ROC_ENABLED": "TEST.ROC.ENABLED",
    "TEST.FLIP_ENABLED": "TEST.FLIP.ENABLED",
}
POOL_LAYERS = {
    "avgpool": "GlobalAvgPool", "fastavgpool": "FastGlobalAvgPool", "maxpool": "GlobalMaxPool",
    "gempool": "GeneralizedMeanPooling",  # in 0.1 the one with a trained power
    "gempoolP": "GeneralizedMeanPoolingP", "avgmaxpool": "AdaptiveAvgMaxPool", "clipavgpool": "ClipGlobalAvgPool",
    "identity": "Identity", "flatten": "Flatten",
}  # fmt: skip
CLS_LAYERS = {
    "linear": "Linear", "arcface": "ArcSoftmax", "arcFace": "ArcSoftmax", "arcSoftmax": "ArcSoftmax",
    "circle": "CircleSoftmax", "circleSoftmax": "CircleSoftmax", "amSoftmax": "CosSoftmax", "cosface": "CosSoftmax",
    "cosSoftmax": "CosSoftmax",
}  # fmt: skip
HEADS = {"BNneckHead": True, "LinearHead": False, "ReductionHead": True}
"""Head of version 0.1 -> whether it has a BNNeck."""
# Keys with these values asked for nothing; with others they stay, to be refused as unknown.
WITHOUT_EFFECT: dict[str, Callable[[Any], bool]] = {
    "MODEL.BACKBONE.NORM_SPLIT": lambda value: True,  # GhostBN's, which NORM names
    "MODEL.HEADS.NORM_SPLIT": lambda value: True,
    "SOLVER.FREEZE_FC_ITERS": lambda value: not value,
    "SOLVER.LOG_PERIOD": lambda value: True,
    "MODEL.LOSSES.TRI.USE_COSINE_DIST": lambda value: not value,
    "SOLVER.SWA": lambda value: isinstance(value, dict) and not value.get("ENABLED", False),
    "KD.MODEL_CONFIG": lambda value: value == "",
    "KD.MODEL_WEIGHTS": lambda value: value == "",
}
WITHOUT_MEANING = {
    "SOLVER.MAX_ITER": "counts iterations, as before FastReID 0.2; set SOLVER.MAX_EPOCH, STEPS and WARMUP_EPOCHS",
    "SOLVER.DELAY_ITERS": "counts iterations, as before FastReID 0.2; set SOLVER.DELAY_EPOCHS",
    "SOLVER.SWA": "stochastic weight averaging is not built",
    "SOLVER.FREEZE_FC_ITERS": "is not built; MODEL.FREEZE_LAYERS ['heads.weight'] freezes the classifier",
    "MODEL.OPEN_LAYERS": "must be backbone, heads or both; today MODEL.FREEZE_LAYERS names what does not train",
}
"""Old keys that stay where they are -> why; others are unknown."""


def read_old_names(layers: Layers) -> list[str]:
    """Replace old keys and names by today's; a line for each replacement, none where nothing is old.

    An old key whose value has no meaning here stays, to be refused as unknown.
    """
    first_heads, by_epochs = _has_first_heads(layers), counts_epochs(layers)
    harmless, notes = list[str](), read_mgn(layers) if first_heads else list[str]()
    pools = POOL_LAYERS | ({"gempool": "GeneralizedMeanPoolingP"} if first_heads else {})
    for layer in layers:
        # A key of FastRetri, whose Recall@K is a query's first match at rank K or before.
        harmless += layer.convert("TEST.RECALLS", "TEST.RANKS") + _without_effect(layer)
        notes += layer.convert("INPUT.PADDING", "INPUT.PADDING.SIZE", _pixels)
        for old, new in RENAMED.items():
            notes += layer.convert(old, new)
        notes += layer.convert("MODEL.BACKBONE.DEPTH", "MODEL.BACKBONE.DEPTH", _depth) + _heads(layer)
        for key, names in (("POOL_LAYER", pools), ("CLS_LAYER", CLS_LAYERS)):
            notes += layer.rename(f"MODEL.HEADS.{key}", names)
        notes += layer.convert("MODEL.OPEN_LAYERS", "MODEL.FREEZE_LAYERS", _frozen)
    notes += _sampler(layers) + read_schedule(layers, by_epochs=by_epochs)
    # A file shows its version by its spellings. A command line over a file of today does not change the version.
    is_old = any(not note.startswith(f"{COMMAND_LINE}: ") for note in notes) or len(layers) == 1
    if notes and is_old:
        notes += _linear_scale(layers) + set_old_defaults(layers, by_epochs=by_epochs or first_heads)
    return harmless + notes


def _has_first_heads(layers: Layers) -> bool:
    """Whether this is version 0.1."""
    return any(
        layer.get("MODEL.HEADS.NAME") in HEADS
        or layer.get("MODEL.HEADS.IN_FEAT") is not None
        or layer.get("MODEL.HEADS.REDUCTION_DIM") is not None
        for layer in layers
        if isinstance(layer.get("MODEL.HEADS.NAME"), str | None)
    )


def _without_effect(layer: Layer) -> list[str]:
    found = []
    for key, has_none in WITHOUT_EFFECT.items():
        value = layer.get(key)
        if value is not None and has_none(value):
            layer.pop(key)
            if value != "":
                found.append(f"{layer.source}: {key} asks for nothing and is left out")
    return found


def _pixels(padding: Any) -> Any:
    """INPUT.PADDING was a number of pixels; today it is a node."""
    return None if isinstance(padding, dict) else padding


def _depth(depth: Any) -> str | None:
    return f"{depth}x" if not isinstance(depth, bool) and str(depth).isdecimal() else None


def _heads(layer: Layer) -> list[str]:
    """Version 0.1's heads; the reduced size of a ReductionHead alone had an effect."""
    name = layer.get("MODEL.HEADS.NAME")
    if not isinstance(name, str) or name not in HEADS:
        return layer.convert("MODEL.HEADS.REDUCTION_DIM", "MODEL.HEADS.EMBEDDING_DIM")
    size = layer.pop("MODEL.HEADS.REDUCTION_DIM")
    layer.put("MODEL.HEADS.NAME", "EmbeddingHead")
    layer.put("MODEL.HEADS.WITH_BNNECK", HEADS[name])
    neck = "with" if HEADS[name] else "without"
    note = f"{layer.source}: the head {name} is EmbeddingHead {neck} a BNNeck today"
    if name != "ReductionHead":
        return [note if size is None else f"{note}; REDUCTION_DIM was ReductionHead's and is left out"]
    size = 512 if size is None else size
    layer.put("MODEL.HEADS.EMBEDDING_DIM", size)
    return [
        f"{note}, reduced to EMBEDDING_DIM {shown(size)}; as in its successor, no norm and LeakyReLU between the two"
    ]


def _frozen(given: Any) -> list[str] | None:
    """Version 0.1 named the parts that train during FREEZE_ITERS, not those that do not."""
    opened = [given] if isinstance(given, str) else given
    if not isinstance(opened, list | tuple) or not all(name in ("", "backbone", "heads") for name in opened):
        return None
    return [part for part in ("backbone", "heads") if part not in opened] if any(opened) else []


def _sampler(layers: Layers) -> list[str]:
    """PK_SAMPLER and NAIVE_WAY, which may stand in two files, became one name."""
    last = layers.last("DATALOADER.PK_SAMPLER", "DATALOADER.NAIVE_WAY")
    if last is None:
        return []
    # NAIVE_WAY's default was False until 1.0, which alone had WARMUP_EPOCHS.
    by_identity = layers.value("DATALOADER.PK_SAMPLER", True)
    naive = layers.value("DATALOADER.NAIVE_WAY", layers.value("SOLVER.WARMUP_EPOCHS") is not None)
    if not isinstance(by_identity, bool) or not isinstance(naive, bool):
        return []
    for layer in layers:
        layer.pop("DATALOADER.PK_SAMPLER")
        layer.pop("DATALOADER.NAIVE_WAY")
    name = "TrainingSampler"
    if by_identity:
        name = "NaiveIdentitySampler" if naive else "BalancedIdentitySampler"
    last.put("DATALOADER.SAMPLER_TRAIN", name)
    old = f"DATALOADER.PK_SAMPLER {by_identity} with NAIVE_WAY {naive}"
    return [f"{last.source}: {old} is DATALOADER.SAMPLER_TRAIN {name!r} today"]


def _linear_scale(layers: Layers) -> list[str]:
    """The linear layer had no SCALE, but files set it."""
    scale = layers.last("MODEL.HEADS.SCALE")
    if scale is None or layers.value("MODEL.HEADS.CLS_LAYER", "Linear") != "Linear":
        return []
    value = scale.get("MODEL.HEADS.SCALE")
    if value in (1, 1.0):
        return []
    scale.put("MODEL.HEADS.SCALE", 1.0)
    return [f"{scale.source}: MODEL.HEADS.SCALE {shown(value)} had no effect on a linear layer then: it is 1.0 here"]
