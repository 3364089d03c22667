"""PML's CrossBatchMemory and SelfSupervisedLoss take our losses, which are not in their lists of class names."""

from functools import wraps
from typing import Any

from torch import nn

from pml_ext._pml import BaseMetricLossFunction, CrossBatchMemory, SelfSupervisedLoss, losses
from pml_ext.losses._base import EmbeddingLoss
from pml_ext.losses._facts import facts_of
from pml_ext.losses._settings import SettingsOfTheWrapped

_check_name = losses.BaseLossWrapper.__init__


@wraps(_check_name)
def _check_class(self: nn.Module, loss: nn.Module, **options: Any) -> None:
    is_ours = isinstance(loss, (EmbeddingLoss, SettingsOfTheWrapped))
    if not (is_ours and isinstance(self, (CrossBatchMemory, SelfSupervisedLoss))):
        _check_name(self, loss, **options)
        return
    for part in loss.modules():
        if isinstance(part, BaseMetricLossFunction) and (compares := facts_of(type(part)).compares) != "samples":
            raise TypeError(
                f"{type(self).__name__} adds nothing to {type(part).__name__}, which compares samples with {compares} "
                f"and not with other samples; use {type(loss).__name__} without it"
            )
    super(losses.BaseLossWrapper, self).__init__(**options)


losses.BaseLossWrapper.__init__ = _check_class
