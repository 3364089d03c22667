"""Losses and miners that can be used in a config, and the key of each one's node.

The keys of a node are the constructor's arguments in capitals, unless the loss's `facts` define others, plus SCALE.
"""

from typing import Any

LOSS_NODES = {
    "CrossEntropyLoss": "CE",
    "FocalLoss": "FL",
    "TripletLoss": "TRI",
    "CircleLoss": "CIRCLE",
    "Cosface": "COSFACE",
    # ours from here on
    "SoftTripleLoss": "SOFTTRIPLE",
    "ProxyNCALoss": "PROXYNCA",
    "ProxyAnchorLoss": "PROXYANCHOR",
    "ArcFaceLoss": "ARCFACE",  # MARGIN in degrees
    "AngularLoss": "ANGULAR",
    "TripletMarginLoss": "TRIPLETMARGIN",
    "ContrastiveLoss": "CONTRASTIVE",
    "LiftedStructureLoss": "LIFTED",
    "MultiSimilarityLoss": "MS",
    "NPairsLoss": "NPAIRS",  # one pair of each class (NUM_INSTANCE 2)
    "HistogramLoss": "HISTOGRAM",
    "SmoothAPLoss": "SAP",
    "CITLoss": "CIT",
    "DiscriminativeLoss": "DISC",
    "TCMLoss": "TCM",
    "LoOp": "LOOP",
    "RecallAtKSurrogateLoss": "RSK",
    "HPHNTripletLoss": "HPHN",
    "LiftedHingeLoss": "LIFTEDHINGE",
    "CentroidTripletLoss": "CTL",
    "PairWeightingLoss": "GPW",
}
MINER_NODES = {
    "MultiSimilarityMiner": "MS",
    "TripletMarginMiner": "TRIPLETMARGIN",
    "DistanceWeightedMiner": "DISTANCEWEIGHTED",
    "DisjointTripletMiner": "DISJOINT",
    "LoOpMiner": "LOOP",
}
DEFAULTS: dict[str, dict[str, Any]] = {
    # AvgNonZeroReducer: mean over triplets with a loss; MeanReducer: over all; ArcPairReducer: in LoOp, its eq. 15
    "TripletMarginLoss": {"REDUCER": "AvgNonZeroReducer"},
    # Dot products and a penalty on the mean squared length, as in Sohn, NIPS 2016; PML's defaults are cosines and none
    "NPairsLoss": {"NORMALIZE": False, "REG_WEIGHT": 0.002},
    # TIGHTNESS: log both sides of the paper's Lemma 3.1, its ε and its κ
    "DiscriminativeLoss": {"CENTROID_SIZE": 0, "TIGHTNESS": False},
    "LoOp": {"LOSS": "TripletMarginLoss", "POSITIVES": ""},  # "": "arc" without a miner, "all" with one
    # POWER 2: squared Euclidean distances, 1: plain ones
    "CentroidTripletLoss": {"POWER": 2, "REDUCER": "MeanReducer"},
    "PairWeightingLoss": {"MINING": 0.0},  # 0: none
    "LoOpMiner": {"MINER": "MultiSimilarityMiner"},  # options in that miner's node
}
"""Keys that are not constructor arguments, or whose default differs from the constructor's."""
