"""Which keys of a config ask for something that is not built, or for nothing sensible: all of them at once, and why."""

import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

from yacs.config import CfgNode as CN

from pml_ext.training.config.load import known_values
from pml_ext.training.data.datasets import DATASETS, OWN_DATA
from pml_ext.training.data.samplers import SAMPLERS
from pml_ext.training.evaluation.evaluate import metrics_of_first
from pml_ext.training.modeling import backbones, heads
from pml_ext.training.modeling.losses.factory import LOSS_NODES, MINER_NODES
from pml_ext.training.modeling.weights import ALTERNATIVES, imagenet_url
from pml_ext.training.solver.optimizer import OPTIMIZERS
from pml_ext.training.solver.schedule import SCHEDULES, WARMUPS

ARCHITECTURES = {
    "Baseline": "backbone, head and losses",
    "FaceBaseline": "FastFace's name of the same without PFC",
}
# Names of FastReID that are left out on purpose, and why; other unknown names get the list of the known ones.
_LEFT_OUT = {
    "MODEL.META_ARCHITECTURE": {
        "MGN": "its branches with a head each are not built",
        "Distiller": "knowledge distillation is not built",
        "MoCo": "momentum contrast and its queue are not built",
    },
    "MODEL.BACKBONE.NORM": {"GhostBN": "batch norm over parts of the batch is not built"},
    "MODEL.HEADS.NORM": {"GhostBN": "batch norm over parts of the batch is not built"},
    "MODEL.HEADS.NAME": heads.REFUSED_HEADS,
    "MODEL.BACKBONE.NAME": backbones.REFUSED_BACKBONES,
}
# Keys that ask for something by not being false, 0 or empty.
_NOT_BUILT = {
    "MODEL.HEADS.PFC.ENABLED": "the class-sharded classifier (Partial FC) is not built; False trains all classes",
    "KD.MODEL_CONFIG": "knowledge distillation is not built",
    "KD.MODEL_WEIGHTS": "knowledge distillation is not built",
    "KD.EMA.ENABLED": "knowledge distillation is not built",
}
_POSITIVE = "must be above 0", lambda value: value > 0
_NOT_NEGATIVE = "must be 0 or more", lambda value: value >= 0
_COUNT = "must be 1 or more", lambda value: value >= 1
_RANGES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "TEST.THRESHOLD.FAR": ("must be in (0, 1)", lambda value: 0 < value < 1),
    "SEED": ("must be in [0, 2^32)", lambda value: 0 <= value < 2**32),
    "MODEL.PIXEL_STD": ("must be above 0, pixels are divided by it", lambda value: min(value, default=1) > 0),
    "MODEL.HEADS.NUM_CLASSES": _NOT_NEGATIVE,
    "MODEL.HEADS.SCALE": _POSITIVE,
    "INPUT.PADDING.SIZE": _NOT_NEGATIVE,
    "DATALOADER.SET_WEIGHT": (
        "must be whole numbers of identities",
        lambda value: all(isinstance(count, int) and count >= 0 for count in value),
    ),
    "DATALOADER.NUM_WORKERS": _NOT_NEGATIVE,
    "SOLVER.MAX_EPOCH": _COUNT,
    "SOLVER.BASE_LR": _POSITIVE,
    "SOLVER.HEADS_LR_FACTOR": _NOT_NEGATIVE,
    "SOLVER.BIAS_LR_FACTOR": _NOT_NEGATIVE,
    "SOLVER.MOMENTUM": ("must be in [0, 1)", lambda value: 0 <= value < 1),
    "SOLVER.WEIGHT_DECAY": _NOT_NEGATIVE,
    "SOLVER.WEIGHT_DECAY_NORM": _NOT_NEGATIVE,
    "SOLVER.WEIGHT_DECAY_BIAS": _NOT_NEGATIVE,
    "SOLVER.GAMMA": _POSITIVE,
    "SOLVER.DELAY_EPOCHS": _NOT_NEGATIVE,
    "SOLVER.ETA_MIN_LR": _NOT_NEGATIVE,
    "SOLVER.WARMUP_FACTOR": _NOT_NEGATIVE,
    "SOLVER.WARMUP_ITERS": _NOT_NEGATIVE,
    "SOLVER.FREEZE_ITERS": _NOT_NEGATIVE,
    "SOLVER.CHECKPOINT_PERIOD": _COUNT,
    "SOLVER.IMS_PER_BATCH": _COUNT,
    "SOLVER.CLIP_GRADIENTS.CLIP_VALUE": _POSITIVE,
    "SOLVER.CLIP_GRADIENTS.NORM_TYPE": _POSITIVE,
    "TEST.EVAL_PERIOD": _COUNT,
    "TEST.IMS_PER_BATCH": _COUNT,
    "TEST.PRECISE_BN.NUM_ITER": _COUNT,
    "TEST.AQE.QE_K": _COUNT,
    "TEST.AQE.QE_TIME": _COUNT,
    "TEST.AQE.ALPHA": _NOT_NEGATIVE,
    "TEST.RERANK.K1": _COUNT,
    "TEST.RERANK.K2": _COUNT,
    "TEST.RERANK.LAMBDA": ("must be in [0, 1]", lambda value: 0 <= value <= 1),
}


@dataclass(frozen=True)
class Problem:
    """A key whose value keeps a config from running as it says."""

    key: str
    value: object
    reason: str

    def __str__(self) -> str:
        return f"{self.key} = {self.value!r}: {self.reason}"


def unsupported(cfg: CN) -> list[Problem]:
    """Every key or value of a config that is not supported; empty where it can run."""
    problems = [Problem(key, _value(cfg, key), reason) for key, reason in _NOT_BUILT.items() if _value(cfg, key)]
    for key, value, known in _named(cfg):
        if value in _LEFT_OUT.get(key, {}):
            problems.append(Problem(key, value, _LEFT_OUT[key][value]))
        elif value not in known:
            problems.append(Problem(key, value, f"unknown{known_values(value, known)}"))
    for key, (reason, holds) in _RANGES.items():
        if not holds(_value(cfg, key)):
            problems.append(Problem(key, _value(cfg, key), reason))
    return problems + list(_contradictions(cfg))


def _named(cfg: CN) -> Iterator[tuple[str, str, Collection[str]]]:
    """(key, value, known values) of every key that holds a name."""
    model, solver, test = cfg.MODEL, cfg.SOLVER, cfg.TEST
    yield "MODEL.META_ARCHITECTURE", model.META_ARCHITECTURE, ARCHITECTURES
    yield "MODEL.DEVICE", model.DEVICE, ("cuda", "cpu", "auto")
    if not model.BACKBONE.NAME.startswith("timm:"):
        yield "MODEL.BACKBONE.NAME", model.BACKBONE.NAME, backbones.BACKBONES
    yield "MODEL.BACKBONE.NORM", model.BACKBONE.NORM, backbones.NORMS
    yield "MODEL.HEADS.NAME", model.HEADS.NAME, heads.HEADS
    if model.HEADS.WITH_BNNECK:
        yield "MODEL.HEADS.NORM", model.HEADS.NORM, backbones.NORMS
    yield "MODEL.HEADS.POOL_LAYER", model.HEADS.POOL_LAYER, heads.POOL_LAYERS
    yield "MODEL.HEADS.CLS_LAYER", model.HEADS.CLS_LAYER, heads.CLS_LAYERS
    yield "MODEL.HEADS.NECK_FEAT", model.HEADS.NECK_FEAT, ("before", "after")
    for name in model.LOSSES.NAME:
        yield "MODEL.LOSSES.NAME", name, LOSS_NODES
    if model.MINER.NAME:
        yield "MODEL.MINER.NAME", model.MINER.NAME, MINER_NODES
    sets = [(f"DATASETS.{key}", name) for key in ("NAMES", "TESTS") for name in cfg.DATASETS[key]]
    if test.PRECISE_BN.ENABLED:
        sets.append(("TEST.PRECISE_BN.DATASET", test.PRECISE_BN.DATASET))
    for key, name in sets:
        if not name.startswith(tuple(OWN_DATA)):
            yield key, name, DATASETS
    yield "DATALOADER.SAMPLER_TRAIN", cfg.DATALOADER.SAMPLER_TRAIN, SAMPLERS
    yield "SOLVER.OPT", solver.OPT, OPTIMIZERS
    yield "SOLVER.SCHED", solver.SCHED, SCHEDULES
    yield "SOLVER.WARMUP_METHOD", solver.WARMUP_METHOD, WARMUPS
    yield "SOLVER.CLIP_GRADIENTS.CLIP_TYPE", solver.CLIP_GRADIENTS.CLIP_TYPE, ("norm", "value")
    yield "TEST.METRIC", test.METRIC, ("cosine",)
    yield "TEST.BEST", test.BEST, ("", *metrics_of_first(cfg.DATASETS.TESTS, test.ROC.ENABLED))


def _contradictions(cfg: CN) -> Iterator[Problem]:
    """Values that are fine alone, but not beside others."""
    model, solver = cfg.MODEL, cfg.SOLVER
    if len(model.PIXEL_MEAN) not in (1, 3) or len(model.PIXEL_STD) != len(model.PIXEL_MEAN):
        reason = f"must both have 1 value (grey) or 3 (RGB); PIXEL_STD is {list(model.PIXEL_STD)}"
        yield Problem("MODEL.PIXEL_MEAN", list(model.PIXEL_MEAN), reason)
    for key in ("NAMES", "TESTS"):
        names = cfg.DATASETS[key]
        if not names or len(set(names)) < len(names):
            yield Problem(f"DATASETS.{key}", names, "must name one or more different data sets")
    names = model.LOSSES.NAME
    if not names or len(set(names)) < len(names):
        yield Problem("MODEL.LOSSES.NAME", names, "must name one or more different losses")
    for name in names:
        if name in LOSS_NODES and model.LOSSES[LOSS_NODES[name]].SCALE < 0:
            key = f"MODEL.LOSSES.{LOSS_NODES[name]}.SCALE"
            yield Problem(key, _value(cfg, key), "must be 0 or more; a negative weight would maximise the loss")
    from_url = model.BACKBONE.PRETRAIN and not model.BACKBONE.PRETRAIN_PATH and not model.WEIGHTS
    if from_url and imagenet_url(cfg.MODEL.BACKBONE) is None:
        reason = f"FastReID names no weights for this backbone to download; set {ALTERNATIVES}"
        yield Problem("MODEL.BACKBONE.PRETRAIN", True, reason)
    for pattern in model.FREEZE_LAYERS:
        try:
            re.compile(pattern)
        except (re.error, TypeError) as error:
            yield Problem("MODEL.FREEZE_LAYERS", pattern, f"must be a regular expression: {error}")
    rerank = cfg.TEST.RERANK
    if rerank.ENABLED and rerank.K2 > rerank.K1:
        yield Problem("TEST.RERANK.K2", rerank.K2, f"must be at most TEST.RERANK.K1, {rerank.K1}")
    if solver.SCHED == "OneCycleLR":
        for key in ("WARMUP_ITERS", "DELAY_EPOCHS"):
            if solver[key]:
                yield Problem(f"SOLVER.{key}", solver[key], "OneCycleLR begins with a warm-up of its own; set 0")


def _value(cfg: CN, key: str) -> Any:
    for part in key.split("."):
        cfg = cfg[part]
    return cfg
