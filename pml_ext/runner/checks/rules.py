"""Rules for the values of a config: unknown names, keys that do not fit each other, features that are not supported.

They cover what no constructor checks: names of FastReID, relations between keys, and values that a library accepts
silently. All other errors are raised when the part is built. A list for each node, in the order of the config, then
those about several nodes.
"""

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from yacs.config import CfgNode as CN

from pml_ext._shared.errors import UserError
from pml_ext._shared.names import hint
from pml_ext.runner.checks.requirements import (
    Problem,
    Rule,
    at_least_one,
    below_one,
    fits,
    fraction,
    must,
    not_negative,
    one_of,
    positive,
    problems_of,
)
from pml_ext.runner.config.network_keys import HOW_FAST, SHAPING
from pml_ext.runner.config.yaml_file import value_of
from pml_ext.runner.data.datasets import USERS_DATA, aliases_of
from pml_ext.runner.data.samplers import BY_IDENTITY, OF_IMAGES
from pml_ext.runner.evaluation.selected_metrics import KEEP_LAST, columns_of_first, known_metrics, replaces_metrics
from pml_ext.runner.modeling.architectures import overrides_forward
from pml_ext.runner.modeling.heads import CLS_LAYERS, POOL_LAYERS
from pml_ext.runner.modeling.layers import NORMS
from pml_ext.runner.modeling.losses.factory import PARTIAL_FC, facts_of_name
from pml_ext.runner.modeling.weights.imagenet import TIMM, TORCHVISION, why_no_weights
from pml_ext.runner.registry import (
    BACKBONE_REGISTRY,
    CALLBACK_REGISTRY,
    DATASET_REGISTRY,
    EVALUATOR_REGISTRY,
    LOSS_REGISTRY,
    META_ARCH_REGISTRY,
    REID_HEADS_REGISTRY,
    SAMPLER_REGISTRY,
    SCHEDULER_REGISTRY,
    TRANSFORM_REGISTRY,
    Registry,
)

LOGGER_NAMES = ("csv", "tensorboard", "wandb", "mlflow")
"""What LOGGERS can name."""
INTERPOLATIONS = ("bicubic", "bilinear", "nearest")
_SMALLEST, _LARGEST = 4, 2**16  # side of an image in pixels; networks downsample a single pixel to nothing
_AS_USERS_DATA = (
    "For your own data, pass file:PATH or folder:PATH (--dataset NAME=file:PATH keeps a name), or register a class and "
    "--import its module: guide EXTENDING.md"
)
_DISTILLATION = "knowledge distillation is not supported"
_ATTRIBUTES = "attribute recognition is not supported"
_PARTIAL = "partial ReID's spatial reconstruction is not supported"
_PATCH = 16  # patch size of build_vit_backbone

# FastReID's other parts -> why they are not supported, and an alternative
ARCHITECTURES_NOT_BUILT = {
    "Distiller": _DISTILLATION,
    "PartialBaseline": _PARTIAL,
    "MoCo": "momentum contrast and its queue are not supported",
    "AttrBaseline": _ATTRIBUTES,
    "DSRBaseline": _PARTIAL,
}
_OTHER_NAMES = "its parameters have other names in timm, so FastReID's weights would not load"
BACKBONES_NOT_BUILT = {
    "build_effnet_backbone": f"{_OTHER_NAMES}; to train from other weights, use timm:efficientnet_b0 or similar",
    "build_osnet_backbone": "OSNet is not built; use timm:efficientnet_lite0 or another small network of timm",
    "build_shufflenetv2_backbone": "its parameters have other names in torchvision; use torchvision:shufflenet_v2_x1_0",
    "build_resnetIR_backbone": "FastFace's config uses it, but FastFace has no such backbone",
}
NORMS_NOT_BUILT = {"GhostBN": "batch norm over parts of the batch is not supported"}
HEADS_NOT_BUILT = {
    "ClasHead": "it tests class scores, not embeddings",
    "AttrHead": _ATTRIBUTES,
    "DSRHead": _PARTIAL,
}
LOSSES_NOT_BUILT = {"BinaryCrossEntropyLoss": _ATTRIBUTES}


def _depth(options: CN) -> Iterator[Problem]:
    backbone = BACKBONE_REGISTRY.get(options.NAME) if options.NAME in BACKBONE_REGISTRY else None
    depths = getattr(backbone, "depths", ())
    if depths and options.DEPTH not in depths:
        yield Problem("DEPTH", options.DEPTH, f"unknown{hint(options.DEPTH, depths)}", is_unknown_name=True)


BACKBONE_RULES: list[Rule] = [
    one_of("NAME", BACKBONE_REGISTRY, not_built=BACKBONES_NOT_BUILT),
    one_of("NORM", NORMS, not_built=NORMS_NOT_BUILT),
    _depth,
    # FastReID's YAMLs inherit switches that its backbones ignore, so this applies only to our backbones.
    must(
        "WITH_IBN WITH_SE WITH_NL",
        "is not an option of this backbone; set it to False",
        lambda value: not value,
        where=lambda options: options.NAME.startswith(("build_convnet_backbone", TIMM, TORCHVISION)),
    ),
    must("LAST_STRIDE", "must be 1 or 2", lambda value: value in (1, 2)),
    below_one("DROPOUT DROP_RATIO ATT_DROP_RATE DROP_PATH_RATIO"),
    must(
        "STRIDE_SIZE",
        f"must be two numbers from 1 to {_PATCH}",
        lambda stride: len(stride) == 2 and all(1 <= side <= _PATCH for side in stride),
    ),
]
HEADS_RULES: list[Rule] = [
    one_of("NAME", REID_HEADS_REGISTRY, not_built=HEADS_NOT_BUILT),
    one_of("NORM", NORMS, not_built=NORMS_NOT_BUILT, where=lambda options: options.WITH_BNNECK),
    one_of("POOL_LAYER", POOL_LAYERS),
    one_of("CLS_LAYER", CLS_LAYERS),
    not_negative("NUM_CLASSES"),
    must(
        "HIDDEN_DIM",
        "needs an EMBEDDING_DIM, the size of the layer after it",
        lambda value: value <= 0,
        where=lambda options: not options.EMBEDDING_DIM,
    ),
    fraction("FILTER_COSINE"),
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
    one_of("NAME", LOSS_REGISTRY, not_built=LOSSES_NOT_BUILT),
    _loss_scales,
]


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
    scores = [name for name in options.LOSSES.NAME if facts_of_name(name).compares == "class scores"]
    sharded = [name for name in options.LOSSES.NAME if name in PARTIAL_FC]
    if len(sharded) != 1 or set(scores) - set(sharded):
        known = " or ".join(PARTIAL_FC)
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
    one_of("META_ARCHITECTURE", META_ARCH_REGISTRY, not_built=ARCHITECTURES_NOT_BUILT),
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
    must("MODEL_CONFIG MODEL_WEIGHTS", _DISTILLATION, lambda value: not value or not any(value)),
    must("EMA.ENABLED", _DISTILLATION, lambda value: not value),
]


def _is_size(value: Any) -> bool:
    return len(value) in (1, 2) and all(isinstance(side, int) and _SMALLEST <= side <= _LARGEST for side in value)


INPUT_RULES: list[Rule] = [
    must(
        "SIZE_TRAIN SIZE_TEST",
        f"must be [height, width] or [side] for the shorter side, from {_SMALLEST} to {_LARGEST}, or [0] to keep the "
        "image's size",
        lambda size: _is_size(size) or list(size) in ([0], [0, 0]),
    ),
    one_of("INTERPOLATION", INTERPOLATIONS),
    must("CROP.SIZE", f"must be [height, width] or [side], from {_SMALLEST} to {_LARGEST}", _is_size),
    must(
        "CROP.SCALE CROP.RATIO",
        "must be two ascending numbers above 0",
        lambda bounds: len(bounds) == 2 and 0 < bounds[0] <= bounds[1],
    ),
]


def data_set(key: str, name: str, aliases: Mapping[str, str]) -> Iterator[Problem]:
    """Yields a problem if `name` is neither a known data set nor an alias."""
    is_users = name in aliases or name.startswith(tuple(USERS_DATA))
    if not is_users and name not in DATASET_REGISTRY:
        reason = f"unknown{hint(name, DATASET_REGISTRY, advice=_AS_USERS_DATA)}"
        yield Problem(key, name, reason, is_unknown_name=True)


def _names(options: CN) -> Iterator[Problem]:
    for key in ("NAMES", "TESTS"):
        names = options[key]
        if (key == "NAMES" and not names) or len(set(names)) < len(names):
            yield Problem(key, names, "must be one or more different data sets")
        elif key == "TESTS" and len({name.casefold() for name in names}) < len(names):
            reason = "names differ only by case, and so would those of their files: rename one with --dataset NAME=…"
            yield Problem(key, names, reason)
        for name in dict.fromkeys(names):
            yield from data_set(key, name, aliases_of(options.ALIASES))


def _aliases(options: CN) -> Iterator[Problem]:
    entries = options.ALIASES
    for entry in entries:
        name, _, target = str(entry).partition("=")
        if not name or not target.startswith(tuple(USERS_DATA)):
            yield Problem("ALIASES", entry, "must be NAME=file:people.csv or NAME=folder:path")
    if len(aliases_of(entries)) < len(entries):
        yield Problem("ALIASES", list(entries), "must contain each name once")


DATASETS_RULES: list[Rule] = [
    _aliases,
    _names,
    must("SPLIT", "must be between 0 and 1, both excluded", lambda value: 0 < value < 1),
    fraction("MAX_UNREADABLE"),
]


def _takes(registry: Registry, name: str, key: str) -> bool:
    """Returns whether a part has a key of its registry's node as an argument."""
    return name in registry and key in registry.entry(name).flat


DATALOADER_RULES: list[Rule] = [
    at_least_one("NUM_INSTANCE"),
    must(
        "SET_WEIGHT",
        "belongs to SetReWeightSampler, which is not supported: FastReID's yields no batch",
        lambda value: not value,
        where=lambda options: not _takes(SAMPLER_REGISTRY, options.SAMPLER_TRAIN, "SET_WEIGHT"),
    ),
    not_negative("NUM_WORKERS"),
    at_least_one("PREFETCH_FACTOR"),
]

SOLVER_RULES: list[Rule] = [
    one_of("AMP.DTYPE", ("float16", "bfloat16")),
    one_of("MATMUL_PRECISION", ("highest", "high", "medium")),
    one_of("WARMUP_METHOD", ("linear", "constant", "exp")),
    one_of("CLIP_GRADIENTS.CLIP_TYPE", ("norm", "value")),
    at_least_one("MAX_EPOCH CHECKPOINT_PERIOD"),
    positive("BASE_LR GAMMA CLIP_GRADIENTS.CLIP_VALUE ONECYCLE.DIV_FACTOR ONECYCLE.FINAL_DIV_FACTOR"),
    must("CLIP_GRADIENTS.NORM_TYPE", "must be above 0; inf is the largest value", lambda value: value > 0),
    below_one("MOMENTUM"),
    not_negative(
        # torch's optimizers accept negative rates and decays in groups
        "HEADS_LR_FACTOR BIAS_LR_FACTOR WEIGHT_DECAY WEIGHT_DECAY_NORM WEIGHT_DECAY_BIAS ETA_MIN_LR DELAY_EPOCHS "
        "WARMUP_FACTOR WARMUP_ITERS WARMUP_EPOCHS FREEZE_ITERS FREEZE_EPOCHS CHUNK CHECKPOINT_STEPS"
    ),
    must(
        "DELAY_EPOCHS",
        "delays MultiStepLR and CosineAnnealingLR only; set 0",
        lambda value: value == 0,
        where=lambda options: not _takes(SCHEDULER_REGISTRY, options.SCHED, "DELAY_EPOCHS"),
    ),
    must(
        "WARMUP_ITERS WARMUP_EPOCHS",
        "OneCycleLR includes a warm-up; set 0",
        lambda value: value == 0,
        where=lambda options: options.SCHED == "OneCycleLR",
    ),
]


def _metrics(test: CN) -> Iterable[Problem]:
    return one_of("METRICS", known_metrics(test))(test)


TEST_RULES: list[Rule] = [
    one_of("METRIC", ("cosine",), not_built={"euclidean": "unnormalised features are not supported; set cosine"}),
    at_least_one("IMS_PER_BATCH PRECISE_BN.NUM_ITER AQE.QE_K AQE.QE_TIME RERANK.K1 RERANK.K2"),
    not_negative("AQE.ALPHA EVAL_PERIOD EVAL_STEPS PATIENCE"),
    fraction("RERANK.LAMBDA"),
    must("THRESHOLD.FAR", "must be in (0, 1)", lambda value: 0 < value < 1),
    fits(
        "RERANK.K2",
        lambda test: (
            f"must be at most TEST.RERANK.K1, {test.RERANK.K1}"
            if test.RERANK.ENABLED and test.RERANK.K2 > test.RERANK.K1
            else None
        ),
    ),
    must("METRICS", "must name one or more metrics", len),
    _metrics,
]


def _batch(cfg: CN, *, processes: int) -> str | None:
    """A batch holds something, and every process gets whole groups of NUM_INSTANCE images."""
    size, loader = cfg.SOLVER.IMS_PER_BATCH, cfg.DATALOADER
    instances = max(loader.NUM_INSTANCE, 1) if loader.SAMPLER_TRAIN in BY_IDENTITY else 1
    if size < 1:
        return "must be 1 or more"
    if size % (instances * processes):
        return f"must be a multiple of DATALOADER.NUM_INSTANCE × processes = {instances} × {processes}"
    comparing = [name for name in cfg.MODEL.LOSSES.NAME if facts_of_name(name).compares == "samples"]
    if size == instances and comparing:
        return f"makes batches of one identity, and {comparing[0]} compares identities: set {2 * instances} or more"
    return None


def _weights(cfg: CN) -> str | None:
    needed = not cfg.MODEL.WEIGHTS and not cfg.MODEL.BACKBONE.PRETRAIN_OPTIONAL
    return why_no_weights(cfg.MODEL.BACKBONE) if needed else None


def _erasing(cfg: CN) -> str | None:
    channels = len(cfg.MODEL.PIXEL_MEAN)
    if cfg.INPUT.REA.ENABLED and len(cfg.INPUT.REA.VALUE) != channels:
        return f"must have one value for each of the {channels} channels of MODEL.PIXEL_MEAN"
    return None


def _evaluator(cfg: CN) -> str | None:
    name = cfg.TEST.EVALUATOR
    is_other = replaces_metrics(cfg.TEST) and name in EVALUATOR_REGISTRY
    if is_other and hasattr(EVALUATOR_REGISTRY.get(name), "get_accuracy"):
        return "must be a subclass of pml_ext.metrics.AccuracyCalculator; it is one of another calculator"
    return None


def _best(cfg: CN) -> str | None:
    is_measured = cfg.DATASETS.TESTS and not replaces_metrics(cfg.TEST)
    known = columns_of_first(cfg.DATASETS, cfg.TEST) if is_measured else []
    if known and cfg.TEST.BEST not in ("", KEEP_LAST, *known):
        return f"{cfg.DATASETS.TESTS[0]} is measured by {', '.join(known)}"
    return None


def _patience(cfg: CN) -> str | None:
    test = cfg.TEST
    is_measured = test.EVAL_STEPS or 0 < test.EVAL_PERIOD < cfg.SOLVER.MAX_EPOCH
    if test.PATIENCE and (test.BEST == KEEP_LAST or (replaces_metrics(test) and not test.BEST)):
        return "stops when TEST.BEST no longer improves: name a metric there"
    if test.PATIENCE and not cfg.DATASETS.TESTS:
        return "counts validations on DATASETS.TESTS, which is empty"
    if test.PATIENCE and not is_measured:
        return "counts validations during training: set TEST.EVAL_PERIOD to 1, for instance"
    return None


def _overridden_forward(cfg: CN) -> Iterator[Problem]:
    """SOLVER.CHUNK and Partial FC need the outputs behind the losses, which an overridden forward keeps."""
    name = cfg.MODEL.META_ARCHITECTURE
    if name not in META_ARCH_REGISTRY or not overrides_forward(name):
        return
    for key in ("SOLVER.CHUNK", "MODEL.HEADS.PFC.ENABLED"):
        if value := value_of(cfg, key):
            reason = f"needs the losses of Baseline's forward, which {name} overrides"
            yield Problem(key, value, reason, is_relation=True)


def _tightness(cfg: CN) -> str | None:
    losses = cfg.MODEL.LOSSES
    is_on = "DiscriminativeLoss" in losses.NAME and losses.get("DISC", {}).get("TIGHTNESS")
    if is_on and (cfg.DATALOADER.SAMPLER_TRAIN in OF_IMAGES or cfg.DATALOADER.NUM_INSTANCE < 2):
        return f"needs 2 or more images of a class in a batch: set NUM_INSTANCE, and a sampler such as {BY_IDENTITY[0]}"
    return None


def _precise_bn(cfg: CN) -> Iterator[Problem]:
    if cfg.TEST.PRECISE_BN.ENABLED:
        aliases = aliases_of(cfg.DATASETS.ALIASES)
        yield from data_set("TEST.PRECISE_BN.DATASET", cfg.TEST.PRECISE_BN.DATASET, aliases)


RULES: dict[str, list[Rule]] = {
    "MODEL": MODEL_RULES,
    "MODEL.BACKBONE": BACKBONE_RULES,
    "MODEL.HEADS": HEADS_RULES,
    "MODEL.LOSSES": LOSSES_RULES,
    "KD": KD_RULES,
    "INPUT": INPUT_RULES,
    "DATASETS": DATASETS_RULES,
    "DATALOADER": DATALOADER_RULES,
    "SOLVER": SOLVER_RULES,
    "TEST": TEST_RULES,
    "": [  # about several nodes
        one_of("LOGGERS", LOGGER_NAMES),
        must(
            "OUTPUT_DIR",
            "must be UTF-8 text, which TensorBoard needs; set another, or LOGGERS ('csv',)",
            lambda folder: folder == folder.encode("utf-8", "ignore").decode(),
            where=lambda cfg: "tensorboard" in cfg.LOGGERS,
        ),
        one_of("CALLBACKS", CALLBACK_REGISTRY),
        one_of("TEST.EVALUATOR", EVALUATOR_REGISTRY, where=lambda cfg: cfg.TEST.EVALUATOR),
        _overridden_forward,
        must("SEED", "must be in [0, 2^32)", lambda value: 0 <= value < 2**32),
        fits("MODEL.BACKBONE.PRETRAIN", _weights),
        fits("INPUT.REA.VALUE", _erasing),
        fits("TEST.EVALUATOR", _evaluator),
        fits("TEST.BEST", _best),
        fits("TEST.PATIENCE", _patience),
        fits("MODEL.LOSSES.DISC.TIGHTNESS", _tightness),
        _precise_bn,
    ],
}
"""Node -> rules about its values, relative to it."""


def unsupported(cfg: CN, *, processes: int = 1, rejected: Collection[str] = ()) -> list[Problem]:
    """Returns the keys and values of a config that are not supported.

    If a name is unknown or a value was rejected, relations to other keys are not checked.

    Args:
        processes: number of processes that share a batch.
        rejected: keys whose values were not accepted, so that `cfg` has their defaults.
    """
    batch = fits("SOLVER.IMS_PER_BATCH", partial(_batch, processes=processes))
    problems = [problem for node, rules in RULES.items() for problem in problems_of(cfg, node, rules)]
    problems = [problem for problem in problems if not _is_about_users_part(cfg, problem.key)]
    problems += problems_of(cfg, "", [batch])
    if rejected or any(problem.is_unknown_name for problem in problems):
        problems = [problem for problem in problems if problem.key not in rejected and not problem.is_relation]
    return problems


_OF_ANY_PART = ("MODEL.BACKBONE.NAME", "MODEL.HEADS.NAME", "MODEL.HEADS.NUM_CLASSES", "MODEL.HEADS.PFC.ENABLED")
_OF_EVALUATORS = ("TEST.METRIC", "TEST.AQE.", "TEST.RERANK.")


def _is_about_users_part(cfg: CN, key: str) -> bool:
    """Returns whether a key belongs to a part that is the user's, which may give it another meaning."""
    if key in _OF_ANY_PART:
        return False
    if key.startswith(_OF_EVALUATORS):
        return replaces_metrics(cfg.TEST)
    model = cfg.MODEL
    parts = {
        "MODEL.BACKBONE.": (BACKBONE_REGISTRY, model.BACKBONE.NAME),
        "MODEL.HEADS.": (REID_HEADS_REGISTRY, model.HEADS.NAME),
        "KD.": (META_ARCH_REGISTRY, model.META_ARCHITECTURE),
        "INPUT.": (TRANSFORM_REGISTRY, f"{key}.".split(".")[1]),
    }
    for node, (registry, name) in parts.items():
        if key.startswith(node):
            return name in registry and not registry.entry(name).is_ours
    return False


def require_network(cfg: CN) -> None:
    """Raise one UserError about the keys that embedding needs; training and tests may be out of reach."""
    problems = [str(problem) for problem in unsupported(cfg) if problem.key.startswith((*SHAPING, *HOW_FAST))]
    if problems:
        raise UserError("\n".join(problems))
