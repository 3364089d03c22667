"""PML's CrossBatchMemory and SelfSupervisedLoss take our losses, which are not in version 2's lists of class names."""

from functools import cache, wraps
from typing import Any

from torch import nn
from typing_extensions import Self

from pml_ext._pml import IS_3, BaseMetricLossFunction, CrossBatchMemory, SelfSupervisedLoss, losses
from pml_ext.losses._facts import facts_of


class OurLoss(BaseMetricLossFunction):
    """Base of every loss of this package. The first one that is made, or unpickled, is the first that wrappers meet."""

    def __new__(cls, *_: Any, **__: Any) -> Self:
        if not IS_3:
            _open_wrappers()
        new: Self = super().__new__(cls)
        return new


@cache
def _open_wrappers() -> None:
    check_name = losses.BaseLossWrapper.__init__

    @wraps(check_name)
    def check_class(self: nn.Module, loss: nn.Module, **options: Any) -> None:
        if not (isinstance(loss, OurLoss) and isinstance(self, (CrossBatchMemory, SelfSupervisedLoss))):
            check_name(self, loss, **options)
            return
        for part in loss.modules():
            if isinstance(part, BaseMetricLossFunction) and (compares := facts_of(type(part)).compares) != "samples":
                raise TypeError(
                    f"{type(self).__name__} adds nothing to {type(part).__name__}, which compares samples with "
                    f"{compares} and not with other samples; use {type(loss).__name__} without it"
                )
        super(losses.BaseLossWrapper, self).__init__(**options)

    losses.BaseLossWrapper.__init__ = check_class
