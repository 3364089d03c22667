"""From LOSSES and MINER nodes to loss and miner objects."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from yacs.config import CfgNode as CN

import pml_ext.losses
import pml_ext.miners
from pml_ext.training.config import ConfigError, require

ID_LOSS = "CrossEntropyLoss"
# class name -> its node under MODEL.LOSSES; the node's keys are the constructor's arguments in capitals, and SCALE
LOSS_NODES = {
    ID_LOSS: "CE",
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
# TCM is defined over all pairs of the batch; the others take no tuples.
NOT_MINED = (ID_LOSS, "DiscriminativeLoss", "SmoothAPLoss", "TCMLoss", "RecallAtKSurrogateLoss")


class CrossEntropy(nn.Module):
    """Softmax cross-entropy with FastReID's smoothing: ε spread over the C − 1 other classes.

    Args:
        epsilon: in [0, 1).
    """

    def __init__(self, epsilon: float) -> None:
        super().__init__()
        self.epsilon = epsilon

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        # torch spreads its smoothing over all C classes, the own one too
        classes = logits.shape[1]
        return nn.functional.cross_entropy(logits, labels, label_smoothing=self.epsilon * classes / (classes - 1))


@dataclass(frozen=True)
class LossTerm:
    """One summand of the training loss."""

    name: str
    scale: float
    is_id_loss: bool
    is_mined: bool


def build_losses(cfg: CN, num_classes: int, feature_size: int) -> tuple[list[LossTerm], nn.ModuleDict]:
    """The terms of MODEL.LOSSES.NAME and their modules by name.

    Raises:
        ConfigError: an unknown or repeated name, an argument that the loss refuses.
    """
    names = tuple(cfg.MODEL.LOSSES.NAME)
    if not names or len(set(names)) != len(names):
        raise ConfigError(f"MODEL.LOSSES.NAME must name one or more different losses; got {names}")
    terms, modules = [], nn.ModuleDict()
    for name in names:
        modules[name] = _build_loss(cfg, name, num_classes, feature_size)
        node = cfg.MODEL.LOSSES[LOSS_NODES[name]]
        terms.append(LossTerm(name, node.SCALE, name == ID_LOSS, name not in NOT_MINED))
    if cfg.MODEL.MINER.NAME and not any(term.is_mined for term in terms):
        raise ConfigError(f"MODEL.MINER.NAME is {cfg.MODEL.MINER.NAME!r}, but none of the losses {names} takes a miner")
    return terms, modules


def build_miner(cfg: CN) -> nn.Module | None:
    """MODEL.MINER.NAME's miner; None where it is empty."""
    name = cfg.MODEL.MINER.NAME
    if not name:
        return None
    require(name, MINER_NODES, "MODEL.MINER.NAME")
    return _construct(getattr(pml_ext.miners, name), cfg.MODEL.MINER[MINER_NODES[name]], f"MODEL.MINER ({name})")


def _build_loss(cfg: CN, name: str, num_classes: int, feature_size: int) -> nn.Module:
    require(name, LOSS_NODES, "MODEL.LOSSES.NAME")
    node = cfg.MODEL.LOSSES[LOSS_NODES[name]]
    where = f"MODEL.LOSSES.{LOSS_NODES[name]}"
    if name == ID_LOSS:
        if not 0 <= node.EPSILON < 1:
            raise ConfigError(f"{where}.EPSILON must be in [0, 1); got {node.EPSILON}")
        if num_classes < 2:
            raise ConfigError(f"{name} needs 2 or more training identities; got {num_classes}")
        return CrossEntropy(node.EPSILON)
    given: dict[str, Any] = {}
    if name == "DiscriminativeLoss":
        given = {
            "num_classes": num_classes,
            "embedding_size": feature_size,
            "centroid_size": node.CENTROID_SIZE or None,
        }
    elif name == "LoOp":
        require(node.LOSS, [n for n in LOSS_NODES if n not in (ID_LOSS, name)], f"{where}.LOSS")
        given = {"loss": _build_loss(cfg, node.LOSS, num_classes, feature_size)}
    elif name == "PairWeightingLoss":
        given = {"mining": node.MINING or None}
    return _construct(getattr(pml_ext.losses, name), node, where, **given)


def _construct(kind: Any, node: CN, where: str, **given: Any) -> nn.Module:
    """kind(**node), an argument in `given` taking the node's place."""
    options = {key.lower(): value for key, value in node.items() if key != "SCALE"} | given
    try:
        built: nn.Module = kind(**options)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{where}: {error}") from error
    return built
