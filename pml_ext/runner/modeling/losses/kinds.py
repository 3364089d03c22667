"""The class that the name of a loss in a config means."""

from torch import nn

import pml_ext.losses
from pml_ext.losses._facts import LossFacts, facts_of
from pml_ext.runner.modeling.losses import id_losses, pair_losses

# FastReID's losses by FastReID's names; all other names are those of pml_ext.losses
_FASTREIDS: dict[str, type[nn.Module]] = {
    "CrossEntropyLoss": id_losses.CrossEntropyLoss,
    "FocalLoss": id_losses.FocalLoss,
    "TripletLoss": pair_losses.TripletLoss,
    "CircleLoss": pair_losses.CircleLoss,
    "Cosface": pair_losses.CosfaceLoss,
}


def loss_class(name: str) -> type[nn.Module]:
    return _FASTREIDS[name] if name in _FASTREIDS else getattr(pml_ext.losses, name)


def facts_of_name(name: str) -> LossFacts:
    """The facts of a loss by its name in the config; the defaults for an unknown name, which is refused elsewhere."""
    return facts_of(loss_class(name)) if name in _FASTREIDS or hasattr(pml_ext.losses, name) else LossFacts()
