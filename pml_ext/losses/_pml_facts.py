"""The facts of pytorch-metric-learning's losses; those that are not here have the defaults of LossFacts."""

from typing import Any

from pml_ext._checks import check_in_range, check_switch
from pml_ext._pml import FACTS, DotProductSimilarity, losses, regularizers
from pml_ext.losses._facts import PML_FACTS, LossFacts, needs
from pml_ext.losses._shares import sample_sums, tuple_sums


def _angular_margin(options: dict[str, Any], *_: Any) -> dict[str, Any]:
    return {**options, "margin": FACTS.arc_margin(options["margin"])}


def _dot_products(options: dict[str, Any], *_: Any) -> dict[str, Any]:
    check_switch(options["normalize"], "normalize")
    check_in_range(options["reg_weight"], 0, float("inf"), "reg_weight")
    return {
        "distance": DotProductSimilarity(normalize_embeddings=options["normalize"]),
        "embedding_regularizer": regularizers.LpRegularizer(power=2),
        "embedding_reg_weight": options["reg_weight"],
    }


_ANCHOR_BY_ANCHOR = LossFacts(sums=tuple_sums, term_of_each_anchor=FACTS.term_of_each_anchor)
_PAIR_BY_PAIR = LossFacts(sums=tuple_sums)
_CLASS_VECTORS = LossFacts(compares="class vectors", sums=sample_sums)
_TRIPLETS = LossFacts(makes_triplets=True)

_BY_NAME = {
    "AngularLoss": LossFacts(reads_no_pairs="it reads the embeddings themselves, not pair distances"),
    "ArcFaceLoss": LossFacts(compares="class vectors", sums=sample_sums, arguments=_angular_margin),
    "CircleLoss": _ANCHOR_BY_ANCHOR,
    "ContrastiveLoss": _PAIR_BY_PAIR,
    "CosFaceLoss": _CLASS_VECTORS,
    "DynamicSoftMarginLoss": _TRIPLETS,
    "FastAPLoss": LossFacts(takes_all_positives="it ranks all positives of a sample; a tuple only weights the samples"),
    "HistogramLoss": _TRIPLETS,
    "InstanceLoss": LossFacts(reads_no_pairs="it reads column c of the matrix as class c, so it has no negative pairs"),
    "LargeMarginSoftmaxLoss": LossFacts(compares="class vectors"),
    "MarginLoss": _TRIPLETS,
    "MultiSimilarityLoss": _ANCHOR_BY_ANCHOR,
    "NCALoss": LossFacts(takes_all_positives="it takes all positives of a sample; a tuple only weights the samples"),
    "NormalizedSoftmaxLoss": _CLASS_VECTORS,
    "NPairsLoss": LossFacts(arguments=_dot_products),
    "NTXentLoss": _PAIR_BY_PAIR,
    "P2SGradLoss": LossFacts(compares="class vectors"),
    "PNPLoss": LossFacts(takes_all_positives="it ranks all positives of a sample and takes no tuples"),
    "ProxyAnchorLoss": LossFacts(compares="class vectors"),
    "ProxyNCALoss": _CLASS_VECTORS,
    "RankedListLoss": LossFacts(takes_all_positives="it takes all positives of a sample and no tuples"),
    "SmoothAPLoss": LossFacts(
        takes_all_positives="it ranks all positives of a sample; a tuple only weights the samples"
    ),
    "SoftTripleLoss": _CLASS_VECTORS,
    "SphereFaceLoss": LossFacts(compares="class vectors"),
    "SubCenterArcFaceLoss": LossFacts(compares="class vectors"),
    "SupConLoss": _ANCHOR_BY_ANCHOR,
    "ThresholdConsistentMarginLoss": LossFacts(
        reads_no_pairs="it computes its cosines itself; TCMLoss is the same loss and works"
    ),
    "TripletMarginLoss": LossFacts(
        makes_triplets=True,
        sums=tuple_sums,
        undivided=needs(triplets_per_anchor="all", swap=False),
    ),
    "VICRegLoss": LossFacts(reads_no_pairs="it has no labels and no pair distances"),
}
# Version 2.8 lacks some of them.
PML_FACTS.update({getattr(losses, name): facts for name, facts in _BY_NAME.items() if hasattr(losses, name)})
