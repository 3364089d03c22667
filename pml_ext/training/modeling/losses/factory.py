"""From LOSSES and MINER nodes to loss and miner objects."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn
from yacs.config import CfgNode as CN

import pml_ext.losses
import pml_ext.miners
from pml_ext.training.config.load import ConfigError, require
from pml_ext.training.modeling.losses import id_losses, pair_losses

# FastReID's losses by FastReID's names; all other names are pml_ext.losses'
ID_LOSSES: dict[str, type[nn.Module]] = {
    "CrossEntropyLoss": id_losses.CrossEntropyLoss,
    "FocalLoss": id_losses.FocalLoss,
}
PAIR_LOSSES: dict[str, type[nn.Module]] = {
    "TripletLoss": pair_losses.TripletLoss,
    "CircleLoss": pair_losses.CircleLoss,
    "Cosface": pair_losses.CosfaceLoss,
}
# class name -> its node under MODEL.LOSSES; the node's keys are the constructor's arguments in capitals, and SCALE
LOSS_NODES = {
    "CrossEntropyLoss": "CE",
    "FocalLoss": "FL",
    "TripletLoss": "TRI",
    "CircleLoss": "CIRCLE",
    "Cosface": "COSFACE",
    "SoftTripleLoss": "SOFTTRIPLE",
    "ProxyNCALoss": "PROXYNCA",
    "ArcFaceLoss": "ARCFACE",
    "AngularLoss": "ANGULAR",
    "TripletMarginLoss": "TRIPLETMARGIN",
    "ContrastiveLoss": "CONTRASTIVE",
    "LiftedStructureLoss": "LIFTED",
    "MultiSimilarityLoss": "MS",
    "SmoothAPLoss": "SAP",
    "CITLoss": "CIT",
    "DiscriminativeLoss": "DISC",
    "TCMLoss": "TCM",
    "LoOp": "LOOP",
    "RecallAtKSurrogateLoss": "RSK",
    "HPHNTripletLoss": "HPHN",
    "CentroidTripletLoss": "CTL",
    "PairWeightingLoss": "GPW",
}
MINER_NODES = {"MultiSimilarityMiner": "MS", "TripletMarginMiner": "TRIPLETMARGIN"}
# These learn a vector or more for each identity.
_WITH_CLASS_WEIGHTS = ("DiscriminativeLoss", "SoftTripleLoss", "ProxyNCALoss", "ArcFaceLoss")
# TCM is defined over all pairs of the batch; the others take no tuples.
NOT_MINED = (*ID_LOSSES, *PAIR_LOSSES, *_WITH_CLASS_WEIGHTS, "SmoothAPLoss", "TCMLoss", "RecallAtKSurrogateLoss")


@dataclass(frozen=True)
class LossTerm:
    """One summand of the training loss."""

    name: str
    scale: float
    is_id_loss: bool
    is_mined: bool


def build_losses(options: CN, *, num_classes: int, feature_size: int) -> tuple[list[LossTerm], nn.ModuleDict]:
    """The terms of NAME and their modules by name.

    Args:
        options: the config's MODEL.LOSSES.
        num_classes: identities of the training set.
        feature_size: of the embeddings that the losses see.
    Raises:
        ConfigError: an unknown or repeated name, an argument that the loss refuses.
    """
    names = tuple(options.NAME)
    if not names or len(set(names)) != len(names):
        raise ConfigError(f"MODEL.LOSSES.NAME must name one or more different losses; got {names}")
    terms, modules = [], nn.ModuleDict()
    for name in names:
        modules[name] = _build_loss(options, name, num_classes, feature_size)
        node = options[LOSS_NODES[name]]
        terms.append(LossTerm(name, node.SCALE, name in ID_LOSSES, name not in NOT_MINED))
    return terms, modules


def build_miner(options: CN, *, terms: Sequence[LossTerm]) -> nn.Module | None:
    """NAME's miner; None where it is empty.

    Args:
        options: the config's MODEL.MINER.
        terms: of the loss, one of which must take mined tuples.
    """
    name = options.NAME
    if not name:
        return None
    if not any(term.is_mined for term in terms):
        losses = ", ".join(term.name for term in terms)
        raise ConfigError(f"MODEL.MINER.NAME is {name!r}, but none of the losses {losses} takes a miner")
    require(name, MINER_NODES, "MODEL.MINER.NAME")
    arguments = {key.lower(): value for key, value in options[MINER_NODES[name]].items()}
    return _construct(getattr(pml_ext.miners, name), arguments, f"MODEL.MINER ({name})")


def _build_loss(losses: CN, name: str, num_classes: int, feature_size: int) -> nn.Module:
    require(name, LOSS_NODES, "MODEL.LOSSES.NAME")
    node = losses[LOSS_NODES[name]]
    where = f"MODEL.LOSSES.{LOSS_NODES[name]}"
    kind = (ID_LOSSES | PAIR_LOSSES).get(name) or getattr(pml_ext.losses, name)
    options = {key.lower(): value for key, value in node.items() if key != "SCALE"}
    if name in ID_LOSSES and num_classes < 2:
        raise ConfigError(f"{name} needs 2 or more training identities; got {num_classes}")
    if name in _WITH_CLASS_WEIGHTS:
        options |= {"num_classes": num_classes, "embedding_size": feature_size}
    if name == "DiscriminativeLoss":
        options["centroid_size"] = options["centroid_size"] or None
    elif name == "ArcFaceLoss":
        options["scale"] = options.pop("logit_scale")
    elif name == "LoOp":
        wrapped = [n for n in LOSS_NODES if n not in (*ID_LOSSES, *PAIR_LOSSES, name)]
        require(node.LOSS, wrapped, f"{where}.LOSS")
        options["loss"] = _build_loss(losses, node.LOSS, num_classes, feature_size)
    elif name == "PairWeightingLoss":
        options["mining"] = options["mining"] or None
    return _construct(kind, options, where)


def _construct(kind: Any, options: dict[str, Any], where: str) -> nn.Module:
    try:
        built: nn.Module = kind(**options)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{where}: {error}") from error
    return built
