"""Losses of this package, and every loss of pytorch-metric-learning under the same import path."""

# `as` marks a name as exported: type checkers do not read __all__, which is computed below.
import inspect
from typing import TYPE_CHECKING

from pml_ext import _pml
from pml_ext.losses import _facts, _shares  # noqa: F401
from pml_ext.losses.cit import CITLoss as CITLoss
from pml_ext.losses.discriminative import DiscriminativeLoss as DiscriminativeLoss
from pml_ext.losses.loop import ArcPairReducer as ArcPairReducer
from pml_ext.losses.loop import LoOp as LoOp
from pml_ext.losses.pair_weighting import LiftedHingeLoss as LiftedHingeLoss
from pml_ext.losses.pair_weighting import PairWeightingLoss as PairWeightingLoss
from pml_ext.losses.smooth_rank import RecallAtKSurrogateLoss as RecallAtKSurrogateLoss
from pml_ext.losses.smooth_rank import SmoothAPLoss as SmoothAPLoss
from pml_ext.losses.tcm import TCMLoss as TCMLoss
from pml_ext.losses.tcm import TCMRegularizer as TCMRegularizer
from pml_ext.losses.triplets import CentroidTripletLoss as CentroidTripletLoss
from pml_ext.losses.triplets import HPHNTripletLoss as HPHNTripletLoss

if TYPE_CHECKING:
    from pml_ext.losses._of_pml import *  # noqa: F403

# Losses that replace PML's losses of the same name, because PML 2.9 computes something else; PML's module is unchanged.
CORRECTED: list[str] = ["SmoothAPLoss"]

# Losses of this package; each also registers into PML, see pml_ext.registration.
OURS: list[str] = [
    "CITLoss", "TCMLoss", "TCMRegularizer", "LoOp", "DiscriminativeLoss", "PairWeightingLoss",
    "RecallAtKSurrogateLoss", "HPHNTripletLoss", "LiftedHingeLoss", "CentroidTripletLoss",
]  # fmt: skip

_PML_LOSSES = {
    name: loss for name, loss in vars(_pml.losses).items() if inspect.isclass(loss) and name not in (*CORRECTED, *OURS)
}
globals().update(_PML_LOSSES)

__all__ = [*OURS, *CORRECTED, *sorted(_PML_LOSSES)]

_facts.KNOWN.update({name: globals()[name] for name in __all__})


def __dir__() -> list[str]:
    return __all__
