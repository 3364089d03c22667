"""All config keys with their defaults: those of FastReID and FastFace, and those of this package, marked "ours".

An unknown key is an error, and so is a value that is not supported (see `checks/rules.py`): nothing in a
YAML is silently ignored. A number that may have decimals, such as a scale, is a float here even if FastReID writes it
as an integer.
"""

from typing import Any

from yacs.config import CfgNode as CN

from pml_ext._shared.errors import UserError
from pml_ext.runner.config.part_keys import REQUIRED, keys_of
from pml_ext.runner.config.yaml_file import leaves
from pml_ext.runner.registry import (
    CONFIG_REGISTRY,
    LOSS_REGISTRY,
    MINER_REGISTRY,
    NODE_DEFAULTS,
    TRANSFORM_REGISTRY,
    Registry,
    naming_parts,
)

_MODEL: dict[str, Any] = {
    "DEVICE": "cuda",  # cuda, cpu, or (ours) auto: cuda if available
    "META_ARCHITECTURE": "Baseline", "WEIGHTS": "",
    "COMPILE": False,  # ours: torch.compile of backbone and heads in training
    "FREEZE_LAYERS": [],  # regular expressions, matched from the start of a parameter's name
    "QUEUE_SIZE": 8192,  # for MoCo
    "PIXEL_MEAN": [0.485 * 255, 0.456 * 255, 0.406 * 255],  # one value: images are read as grey
    "PIXEL_STD": [0.229 * 255, 0.224 * 255, 0.225 * 255],
    "BACKBONE": {
        "NAME": "build_resnet_backbone", "DEPTH": "50x", "LAST_STRIDE": 1, "NORM": "BN",
        "FEAT_DIM": 0,  # 0: the backbone's; FastReID's default is 2048
        "WITH_IBN": False, "WITH_SE": False, "WITH_NL": False, "PRETRAIN": False, "PRETRAIN_PATH": "",
        "PRETRAIN_OPTIONAL": False,  # ours: if no weights are available, start from random ones with a warning
        # vision transformer
        "SIE_COE": 3.0, "STRIDE_SIZE": (16, 16), "DROP_PATH_RATIO": 0.1, "DROP_RATIO": 0.0, "ATT_DROP_RATE": 0.0,
        "DROPOUT": 0.0,  # FastFace's iresnet
    },
    "HEADS": {
        "NAME": "EmbeddingHead", "NORM": "BN",
        "NUM_CLASSES": 0,  # 0: number of identities in the training set
        "EMBEDDING_DIM": 0,
        "HIDDEN_DIM": 0,  # ours: size of a layer between the features and the EMBEDDING_DIM layer; 0: none
        "WITH_BNNECK": False, "NECK_FEAT": "before", "POOL_LAYER": "GlobalAvgPool", "CLS_LAYER": "Linear",
        "MARGIN": 0.0, "SCALE": 1.0,
        "FILTER_COSINE": 0.0,  # ours: logits of other classes with a larger cosine are 0 (insightface); 0: no filter
        "PFC": {"ENABLED": False, "SAMPLE_RATE": 0.1},  # FastFace's class-sharded classifier
    },
    "LOSSES": {"NAME": ("CrossEntropyLoss",)},  # plus a node for each loss
    "MINER": {"NAME": ""},  # ours: used by every loss that accepts a miner; plus a node for each miner
}  # fmt: skip
_SOLVER: dict[str, Any] = {
    "AMP": {"ENABLED": False, "DTYPE": "float16"},  # DTYPE is ours: float16 with a scaler, or bfloat16
    "MATMUL_PRECISION": "highest",  # ours; torch's names: high uses TF32 for the network's float32 products on GPUs
    "OPT": "Adam", "MAX_EPOCH": 120,
    "FREEZE_ITERS": 0,  # number of iterations for which MODEL.FREEZE_LAYERS are frozen
    "FREEZE_EPOCHS": 0.0,  # ours, in addition to FREEZE_ITERS: FastReID 0.2 counted epochs
    "BASE_LR": 3e-4, "HEADS_LR_FACTOR": 1.0, "BIAS_LR_FACTOR": 1.0, "MOMENTUM": 0.9, "NESTEROV": False,
    "WEIGHT_DECAY": 0.0005, "WEIGHT_DECAY_NORM": 0.0005, "WEIGHT_DECAY_BIAS": 0.0005,
    "SCHED": "MultiStepLR", "DELAY_EPOCHS": 0, "GAMMA": 0.1, "STEPS": [30, 55], "ETA_MIN_LR": 1e-7,
    "WARMUP_FACTOR": 0.1, "WARMUP_ITERS": 1000,
    "WARMUP_EPOCHS": 0.0,  # FastReID 1.0's; if above 0, replaces WARMUP_ITERS; the rate changes every iteration
    "WARMUP_METHOD": "linear",
    # ours: torch's OneCycleLR with its defaults
    "ONECYCLE": {"PCT_START": 0.3, "DIV_FACTOR": 25.0, "FINAL_DIV_FACTOR": 1e4, "CYCLE_MOMENTUM": True},
    "CHECKPOINT_PERIOD": 20,
    "CHECKPOINT_STEPS": 0,  # ours, in addition to CHECKPOINT_PERIOD: steps between checkpoints; 0: none
    "IMS_PER_BATCH": 64,
    "FIND_UNUSED_PARAMETERS": False,  # ours: needed by several processes if a loss does not use some trained parameters
    "CHUNK": 0,  # ours: number of images embedded at once, for batches larger than memory; 0: the complete batch
    "CLIP_GRADIENTS": {"ENABLED": False, "CLIP_TYPE": "norm", "CLIP_VALUE": 5.0, "NORM_TYPE": 2.0},
}  # fmt: skip
_TEST: dict[str, Any] = {
    "EVAL_PERIOD": 20,  # epochs; 0: once, at the end
    "EVAL_STEPS": 0,  # ours, replaces EVAL_PERIOD: steps between evaluations; 0: by epochs
    "EVALUATOR": "",  # ours: a registered evaluator that replaces METRICS, or a calculator in addition to them
    "IMS_PER_BATCH": 64, "METRIC": "cosine", "ROC": {"ENABLED": False}, "FLIP": {"ENABLED": False},
    "AQE": {"ENABLED": False, "ALPHA": 3.0, "QE_TIME": 1, "QE_K": 5},
    # ours: also rank by CSLS: similar neighbours in the gallery lower an image's rank; K: how many of them count
    "CSLS": {"ENABLED": False, "K": 10},
    "RERANK": {"ENABLED": False, "K1": 20, "K2": 6, "LAMBDA": 0.3},
    "PRECISE_BN": {"ENABLED": False, "DATASET": "Market1501", "NUM_ITER": 300},
    # ours: metrics of test sets with queries; "cmc" stands for R@k for each k in RANKS
    "METRICS": (
        "cmc", "mean_average_precision_at_r", "reid_mean_average_precision", "mean_inverse_negative_penalty", "opis",
        "epsilon_opis", "NMI",
    ),
    "RANKS": (1, 5, 10),  # ours
    # ours: metric on the first test set that selects the best checkpoint, which the results, the report and the
    # commands then use. Empty: mAP, or mAP@R, or the first of METRICS (for pairs of images accuracy, for templates
    # eer). "last": the last checkpoint
    "BEST": "",
    "PATIENCE": 0,  # ours: stop training after this number of validations without a better BEST; 0: never
    "REPORT": True,  # ours: write report.html with figures
    "BASELINES": False,  # ours: also evaluate the raw pixels and the network before training
    "THRESHOLD": {"ENABLED": False, "FAR": 1e-3},  # ours: write a threshold report for each test set with queries
    "OPIS": {"FAR_RANGE": (1e-2, 1e-1), "GRID": 100, "EPSILON": 0.1},  # ours
    # ours: for pairs of images (in FOLDS blocks) and for templates
    "VERIFICATION": {"FARS": (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6), "FOLDS": 10},
}  # fmt: skip


_INPUT: dict[str, Any] = {
    "SIZE_TRAIN": [256, 128], "SIZE_TEST": [256, 128],
    "INTERPOLATION": "bicubic",  # ours: interpolation of resizing; FastReID always uses bicubic
    "CROP": {"ENABLED": False, "SIZE": [224, 224], "SCALE": [0.16, 1.0], "RATIO": [3 / 4, 4 / 3]},
    "FLIP": {"ENABLED": False, "PROB": 0.5},
    "PADDING": {"ENABLED": False, "MODE": "constant", "SIZE": 10},
    "CJ": {"ENABLED": False, "PROB": 0.5, "BRIGHTNESS": 0.15, "CONTRAST": 0.15, "SATURATION": 0.1, "HUE": 0.1},
    "AFFINE": {"ENABLED": False},
    "AUTOAUG": {"ENABLED": False, "PROB": 0.0},
    "AUGMIX": {"ENABLED": False, "PROB": 0.0},
    "REA": {"ENABLED": False, "PROB": 0.5, "VALUE": [0.485 * 255, 0.456 * 255, 0.406 * 255]},
    "RPT": {"ENABLED": False, "PROB": 0.5},
}  # fmt: skip
_DATASETS: dict[str, Any] = {
    "ROOT": "",  # ours; empty: $FASTREID_DATASETS, then $PML_EXT_DATA, then ./datasets
    "NAMES": ("Market1501",),
    "TESTS": ("Market1501",),  # (): train without tests
    # ours: names for your own data, each "NAME=file:people.csv" or "NAME=folder:path"; `--dataset` sets it
    "ALIASES": (),
    # ours: if a folder of classes is used for training and testing, the share of classes (first by name) for training
    "SPLIT": 0.5,
    "COMBINEALL": False,  # train on query and gallery too
    "RM_LT": False,  # FastReID's NAIC20: train without identities that have one image
    "REC_PATH": "",  # FastFace's MXNet record file
    "CHECK_IMAGES": True,  # ours: decode every image file once before training, skip those that cannot be decoded
    "MAX_UNREADABLE": 0.01,  # ours: stop if a larger share of a set cannot be decoded
}  # fmt: skip
_DEFAULTS: dict[str, Any] = {
    "SEED": 0,  # ours; determines every random choice of a run
    "OUTPUT_DIR": "logs/",
    "IMPORTS": (),  # ours: records the --import modules of a run; setting it imports nothing
    "CALLBACKS": (),  # ours: names of Lightning callbacks that a module of --import registers
    "LOGGERS": ("csv", "tensorboard"),  # ours; also wandb and mlflow if their packages are installed
    "CUDNN_BENCHMARK": False,
    "MODEL": _MODEL,
    "KD": {"MODEL_CONFIG": [], "MODEL_WEIGHTS": [], "EMA": {"ENABLED": False, "MOMENTUM": 0.999}},  # for Distiller
    "INPUT": _INPUT,
    "DATASETS": _DATASETS,
    "DATALOADER": {
        "SAMPLER_TRAIN": "TrainingSampler", "NUM_INSTANCE": 4, "SET_WEIGHT": [], "NUM_WORKERS": 8,
        "PREFETCH_FACTOR": 2,  # ours: batches that each worker loads ahead
    },
    "SOLVER": _SOLVER,
    "TEST": _TEST,
}  # fmt: skip

PACKAGE_KEYS = frozenset(key for key, _ in leaves(_DEFAULTS))
"""The keys that do not depend on registered parts."""


def get_cfg() -> CN:
    """Returns a new config tree with all defaults, including those of CONFIG_REGISTRY's functions.

    A group that a function assigns keeps our other keys.

    Raises:
        UserError: a function replaces a group by a value or the reverse, or adds a value that YAML cannot hold.
    """
    cfg = _package_defaults()
    for entry in map(CONFIG_REGISTRY.entry, CONFIG_REGISTRY):
        with naming_parts():
            entry.part(cfg)
        cfg.defrost()
        _fill(cfg, _package_defaults(), f"{entry.name} of {entry.module}")
        try:
            cfg.dump()
        except Exception as error:  # of yacs or PyYAML
            raise UserError(f"{entry.name} of {entry.module} adds a value that YAML cannot hold: {error}") from error
    return cfg


def _fill(node: CN, defaults: CN, source: str, path: str = "") -> None:
    """Add the missing keys of a node, which a project's function (`source`) may have replaced by its own."""
    for key, default in defaults.items():
        value, name = node.setdefault(key, default), f"{path}{key}"
        if isinstance(value, CN) != isinstance(default, CN):
            kinds = ("a value", "a group of keys") if isinstance(value, CN) else ("a group of keys", "a value")
            raise UserError(f"{source} sets {name} to {kinds[1]}, but {name} is {kinds[0]}: use another name")
        if type(default) is float and type(value) is int:  # as FastReID's defaults have it
            node[key] = float(value)
        if isinstance(default, CN):
            _fill(value, default, source, f"{name}.")


def _package_defaults() -> CN:
    cfg = CN(_DEFAULTS)
    cfg.MODEL.LOSSES.update(_nodes(LOSS_REGISTRY))
    cfg.MODEL.MINER.update(_nodes(MINER_REGISTRY))
    for entry in TRANSFORM_REGISTRY.users_parts():
        if entry.node in cfg.INPUT:
            defaults = {key: default for key, (_, default) in keys_of(entry).items() if default is not REQUIRED}
            cfg.INPUT[entry.node].update(defaults)
    return cfg


def _nodes(registry: Registry) -> dict[str, CN]:
    """Returns the nodes of our parts in the registry: constructor defaults without PML's distances and penalties."""
    nodes = {}
    for name in filter(registry.__contains__, registry.nodes):
        entry, keys = registry.entry(name), dict(registry.switches)
        for key, (_, default) in keys_of(entry).items():
            if default not in (None, REQUIRED) and not key.endswith("_REG_WEIGHT"):
                keys[key] = default
        nodes[entry.node] = CN(keys | (NODE_DEFAULTS.get(name, {}) if entry.is_ours else {}))
    return nodes


def projects_keys() -> list[str]:
    """Returns the keys that CONFIG_REGISTRY's functions have added below MODEL and INPUT, or in new nodes."""
    known = dict(leaves(_package_defaults()))
    others = tuple(f"{node}." for node in _DEFAULTS if node not in ("MODEL", "INPUT"))
    return [key for key, _ in leaves(get_cfg()) if key not in known and not key.startswith(others)]
