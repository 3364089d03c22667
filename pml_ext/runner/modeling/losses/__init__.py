"""Registers the losses and miners of FastReID, pytorch-metric-learning and this package for configs."""

from types import ModuleType
from typing import Any

import pml_ext.losses
import pml_ext.miners
from pml_ext._pml import BaseMetricLossFunction, BaseMiner
from pml_ext.runner.config.part_keys import REQUIRED, arguments_of
from pml_ext.runner.modeling.losses import fastreid_losses
from pml_ext.runner.registry import LOSS_REGISTRY, MINER_REGISTRY, Registry

# FastReID's losses and names; pytorch-metric-learning uses some of the names for other losses. FastReID has no
# HistogramLoss: this one replaces pytorch-metric-learning's, which omits pairs.
LOSS_REGISTRY.register()(fastreid_losses.CrossEntropyLoss)
LOSS_REGISTRY.register()(fastreid_losses.FocalLoss)
LOSS_REGISTRY.register()(fastreid_losses.TripletLoss)
LOSS_REGISTRY.register()(fastreid_losses.CircleLoss)
LOSS_REGISTRY.register("Cosface")(fastreid_losses.CosfaceLoss)
LOSS_REGISTRY.register()(fastreid_losses.HistogramLoss)


# Excluded: names registered above, base classes, losses without labels, a miner for batches of triplets.
_LEFT_OUT = (
    "CircleLoss", "HistogramLoss", "BaseMetricLossFunction", "GenericPairLoss", "ManifoldLoss", "VICRegLoss",
    "BaseMiner", "EmbeddingsAlreadyPackagedAsTriplets",
)  # fmt: skip


def _is_made_from_values(part: Any) -> bool:
    """Returns whether the constructor needs only values that YAML can represent: no other loss, miner or function."""
    needed = {name for name, default in arguments_of(part).items() if default is REQUIRED}
    return not needed & {"loss", "losses", "miner"}


def _register(registry: Registry, package: ModuleType, base: type) -> None:
    for name in package.__all__:
        part = getattr(package, name)
        if name not in _LEFT_OUT and issubclass(part, base) and (name in registry.nodes or _is_made_from_values(part)):
            registry.register(name)(part)


_register(LOSS_REGISTRY, pml_ext.losses, BaseMetricLossFunction)
_register(MINER_REGISTRY, pml_ext.miners, BaseMiner)
