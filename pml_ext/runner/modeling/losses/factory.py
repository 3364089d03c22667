"""From LOSSES and MINER nodes to loss and miner objects."""

import inspect
from dataclasses import dataclass
from typing import Any

from torch import nn
from yacs.config import CfgNode as CN

import pml_ext.losses
import pml_ext.miners
from pml_ext._errors import UserError
from pml_ext._pml import AvgNonZeroReducer, LpDistance, MeanReducer
from pml_ext.functional import WEIGHTINGS
from pml_ext.runner.config.defaults import get_cfg
from pml_ext.runner.config.load import require
from pml_ext.runner.config.rules import require_rules
from pml_ext.runner.modeling.losses import id_losses, pair_losses
from pml_ext.runner.modeling.names import ID_LOSSES, LOSS_NODES, MINER_NODES, NOT_MINED, WITH_CLASS_WEIGHTS
from pml_ext.runner.modeling.rules import LOSSES_RULES, MINER_RULES

# FastReID's losses by FastReID's names; all other names are pml_ext.losses'
_FASTREIDS: dict[str, type[nn.Module]] = {
    "CrossEntropyLoss": id_losses.CrossEntropyLoss,
    "FocalLoss": id_losses.FocalLoss,
    "TripletLoss": pair_losses.TripletLoss,
    "CircleLoss": pair_losses.CircleLoss,
    "Cosface": pair_losses.CosfaceLoss,
}
_REDUCERS: dict[str, Any] = {"AvgNonZeroReducer": AvgNonZeroReducer, "MeanReducer": MeanReducer}


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
        UserError: an unknown or repeated name, an argument that the loss refuses.
    """
    require_rules(options, "MODEL.LOSSES", LOSSES_RULES)
    terms, modules = [], nn.ModuleDict()
    for name in options.NAME:
        modules[name] = _build_loss(options, name, num_classes, feature_size)
        node = options[LOSS_NODES[name]]
        terms.append(LossTerm(name, node.SCALE, name in ID_LOSSES, name not in NOT_MINED))
    return terms, modules


def build_miner(options: CN) -> nn.Module | None:
    """NAME's miner; None where it is empty.

    Args:
        options: the config's MODEL.MINER.
    Raises:
        UserError: an unknown name, an argument that the miner refuses.
    """
    require_rules(options, "MODEL.MINER", MINER_RULES)
    return _build_miner(options, options.NAME) if options.NAME else None


def _build_miner(miners: CN, name: str) -> nn.Module:
    node = MINER_NODES[name]
    options = {key.lower(): value for key, value in miners[node].items()}
    if name == "LoOpMiner":
        require(options["miner"], [n for n in MINER_NODES if n != name], f"MODEL.MINER.{node}.MINER")
        options["miner"] = _build_miner(miners, options["miner"])
    return _construct(getattr(pml_ext.miners, name), options, f"MODEL.MINER ({name})")


def _build_loss(losses: CN, name: str, num_classes: int, feature_size: int, **more: Any) -> nn.Module:
    node = losses[LOSS_NODES[name]]
    where = f"MODEL.LOSSES.{LOSS_NODES[name]}"
    kind = _FASTREIDS.get(name) or getattr(pml_ext.losses, name)
    options = {key.lower(): value for key, value in node.items() if key != "SCALE"} | more
    if name in ID_LOSSES and num_classes < 2:
        raise UserError(f"{name} needs 2 or more training identities; got {num_classes}")
    if name in WITH_CLASS_WEIGHTS:
        options |= {"num_classes": num_classes, "embedding_size": feature_size}
    if name == "DiscriminativeLoss":
        options["centroid_size"] = options["centroid_size"] or None
        del options["tightness"]  # of the log, not of the loss
    elif name == "ArcFaceLoss":
        options["scale"] = options.pop("logit_scale")
    elif name == "TripletMarginLoss":
        require(node.REDUCER, _REDUCERS, f"{where}.REDUCER")
        options["reducer"] = _REDUCERS[node.REDUCER]()
    elif name == "CentroidTripletLoss":
        options["distance"] = LpDistance(power=options.pop("power"))
        require(node.REDUCER, _REDUCERS, f"{where}.REDUCER")
        options["reducer"] = _REDUCERS[node.REDUCER]()
    elif name == "LoOp":
        wrapped = [n for n in LOSS_NODES if n not in (*_FASTREIDS, name)]
        require(node.LOSS, wrapped, f"{where}.LOSS")
        # Segments lie in the space itself, so the loss in LoOp measures there.
        measure = {"distance": LpDistance(normalize_embeddings=False)} if node.GEOMETRY == "segment" else {}
        options["loss"] = _build_loss(losses, node.LOSS, num_classes, feature_size, **measure)
    elif name == "PairWeightingLoss":
        options["mining"] = options["mining"] or None
        own, unset = _options_of(node.WEIGHTING), get_cfg().MODEL.LOSSES.GPW
        # Keys that the weighting does not take: defaults are left out, and what was set is handed on, to be refused.
        for key in ("alpha", "beta", "base", "bounded"):
            if key not in own and options[key] == unset[key.upper()]:
                del options[key]
    return _construct(kind, options, where)


def _options_of(weighting: str) -> set[str]:
    return set(inspect.signature(WEIGHTINGS[weighting]).parameters) if weighting in WEIGHTINGS else set()


def _construct(kind: Any, options: dict[str, Any], where: str) -> nn.Module:
    try:
        built: nn.Module = kind(**options)
    except (ValueError, TypeError) as error:
        raise UserError(f"{where}: {error}") from error
    return built
