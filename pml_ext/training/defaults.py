"""Every config key that the runner honours, with FastReID's name and default where FastReID has it.

A key that is not here is an error: nothing in a YAML is silently ignored.
"""

from yacs.config import CfgNode as CN


def get_cfg() -> CN:
    """A fresh config tree with all defaults."""
    cfg = CN()
    cfg.SEED = 0  # ours; every random choice of a run follows from it
    cfg.OUTPUT_DIR = "logs/"
    cfg.CUDNN_BENCHMARK = False
    cfg.MODEL = _model()
    cfg.MODEL.LOSSES = _losses()
    cfg.MODEL.MINER = CN()  # ours: one miner for every loss that takes one
    cfg.MODEL.MINER.NAME = ""
    cfg.MODEL.MINER.MS = CN({"EPSILON": 0.1})
    cfg.MODEL.MINER.TRIPLETMARGIN = CN({"MARGIN": 0.2, "TYPE_OF_TRIPLETS": "all"})
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
    cfg.DATALOADER = CN()
    cfg.DATALOADER.SAMPLER_TRAIN = "TrainingSampler"
    cfg.DATALOADER.NUM_INSTANCE = 4
    cfg.DATALOADER.SET_WEIGHT = []
    cfg.DATALOADER.NUM_WORKERS = 8
    cfg.SOLVER = _solver()
    cfg.TEST = CN()
    cfg.TEST.EVAL_PERIOD = 20
    cfg.TEST.IMS_PER_BATCH = 64
    cfg.TEST.METRIC = "cosine"
    cfg.TEST.BEST = "precision_at_1"  # ours: the metric by which the best checkpoint is kept
    cfg.TEST.OPIS = CN({"FAR_RANGE": (1e-2, 1e-1), "GRID": 100, "EPSILON": 0.1})  # ours
    return cfg


def _model() -> CN:
    model = CN()
    model.DEVICE = "cuda"  # cuda, cpu, or (ours) auto: cuda where there is one
    model.META_ARCHITECTURE = "Baseline"
    model.WEIGHTS = ""
    model.PIXEL_MEAN = [0.485 * 255, 0.456 * 255, 0.406 * 255]  # one value: images are read as grey
    model.PIXEL_STD = [0.229 * 255, 0.224 * 255, 0.225 * 255]
    model.BACKBONE = CN()
    model.BACKBONE.NAME = "build_convnet_backbone"
    model.BACKBONE.DEPTH = "4x"
    model.BACKBONE.FEAT_DIM = 64
    model.BACKBONE.NORM = "BN"
    model.BACKBONE.PRETRAIN = False
    model.BACKBONE.PRETRAIN_PATH = ""
    model.HEADS = CN()
    model.HEADS.NAME = "EmbeddingHead"
    model.HEADS.NORM = "BN"
    model.HEADS.EMBEDDING_DIM = 0
    model.HEADS.WITH_BNNECK = False
    model.HEADS.NECK_FEAT = "before"
    model.HEADS.POOL_LAYER = "GlobalAvgPool"
    model.HEADS.CLS_LAYER = "Linear"
    return model


def _losses() -> CN:
    """A node per loss: SCALE, and the loss's own arguments in capitals."""
    losses = CN()
    losses.NAME = ("CrossEntropyLoss",)
    losses.CE = CN({"EPSILON": 0.0, "SCALE": 1.0})
    losses.TRIPLETMARGIN = CN({"MARGIN": 0.05, "SWAP": False, "SMOOTH_LOSS": False, "SCALE": 1.0})
    losses.CONTRASTIVE = CN({"POS_MARGIN": 0.0, "NEG_MARGIN": 1.0, "SCALE": 1.0})
    losses.LIFTED = CN({"POS_MARGIN": 0.0, "NEG_MARGIN": 1.0, "SCALE": 1.0})
    losses.MS = CN({"ALPHA": 2.0, "BETA": 50.0, "BASE": 0.5, "SCALE": 1.0})
    losses.SAP = CN({"TEMPERATURE": 0.01, "SCALE": 1.0})
    losses.CIT = CN({"GAMMA": 1.0, "SIMILARITY": "unit", "HINGE_PARTIAL_LIKELIHOOD": False, "SCALE": 1.0})
    losses.DISC = CN({"CENTROIDS": "one_hot", "CENTROID_SIZE": 0, "PAPER_SCALE": False, "SEED": 0, "SCALE": 1.0})
    losses.TCM = CN({"LAMBDA_PLUS": 1.0, "LAMBDA_MINUS": 1.0, "MARGIN_PLUS": 0.9, "MARGIN_MINUS": 0.5, "SCALE": 1.0})
    losses.LOOP = CN({"LOSS": "TripletMarginLoss", "PAIRING": "consecutive", "GEOMETRY": "arc", "SCALE": 1.0})
    losses.RSK = CN({"KS": (1, 2, 4, 8, 16), "TEMPERATURE": 0.01, "RANK_TEMPERATURE": 1.0, "SCALE": 1.0})
    losses.HPHN = CN({"MARGIN": 0.2, "SCALE": 1.0})
    losses.CTL = CN({"MARGIN": 0.5, "NEGATIVES": "hardest", "SCALE": 1.0})
    losses.GPW = CN({"WEIGHTING": "multi_similarity", "MINING": 0.0, "SCALE": 1.0})  # MINING 0: none
    return losses


def _solver() -> CN:
    solver = CN()
    solver.AMP = CN({"ENABLED": False})
    solver.OPT = "Adam"
    solver.MAX_EPOCH = 120
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
    solver.WARMUP_METHOD = "linear"
    solver.CHECKPOINT_PERIOD = 20
    solver.IMS_PER_BATCH = 64
    solver.CLIP_GRADIENTS = CN({"ENABLED": False, "CLIP_TYPE": "norm", "CLIP_VALUE": 5.0, "NORM_TYPE": 2.0})
    return solver
