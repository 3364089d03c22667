"""From LOSSES and MINER nodes to loss and miner objects."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn
from yacs.config import CfgNode as CN

import pml_ext.losses
import pml_ext.miners
from pml_ext._errors import UserError
from pml_ext.losses._facts import LossFacts, facts_of
from pml_ext.runner.config.load import require
from pml_ext.runner.config.loss_nodes import LOSS_NODES, MINER_NODES
from pml_ext.runner.modeling.losses import id_losses, pair_losses

# FastReID's losses by FastReID's names, and the runner's own; all other names are those of pml_ext.losses
_OWN: dict[str, type[nn.Module]] = {
    "CrossEntropyLoss": id_losses.CrossEntropyLoss,
    "FocalLoss": id_losses.FocalLoss,
    "TripletLoss": pair_losses.TripletLoss,
    "CircleLoss": pair_losses.CircleLoss,
    "Cosface": pair_losses.CosfaceLoss,
    "HistogramLoss": pair_losses.HistogramLoss,
}


def loss_class(name: str) -> type[nn.Module]:
    return _OWN[name] if name in _OWN else getattr(pml_ext.losses, name)


def facts_of_name(name: str) -> LossFacts:
    """The facts of a loss by its name in the config; the defaults for an unknown name, which is refused elsewhere."""
    return facts_of(loss_class(name)) if name in _OWN or hasattr(pml_ext.losses, name) else LossFacts()


@dataclass(frozen=True)
class LossTerm:
    """One summand of the training loss."""

    name: str
    scale: float
    is_id_loss: bool
    is_mined: bool


def build_losses(
    options: CN, *, num_classes: int, feature_size: int, partial_fc: Callable[..., nn.Module] | None = None
) -> tuple[list[LossTerm], nn.ModuleDict]:
    """The terms of MODEL.LOSSES.NAME and their modules by name; a UserError for an argument that a loss refuses.

    num_classes: identities of the training set. feature_size: of the embeddings that the losses see. partial_fc: makes
    what stands in for a loss whose classes ranks divide; None: they divide no classes.
    """
    terms, modules = [], nn.ModuleDict()
    for name in options.NAME:
        node, facts = options[LOSS_NODES[name]], facts_of_name(name)
        if partial_fc and (of_loss := facts.partial_fc):
            size = {"embedding_size": feature_size} if facts.compares == "class vectors" else {}
            modules[name] = _construct("MODEL.HEADS.PFC", lambda: partial_fc(**of_loss(_arguments(node)), **size))  # noqa: B023
        else:
            modules[name] = _build_loss(options, name, {"num_classes": num_classes, "embedding_size": feature_size})
        terms.append(LossTerm(name, node.SCALE, facts.compares == "class scores", facts.takes_miner))
    return terms, modules


def build_miner(options: CN) -> nn.Module | None:
    """The miner of MODEL.MINER.NAME, None where that is empty; a UserError for an argument that it refuses."""
    return _build_miner(options, options.NAME) if options.NAME else None


def _build_miner(miners: CN, name: str) -> nn.Module:
    where = f"MODEL.MINER.{MINER_NODES[name]}"
    options = _arguments(miners[MINER_NODES[name]])
    if "miner" in options:  # around another one
        require(options["miner"], [n for n in MINER_NODES if n != name], f"{where}.MINER")
        options["miner"] = _build_miner(miners, options["miner"])
    return _construct(where, lambda: getattr(pml_ext.miners, name)(**options))


def _build_loss(losses: CN, name: str, sizes: dict[str, int], **more: Any) -> nn.Module:
    where = f"MODEL.LOSSES.{LOSS_NODES[name]}"
    kind, facts, options = loss_class(name), facts_of_name(name), _arguments(losses[LOSS_NODES[name]])
    if facts.compares == "class scores" and sizes["num_classes"] < 2:
        raise UserError(f"{name} needs 2 or more training identities; got {sizes['num_classes']}")
    if facts.compares == "class vectors":
        more |= sizes

    def build(inner: str, **arguments: Any) -> nn.Module:
        require(inner, [n for n in LOSS_NODES if n != name], f"{where}.LOSS")
        return _build_loss(losses, inner, sizes, **arguments)

    return _construct(where, lambda: kind(**facts.arguments(options, build), **more))


def _arguments(node: CN) -> dict[str, Any]:
    return {key.lower(): value for key, value in node.items() if key != "SCALE"}


def _construct(where: str, make: Callable[[], nn.Module]) -> nn.Module:
    try:
        return make()
    except UserError:  # of a loss inside this one, whose node it names
        raise
    except (ValueError, TypeError) as error:
        raise UserError(f"{where}: {error}") from error
