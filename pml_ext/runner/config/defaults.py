"""Every config key of FastReID and FastFace with its name and default, and ours beside them (marked so).

A key that is not here is an error, and so is a value that asks for something not built (the `rules.py` of each room say
which): nothing in a YAML is silently ignored. Numbers that FastReID writes as whole ones and that may have digits after
the point (a scale, say) are floats here.
"""

from yacs.config import CfgNode as CN

from pml_ext.runner.config.loss_nodes import LOSSES, MINERS


def get_cfg() -> CN:
    """A fresh config tree with all defaults."""
    cfg = CN()
    cfg.SEED = 0  # ours; every random choice of a run follows from it
    cfg.OUTPUT_DIR = "logs/"
    cfg.LOGGERS = ("csv", "tensorboard")  # ours; wandb and mlflow where their packages are installed
    cfg.CUDNN_BENCHMARK = False
    cfg.MODEL = _model()
    cfg.MODEL.LOSSES = CN({"NAME": ("CrossEntropyLoss",)})
    cfg.MODEL.LOSSES.update({node: CN({**options, "SCALE": 1.0}) for node, options in LOSSES.values()})
    cfg.KD = CN({"MODEL_CONFIG": [], "MODEL_WEIGHTS": [], "EMA": {"ENABLED": False, "MOMENTUM": 0.999}})  # of Distiller
    cfg.MODEL.MINER = CN({"NAME": ""})  # ours: one miner for every loss that takes one
    cfg.MODEL.MINER.update({node: CN(options) for node, options in MINERS.values()})
    cfg.INPUT = CN()
    cfg.INPUT.SIZE_TRAIN = [256, 128]
    cfg.INPUT.SIZE_TEST = [256, 128]
    cfg.INPUT.INTERPOLATION = "bicubic"  # ours: of resizing; FastReID's is bicubic always
    cfg.INPUT.CROP = CN({"ENABLED": False, "SIZE": [224, 224], "SCALE": [0.16, 1.0], "RATIO": [3 / 4, 4 / 3]})
    cfg.INPUT.FLIP = CN({"ENABLED": False, "PROB": 0.5})
    cfg.INPUT.PADDING = CN({"ENABLED": False, "MODE": "constant", "SIZE": 10})
    cfg.INPUT.CJ = CN(
        {"ENABLED": False, "PROB": 0.5, "BRIGHTNESS": 0.15, "CONTRAST": 0.15, "SATURATION": 0.1, "HUE": 0.1}
    )
    cfg.INPUT.AFFINE = CN({"ENABLED": False})
    cfg.INPUT.AUTOAUG = CN({"ENABLED": False, "PROB": 0.0})
    cfg.INPUT.AUGMIX = CN({"ENABLED": False, "PROB": 0.0})
    cfg.INPUT.REA = CN({"ENABLED": False, "PROB": 0.5, "VALUE": [0.485 * 255, 0.456 * 255, 0.406 * 255]})
    cfg.INPUT.RPT = CN({"ENABLED": False, "PROB": 0.5})
    cfg.DATASETS = CN()
    cfg.DATASETS.ROOT = ""  # ours; empty: $FASTREID_DATASETS, then $PML_EXT_DATA, then ./datasets
    cfg.DATASETS.NAMES = ("Market1501",)
    cfg.DATASETS.TESTS = ("Market1501",)
    # ours: names for data of one's own, each "NAME=file:people.csv" or "NAME=folder:path"; `--dataset` sets it
    cfg.DATASETS.ALIASES = ()
    cfg.DATASETS.COMBINEALL = False  # train on query and gallery too
    cfg.DATASETS.RM_LT = False  # of FastReID's NAIC20: train without identities of one image
    cfg.DATASETS.REC_PATH = ""  # FastFace's MXNet record file
    cfg.DATASETS.CHECK_IMAGES = True  # ours: decode every image file once before training, skip those that cannot be
    cfg.DATASETS.MAX_UNREADABLE = 0.01  # ours: stop where a larger share of a set cannot be decoded
    cfg.DATALOADER = CN()
    cfg.DATALOADER.SAMPLER_TRAIN = "TrainingSampler"
    cfg.DATALOADER.NUM_INSTANCE = 4
    cfg.DATALOADER.SET_WEIGHT = []
    cfg.DATALOADER.NUM_WORKERS = 8
    cfg.SOLVER = _solver()
    cfg.TEST = _test()
    return cfg


def _model() -> CN:
    model = CN()
    model.DEVICE = "cuda"  # cuda, cpu, or (ours) auto: cuda where there is one
    model.META_ARCHITECTURE = "Baseline"
    model.WEIGHTS = ""
    model.FREEZE_LAYERS = []  # regular expressions, matched from the start of a parameter's name
    model.QUEUE_SIZE = 8192  # of MoCo
    model.PIXEL_MEAN = [0.485 * 255, 0.456 * 255, 0.406 * 255]  # one value: images are read as grey
    model.PIXEL_STD = [0.229 * 255, 0.224 * 255, 0.225 * 255]
    model.BACKBONE = CN()
    model.BACKBONE.NAME = "build_resnet_backbone"
    model.BACKBONE.DEPTH = "50x"
    model.BACKBONE.LAST_STRIDE = 1
    model.BACKBONE.FEAT_DIM = 2048
    model.BACKBONE.NORM = "BN"
    model.BACKBONE.WITH_IBN = False
    model.BACKBONE.WITH_SE = False
    model.BACKBONE.WITH_NL = False
    model.BACKBONE.PRETRAIN = False
    model.BACKBONE.PRETRAIN_PATH = ""
    # of the vision transformer
    model.BACKBONE.SIE_COE = 3.0
    model.BACKBONE.STRIDE_SIZE = (16, 16)
    model.BACKBONE.DROP_PATH_RATIO = 0.1
    model.BACKBONE.DROP_RATIO = 0.0
    model.BACKBONE.ATT_DROP_RATE = 0.0
    model.BACKBONE.DROPOUT = 0.0  # of FastFace's iresnet
    model.HEADS = CN()
    model.HEADS.NAME = "EmbeddingHead"
    model.HEADS.NORM = "BN"
    model.HEADS.NUM_CLASSES = 0  # 0: as many as the training set has identities
    model.HEADS.EMBEDDING_DIM = 0
    model.HEADS.HIDDEN_DIM = 0  # ours: of a layer between the features and that to EMBEDDING_DIM; 0 for none
    model.HEADS.WITH_BNNECK = False
    model.HEADS.NECK_FEAT = "before"
    model.HEADS.POOL_LAYER = "GlobalAvgPool"
    model.HEADS.CLS_LAYER = "Linear"
    model.HEADS.MARGIN = 0.0
    model.HEADS.SCALE = 1.0
    model.HEADS.PFC = CN({"ENABLED": False, "SAMPLE_RATE": 0.1})  # FastFace's class-sharded classifier
    return model


def _solver() -> CN:
    solver = CN()
    solver.AMP = CN({"ENABLED": False})
    solver.OPT = "Adam"
    solver.MAX_EPOCH = 120
    solver.FREEZE_ITERS = 0  # how long MODEL.FREEZE_LAYERS stay as they are
    solver.FREEZE_EPOCHS = 0.0  # ours, beside FREEZE_ITERS: FastReID 0.2 counted epochs
    solver.BASE_LR = 3e-4
    solver.HEADS_LR_FACTOR = 1.0
    solver.BIAS_LR_FACTOR = 1.0
    solver.MOMENTUM = 0.9
    solver.NESTEROV = False
    solver.WEIGHT_DECAY = 0.0005
    solver.WEIGHT_DECAY_NORM = 0.0005
    solver.WEIGHT_DECAY_BIAS = 0.0005
    solver.SCHED = "MultiStepLR"
    solver.DELAY_EPOCHS = 0
    solver.GAMMA = 0.1
    solver.STEPS = [30, 55]
    solver.ETA_MIN_LR = 1e-7
    solver.WARMUP_FACTOR = 0.1
    solver.WARMUP_ITERS = 1000
    solver.WARMUP_EPOCHS = 0.0  # FastReID 1.0's; above 0 in place of WARMUP_ITERS, a new rate every iteration
    solver.WARMUP_METHOD = "linear"
    solver.ONECYCLE = CN(  # ours: torch's OneCycleLR, its defaults
        {"PCT_START": 0.3, "DIV_FACTOR": 25.0, "FINAL_DIV_FACTOR": 1e4, "CYCLE_MOMENTUM": True}
    )
    solver.CHECKPOINT_PERIOD = 20
    solver.IMS_PER_BATCH = 64
    solver.CHUNK = 0  # ours: images that a process embeds at once, for batches larger than memory; 0: all of its batch
    solver.CLIP_GRADIENTS = CN({"ENABLED": False, "CLIP_TYPE": "norm", "CLIP_VALUE": 5.0, "NORM_TYPE": 2.0})
    return solver


def _test() -> CN:
    test = CN()
    test.EVAL_PERIOD = 20
    test.IMS_PER_BATCH = 64
    test.METRIC = "cosine"
    test.ROC = CN({"ENABLED": False})
    test.FLIP = CN({"ENABLED": False})
    test.AQE = CN({"ENABLED": False, "ALPHA": 3.0, "QE_TIME": 1, "QE_K": 5})
    test.RERANK = CN({"ENABLED": False, "K1": 20, "K2": 6, "LAMBDA": 0.3})
    test.PRECISE_BN = CN({"ENABLED": False, "DATASET": "Market1501", "NUM_ITER": 300})
    # ours: the columns of test sets with queries, by name; "cmc" stands for R@k of each of RANKS
    test.METRICS = (
        "cmc", "mean_average_precision_at_r", "reid_mean_average_precision", "mean_inverse_negative_penalty", "opis",
        "epsilon_opis", "NMI",
    )  # fmt: skip
    test.RANKS = (1, 5, 10)  # ours
    # ours: the metric of the first test set by which the best checkpoint is kept; empty: the first of METRICS, for
    # pairs of images accuracy, for templates eer
    test.BEST = ""
    test.REPORT = True  # ours: report.html, what the model learned as pictures
    test.BASELINES = False  # ours: the raw pixels and the untrained network are measured too, for comparison
    test.THRESHOLD = CN({"ENABLED": False, "FAR": 1e-3})  # ours: a threshold report of each test set with queries
    test.OPIS = CN({"FAR_RANGE": (1e-2, 1e-1), "GRID": 100, "EPSILON": 0.1})  # ours
    # random negative pairs of a class for each of its positive ones; 0, and in threshold reports: all negative pairs
    test.OPIS.update({"NEGATIVES_PER_POSITIVE": 0, "SEED": 0})
    # ours: of pairs of images (in FOLDS blocks) and of templates
    test.VERIFICATION = CN({"FARS": (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6), "FOLDS": 10})
    return test
