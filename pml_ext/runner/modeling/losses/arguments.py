"""Constructor arguments of losses whose config keys are not their arguments in capitals."""

from collections.abc import Callable
from typing import Any

from pml_ext._checks import check_in_range, check_switch
from pml_ext._pml import DotProductSimilarity, LpDistance, regularizers

Options = dict[str, Any]
"""The keys of a loss's node, in lower case."""
Build = Callable[..., Any]
"""(name, **arguments) -> another loss of the config."""


def _centroid_triplet(options: Options, build: Build) -> Options:
    arguments = {name: value for name, value in options.items() if name != "power"}
    return {**arguments, "distance": LpDistance(power=options["power"])}


def _discriminative(options: Options, build: Build) -> Options:
    arguments = {name: value for name, value in options.items() if name != "tightness"}  # for the log only
    return {**arguments, "centroid_size": options["centroid_size"] or None}


def _loop(options: Options, build: Build) -> Options:
    # Segments lie in the space itself, so the loss in LoOp measures there.
    measure = {"distance": LpDistance(normalize_embeddings=False)} if options["geometry"] == "segment" else {}
    return {**options, "positives": options["positives"] or None, "loss": build(options["loss"], **measure)}


def _n_pairs(options: Options, build: Build) -> Options:
    check_switch(options["normalize"], "normalize")
    check_in_range(options["reg_weight"], 0, float("inf"), "reg_weight")
    return {
        "distance": DotProductSimilarity(normalize_embeddings=options["normalize"]),
        "embedding_regularizer": regularizers.LpRegularizer(power=2),
        "embedding_reg_weight": options["reg_weight"],
    }


def _pair_weighting(options: Options, build: Build) -> Options:
    return {**options, "mining": options["mining"] or None}


ARGUMENTS: dict[str, Callable[[Options, Build], Options]] = {
    "CentroidTripletLoss": _centroid_triplet,
    "DiscriminativeLoss": _discriminative,
    "LoOp": _loop,
    "NPairsLoss": _n_pairs,
    "PairWeightingLoss": _pair_weighting,
}


def _sharded_discriminative(options: Options) -> Options:
    for name, needed in {"centroids": "one_hot", "centroid_size": 0, "paper_scale": False, "tightness": False}.items():
        if options[name] != needed:
            raise ValueError(
                f"{name} of DiscriminativeLoss must be {needed!r} if its classes are sharded over ranks; got "
                f"{options[name]!r}. A row of the projection is the score of one class only with one-hot centroids; "
                "distances to other centroids need the rows of all ranks"
            )
    return {"margin": "discriminative"}


PARTIAL_FC: dict[str, Callable[[Options], Options]] = {
    "CrossEntropyLoss": lambda options: {"epsilon": options["epsilon"]},
    "DiscriminativeLoss": _sharded_discriminative,
}
"""Arguments of the `PartialFC` that shards a loss's classes over ranks. Raises ValueError if the options prevent it."""
