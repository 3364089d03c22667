"""Every config key of FastReID and FastFace with its name and default, and ours beside them (marked so).

A key that is not here is an error, and so is a value that asks for something not built (the `rules.py` of each room say
which): nothing in a YAML is silently ignored. Numbers that FastReID writes as whole ones and that may have digits after
the point (a scale, say) are floats here.
"""

from typing import Any

from yacs.config import CfgNode as CN

from pml_ext._errors import UserError
from pml_ext.runner.config.loss_nodes import DEFAULTS
from pml_ext.runner.config.part_keys import REQUIRED, keys_of
from pml_ext.runner.config.rules import leaves
from pml_ext.runner.registry import CONFIG_REGISTRY, LOSS_REGISTRY, MINER_REGISTRY, Registry

_MODEL: dict[str, Any] = {
    "DEVICE": "cuda",  # cuda, cpu, or (ours) auto: cuda where there is one
    "META_ARCHITECTURE": "Baseline", "WEIGHTS": "",
    "COMPILE": False,  # ours: torch.compile of backbone and heads in training
    "FREEZE_LAYERS": [],  # regular expressions, matched from the start of a parameter's name
    "QUEUE_SIZE": 8192,  # of MoCo
    "PIXEL_MEAN": [0.485 * 255, 0.456 * 255, 0.406 * 255],  # one value: images are read as grey
    "PIXEL_STD": [0.229 * 255, 0.224 * 255, 0.225 * 255],
    "BACKBONE": {
        "NAME": "build_resnet_backbone", "DEPTH": "50x", "LAST_STRIDE": 1, "NORM": "BN",
        "FEAT_DIM": 0,  # 0: the backbone's own; FastReID's default is 2048
        "WITH_IBN": False, "WITH_SE": False, "WITH_NL": False, "PRETRAIN": False, "PRETRAIN_PATH": "",
        "PRETRAIN_OPTIONAL": False,  # ours: if no weights can be had, train from random ones with a warning
        # of the vision transformer
        "SIE_COE": 3.0, "STRIDE_SIZE": (16, 16), "DROP_PATH_RATIO": 0.1, "DROP_RATIO": 0.0, "ATT_DROP_RATE": 0.0,
        "DROPOUT": 0.0,  # of FastFace's iresnet
    },
    "HEADS": {
        "NAME": "EmbeddingHead", "NORM": "BN",
        "NUM_CLASSES": 0,  # 0: as many as the training set has identities
        "EMBEDDING_DIM": 0,
        "HIDDEN_DIM": 0,  # ours: of a layer between the features and that to EMBEDDING_DIM; 0 for none
        "WITH_BNNECK": False, "NECK_FEAT": "before", "POOL_LAYER": "GlobalAvgPool", "CLS_LAYER": "Linear",
        "MARGIN": 0.0, "SCALE": 1.0,
        "FILTER_COSINE": 0.0,  # ours: other classes of a larger cosine have a logit of 0 (insightface); 0: no filter
        "PFC": {"ENABLED": False, "SAMPLE_RATE": 0.1},  # FastFace's class-sharded classifier
    },
    "LOSSES": {"NAME": ("CrossEntropyLoss",)},  # and a node for each loss
    "MINER": {"NAME": ""},  # ours: for every loss that takes one; and a node for each miner
}  # fmt: skip
_SOLVER: dict[str, Any] = {
    "AMP": {"ENABLED": False, "DTYPE": "float16"},  # DTYPE is ours: float16 with a scaler, or bfloat16
    "MATMUL_PRECISION": "highest",  # ours; high: the network's float32 products in TF32 on GPUs, torch's words
    "OPT": "Adam", "MAX_EPOCH": 120,
    "FREEZE_ITERS": 0,  # how long MODEL.FREEZE_LAYERS stay as they are
    "FREEZE_EPOCHS": 0.0,  # ours, beside FREEZE_ITERS: FastReID 0.2 counted epochs
    "BASE_LR": 3e-4, "HEADS_LR_FACTOR": 1.0, "BIAS_LR_FACTOR": 1.0, "MOMENTUM": 0.9, "NESTEROV": False,
    "WEIGHT_DECAY": 0.0005, "WEIGHT_DECAY_NORM": 0.0005, "WEIGHT_DECAY_BIAS": 0.0005,
    "SCHED": "MultiStepLR", "DELAY_EPOCHS": 0, "GAMMA": 0.1, "STEPS": [30, 55], "ETA_MIN_LR": 1e-7,
    "WARMUP_FACTOR": 0.1, "WARMUP_ITERS": 1000,
    "WARMUP_EPOCHS": 0.0,  # FastReID 1.0's; above 0 in place of WARMUP_ITERS, a new rate every iteration
    "WARMUP_METHOD": "linear",
    # ours: torch's OneCycleLR, its defaults
    "ONECYCLE": {"PCT_START": 0.3, "DIV_FACTOR": 25.0, "FINAL_DIV_FACTOR": 1e4, "CYCLE_MOMENTUM": True},
    "CHECKPOINT_PERIOD": 20,
    "CHECKPOINT_STEPS": 0,  # ours, beside CHECKPOINT_PERIOD's epochs: a checkpoint each so many steps; 0: none
    "IMS_PER_BATCH": 64,
    "CHUNK": 0,  # ours: images that a process embeds at once, for batches larger than memory; 0: all of its batch
    "CLIP_GRADIENTS": {"ENABLED": False, "CLIP_TYPE": "norm", "CLIP_VALUE": 5.0, "NORM_TYPE": 2.0},
}  # fmt: skip
_TEST: dict[str, Any] = {
    "EVAL_PERIOD": 20,  # epochs; 0: once, at the end
    "EVAL_STEPS": 0,  # ours, in place of EVAL_PERIOD: each so many steps; 0: by epochs
    "EVALUATOR": "",  # ours: a registered evaluator in place of METRICS, or a calculator next to them
    "IMS_PER_BATCH": 64, "METRIC": "cosine", "ROC": {"ENABLED": False}, "FLIP": {"ENABLED": False},
    "AQE": {"ENABLED": False, "ALPHA": 3.0, "QE_TIME": 1, "QE_K": 5},
    # ours: ranks and decisions by normalised scores are measured too; the gallery is the cohort
    "NORMALIZE": {"ENABLED": False, "COHORT": "gallery", "K": 20, "STRENGTH": 1.0},
    "RERANK": {"ENABLED": False, "K1": 20, "K2": 6, "LAMBDA": 0.3},
    "PRECISE_BN": {"ENABLED": False, "DATASET": "Market1501", "NUM_ITER": 300},
    # ours: the columns of test sets with queries, by name; "cmc" stands for R@k of each of RANKS
    "METRICS": (
        "cmc", "mean_average_precision_at_r", "reid_mean_average_precision", "mean_inverse_negative_penalty", "opis",
        "epsilon_opis", "NMI",
    ),
    "RANKS": (1, 5, 10),  # ours
    # ours: the metric of the first test set that chooses the best checkpoint, which the results, the report and the
    # commands then use; empty: mAP, or mAP@R, or the first of METRICS (for pairs of images accuracy, for templates
    # eer); "last": the last checkpoint
    "BEST": "",
    "PATIENCE": 0,  # ours: validations in a row without a better BEST after which training ends; 0: never
    "REPORT": True,  # ours: report.html, figures of what the model learned
    "BASELINES": False,  # ours: the raw pixels and the untrained network are measured too, for comparison
    "THRESHOLD": {"ENABLED": False, "FAR": 1e-3},  # ours: a threshold report of each test set with queries
    # ours; NEGATIVES_PER_POSITIVE: random negative pairs of a class for each of its positive ones; 0, and in threshold
    # reports: all negative pairs
    "OPIS": {"FAR_RANGE": (1e-2, 1e-1), "GRID": 100, "EPSILON": 0.1, "NEGATIVES_PER_POSITIVE": 0, "SEED": 0},
    # ours: of pairs of images (in FOLDS blocks) and of templates
    "VERIFICATION": {"FARS": (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6), "FOLDS": 10},
}  # fmt: skip


_INPUT: dict[str, Any] = {
    "SIZE_TRAIN": [256, 128], "SIZE_TEST": [256, 128],
    "INTERPOLATION": "bicubic",  # ours: of resizing; FastReID's is bicubic always
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
    "NAMES": ("Market1501",), "TESTS": ("Market1501",),
    # ours: names for your own data, each "NAME=file:people.csv" or "NAME=folder:path"; `--dataset` sets it
    "ALIASES": (),
    # ours: share of the classes, the first by name, that train in a folder of classes that is also tested on
    "SPLIT": 0.5,
    "COMBINEALL": False,  # train on query and gallery too
    "RM_LT": False,  # of FastReID's NAIC20: train without identities of one image
    "REC_PATH": "",  # FastFace's MXNet record file
    "CHECK_IMAGES": True,  # ours: decode every image file once before training, skip those that cannot be decoded
    "MAX_UNREADABLE": 0.01,  # ours: stop where a larger share of a set cannot be decoded
}  # fmt: skip
_DEFAULTS: dict[str, Any] = {
    "SEED": 0,  # ours; every random choice of a run follows from it
    "OUTPUT_DIR": "logs/",
    "IMPORTS": (),  # ours: the modules of --import that a run was made with; naming one here imports nothing
    "CALLBACKS": (),  # ours: names of Lightning callbacks that a module of --import registers
    "LOGGERS": ("csv", "tensorboard"),  # ours; wandb and mlflow where their packages are installed
    "CUDNN_BENCHMARK": False,
    "MODEL": _MODEL,
    "KD": {"MODEL_CONFIG": [], "MODEL_WEIGHTS": [], "EMA": {"ENABLED": False, "MOMENTUM": 0.999}},  # of Distiller
    "INPUT": _INPUT,
    "DATASETS": _DATASETS,
    "DATALOADER": {
        "SAMPLER_TRAIN": "TrainingSampler", "NUM_INSTANCE": 4, "SET_WEIGHT": [], "NUM_WORKERS": 8,
        "PREFETCH_FACTOR": 2,  # ours: batches that each worker loads ahead
    },
    "SOLVER": _SOLVER,
    "TEST": _TEST,
}  # fmt: skip


def get_cfg() -> CN:
    """A fresh config tree with all defaults, those of CONFIG_REGISTRY's functions too."""
    cfg = _own_defaults()
    for entry in map(CONFIG_REGISTRY.entry, CONFIG_REGISTRY):
        try:
            entry.part(cfg)
            cfg.dump()
        except Exception as error:  # whatever a user's function raises, and yacs's word on values that no YAML holds
            raise UserError(f"{entry.name} of {entry.module} cannot extend the config: {error!r}") from error
    return cfg


def _own_defaults() -> CN:
    cfg = CN(_DEFAULTS)
    cfg.MODEL.LOSSES.update(_nodes(LOSS_REGISTRY))
    cfg.MODEL.MINER.update(_nodes(MINER_REGISTRY))
    return cfg


def _nodes(registry: Registry) -> dict[str, CN]:
    """The nodes of the registry's own parts, with the constructors' defaults but for PML's distances and penalties."""
    nodes = {}
    for name, node in registry.nodes.items():
        keys = dict(registry.switches)
        for key, (_, default) in keys_of(registry.entry(name)).items():
            if default not in (None, REQUIRED) and not key.endswith("_REG_WEIGHT"):
                keys[key] = default
        nodes[node] = CN(keys | DEFAULTS.get(name, {}))
    return nodes


def projects_keys() -> list[str]:
    """The keys below MODEL and in nodes of their own that CONFIG_REGISTRY's functions have added."""
    known = dict(leaves(_own_defaults()))
    others = tuple(f"{node}." for node in _DEFAULTS if node != "MODEL")
    return [key for key, _ in leaves(get_cfg()) if key not in known and not key.startswith(others)]
