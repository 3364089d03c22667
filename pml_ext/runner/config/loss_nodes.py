"""Losses and miners that a config can name: the key of each one's node, and the node's defaults.

The keys of a node are the constructor's arguments in capitals, unless the loss's `facts` say otherwise; SCALE is added.
"""

from typing import Any

LOSSES: dict[str, tuple[str, dict[str, Any]]] = {
    "CrossEntropyLoss": ("CE", {"EPSILON": 0.0, "ALPHA": 0.2}),  # EPSILON -1: as much as ALPHA × own probability
    "FocalLoss": ("FL", {"ALPHA": 0.25, "GAMMA": 2.0}),
    "TripletLoss": ("TRI", {"MARGIN": 0.3, "NORM_FEAT": False, "HARD_MINING": False}),  # MARGIN 0: soft margin
    "CircleLoss": ("CIRCLE", {"MARGIN": 0.25, "GAMMA": 128.0}),
    "Cosface": ("COSFACE", {"MARGIN": 0.25, "GAMMA": 128.0}),
    # ours from here on
    "SoftTripleLoss": ("SOFTTRIPLE", {"CENTERS_PER_CLASS": 10, "LA": 20.0, "GAMMA": 0.1, "MARGIN": 0.01}),
    "ProxyNCALoss": ("PROXYNCA", {"SOFTMAX_SCALE": 1.0}),
    "ProxyAnchorLoss": ("PROXYANCHOR", {"MARGIN": 0.1, "ALPHA": 32.0}),
    "ArcFaceLoss": ("ARCFACE", {"MARGIN": 28.6, "LOGIT_SCALE": 64.0}),  # MARGIN in degrees
    "AngularLoss": ("ANGULAR", {"ALPHA": 40.0}),  # degrees
    "TripletMarginLoss": (
        "TRIPLETMARGIN",
        # AvgNonZeroReducer: over triplets with a loss; MeanReducer: over all; ArcPairReducer: in LoOp, its eq. 15
        {"MARGIN": 0.05, "SWAP": False, "SMOOTH_LOSS": False, "REDUCER": "AvgNonZeroReducer"},
    ),
    "ContrastiveLoss": ("CONTRASTIVE", {"POS_MARGIN": 0.0, "NEG_MARGIN": 1.0}),
    "LiftedStructureLoss": ("LIFTED", {"POS_MARGIN": 0.0, "NEG_MARGIN": 1.0}),
    "MultiSimilarityLoss": ("MS", {"ALPHA": 2.0, "BETA": 50.0, "BASE": 0.5}),
    # one pair of each class (NUM_INSTANCE 2). Dot products and a penalty on the mean squared length, as in Sohn, NIPS
    # 2016; PML's defaults are cosines and no penalty
    "NPairsLoss": ("NPAIRS", {"NORMALIZE": False, "REG_WEIGHT": 0.002}),
    "HistogramLoss": ("HISTOGRAM", {"BINS": 100}),
    "SmoothAPLoss": ("SAP", {"TEMPERATURE": 0.01}),
    "CITLoss": ("CIT", {"GAMMA": 1.0, "SIMILARITY": "unit", "HINGE_PARTIAL_LIKELIHOOD": False}),
    "DiscriminativeLoss": (
        "DISC",
        # TIGHTNESS: log both sides of the paper's Lemma 3.1, its ε and its κ
        {"CENTROIDS": "one_hot", "CENTROID_SIZE": 0, "PAPER_SCALE": False, "SEED": 0, "TIGHTNESS": False},
    ),
    "TCMLoss": (
        "TCM",
        {
            "LAMBDA_PLUS": 1.0, "LAMBDA_MINUS": 1.0, "MARGIN_PLUS": 0.9, "MARGIN_MINUS": 0.5,
            "INDICATOR": True, "DIVIDE_BY": "hard",  # the paper's ablations: False; "all"
        },
    ),
    "LoOp": (
        "LOOP",
        # POSITIVES: or "all"
        {"LOSS": "TripletMarginLoss", "PAIRING": "consecutive", "GEOMETRY": "arc", "POSITIVES": "arc"},
    ),
    "RecallAtKSurrogateLoss": ("RSK", {"KS": (1, 2, 4, 8, 16), "TEMPERATURE": 0.01, "RANK_TEMPERATURE": 1.0}),
    "HPHNTripletLoss": ("HPHN", {"MARGIN": 0.2, "POSITIVES": "farthest"}),
    "LiftedHingeLoss": ("LIFTEDHINGE", {"MARGIN": 0.2, "POSITIVES": "all"}),
    "CentroidTripletLoss": (
        "CTL",
        # POWER 2: squared Euclidean distances, 1: plain ones
        {"MARGIN": 0.5, "NEGATIVES": "hardest", "UNIT_MEANS": True, "POWER": 2, "REDUCER": "MeanReducer"},
    ),
    "PairWeightingLoss": (
        "GPW",
        {
            "WEIGHTING": "multi_similarity", "MINING": 0.0,  # 0: none
            "ALPHA": 2.0, "BETA": 50.0, "BASE": 0.5, "BOUNDED": False,  # of the weightings that have them
        },
    ),
}  # fmt: skip
MINERS: dict[str, tuple[str, dict[str, Any]]] = {
    "MultiSimilarityMiner": ("MS", {"EPSILON": 0.1}),
    "TripletMarginMiner": ("TRIPLETMARGIN", {"MARGIN": 0.2, "TYPE_OF_TRIPLETS": "all"}),
    "DistanceWeightedMiner": ("DISTANCEWEIGHTED", {"CUTOFF": 0.5, "NONZERO_LOSS_CUTOFF": 1.4}),
    "DisjointTripletMiner": ("DISJOINT", {}),
    "LoOpMiner": ("LOOP", {"MINER": "MultiSimilarityMiner", "PAIRING": "consecutive"}),  # with that miner's node
}

LOSS_NODES = {name: key for name, (key, _) in LOSSES.items()}
MINER_NODES = {name: key for name, (key, _) in MINERS.items()}
