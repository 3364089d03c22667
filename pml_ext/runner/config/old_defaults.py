"""Defaults that FastReID had before version 1.1 and has no longer, for the keys that an old config leaves out."""

from typing import Any

from pml_ext.runner.config.layers import Layer, Layers

_UNTIL_1_0: dict[str, Any] = {
    "INPUT.FLIP.ENABLED": True,
    "INPUT.PADDING.ENABLED": True,
    "MODEL.BACKBONE.PRETRAIN": True,
    "MODEL.HEADS.WITH_BNNECK": True,
    "MODEL.LOSSES.TRI.HARD_MINING": True,
    "DATALOADER.SAMPLER_TRAIN": "BalancedIdentitySampler",
    "SOLVER.WEIGHT_DECAY_BIAS": 0.0,
    "SOLVER.WARMUP_EPOCHS": 10,
}
_OF_MARGINS: dict[str, Any] = {"MODEL.HEADS.SCALE": 128, "MODEL.HEADS.MARGIN": 0.15}
_UNTIL_0_2: dict[str, Any] = {
    "INPUT.REA.VALUE": [0.596 * 255, 0.558 * 255, 0.497 * 255],
    "INPUT.AUTOAUG.PROB": 0.5,  # rose from 0 to 1 over the training
    "INPUT.AUGMIX.PROB": 1.0,
    "SOLVER.ETA_MIN_LR": 3e-7,
}
_OF_1_0: dict[str, Any] = {"DATALOADER.SAMPLER_TRAIN": "NaiveIdentitySampler", "SOLVER.NESTEROV": True}


def set_old_defaults(layers: Layers, *, by_epochs: bool) -> list[str]:
    """Put a layer of old defaults under all others, which have today's keys; one line that names them.

    by_epochs: whether the config is of version 0.2 or 0.1.
    """
    wanted = dict(_UNTIL_1_0)
    if layers.last("SOLVER.WARMUP_ITERS"):
        del wanted["SOLVER.WARMUP_EPOCHS"]
    if layers.value("MODEL.HEADS.CLS_LAYER", "Linear") != "Linear":
        wanted |= _OF_MARGINS
    wanted["SOLVER.WEIGHT_DECAY_NORM"] = layers.value("SOLVER.WEIGHT_DECAY", 0.0005)
    if by_epochs:
        wanted |= _UNTIL_0_2
    elif layers.last("SOLVER.WARMUP_EPOCHS"):
        wanted |= _OF_1_0
    for switch in ("AUTOAUG", "AUGMIX"):
        if not layers.value(f"INPUT.{switch}.ENABLED"):
            wanted.pop(f"INPUT.{switch}.PROB", None)
    if layers.value("SOLVER.MOMENTUM") == 0:
        wanted.pop("SOLVER.NESTEROV", None)
    wanted = {key: value for key, value in wanted.items() if layers.last(key) is None}
    below = Layer("FastReID's old defaults", {})
    for key, value in wanted.items():
        below.put(key, value)
    layers.insert(0, below)
    named = ", ".join(f"{key} {value}" for key, value in wanted.items())
    return [f"keys that are not set have the defaults of FastReID before 1.1: {named}"] if wanted else []
