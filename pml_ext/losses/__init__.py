"""Losses of this package, and every loss of pytorch-metric-learning under the same import path."""

# `as` marks a name as exported: type checkers do not read __all__, which is computed below.
import inspect
from typing import TYPE_CHECKING

from pml_ext import _pml
from pml_ext.losses import _facts
from pml_ext.losses.cit import CITLoss as CITLoss
from pml_ext.losses.discriminative import DiscriminativeLoss as DiscriminativeLoss
from pml_ext.losses.injected_distance import InjectedDistance as InjectedDistance
from pml_ext.losses.injected_distance import inject as inject
from pml_ext.losses.injected_distance import run_with_distance as run_with_distance
from pml_ext.losses.loop import ArcPairReducer as ArcPairReducer
from pml_ext.losses.loop import LoOp as LoOp
from pml_ext.losses.loop_distance import check_loop_distance as check_loop_distance
from pml_ext.losses.loop_distance import loop_matrix as loop_matrix
from pml_ext.losses.pair_weighting import LiftedHingeLoss as LiftedHingeLoss
from pml_ext.losses.pair_weighting import PairWeightingLoss as PairWeightingLoss
from pml_ext.losses.partial_fc import PartialFC as PartialFC
from pml_ext.losses.row_sparse_steps import step_by_rows as step_by_rows
from pml_ext.losses.smooth_rank import RecallAtKSurrogateLoss as RecallAtKSurrogateLoss
from pml_ext.losses.smooth_rank import SmoothAPLoss as SmoothAPLoss
from pml_ext.losses.tcm import TCMLoss as TCMLoss
from pml_ext.losses.tcm import TCMRegularizer as TCMRegularizer
from pml_ext.losses.triplets import CentroidTripletLoss as CentroidTripletLoss
from pml_ext.losses.triplets import HPHNTripletLoss as HPHNTripletLoss

if TYPE_CHECKING:
    from pytorch_metric_learning.losses import AngularLoss as AngularLoss
    from pytorch_metric_learning.losses import ArcFaceLoss as ArcFaceLoss
    from pytorch_metric_learning.losses import BaseLossWrapper as BaseLossWrapper
    from pytorch_metric_learning.losses import BaseMetricLossFunction as BaseMetricLossFunction
    from pytorch_metric_learning.losses import CircleLoss as CircleLoss
    from pytorch_metric_learning.losses import ContrastiveLoss as ContrastiveLoss
    from pytorch_metric_learning.losses import CosFaceLoss as CosFaceLoss
    from pytorch_metric_learning.losses import CrossBatchMemory as CrossBatchMemory
    from pytorch_metric_learning.losses import DynamicSoftMarginLoss as DynamicSoftMarginLoss
    from pytorch_metric_learning.losses import EmbeddingRegularizerMixin as EmbeddingRegularizerMixin
    from pytorch_metric_learning.losses import FastAPLoss as FastAPLoss
    from pytorch_metric_learning.losses import GeneralizedLiftedStructureLoss as GeneralizedLiftedStructureLoss
    from pytorch_metric_learning.losses import GenericPairLoss as GenericPairLoss
    from pytorch_metric_learning.losses import HistogramLoss as HistogramLoss
    from pytorch_metric_learning.losses import InstanceLoss as InstanceLoss
    from pytorch_metric_learning.losses import IntraPairVarianceLoss as IntraPairVarianceLoss
    from pytorch_metric_learning.losses import LargeMarginSoftmaxLoss as LargeMarginSoftmaxLoss
    from pytorch_metric_learning.losses import LiftedStructureLoss as LiftedStructureLoss
    from pytorch_metric_learning.losses import ManifoldLoss as ManifoldLoss
    from pytorch_metric_learning.losses import MarginLoss as MarginLoss
    from pytorch_metric_learning.losses import MultipleLosses as MultipleLosses
    from pytorch_metric_learning.losses import MultiSimilarityLoss as MultiSimilarityLoss
    from pytorch_metric_learning.losses import NCALoss as NCALoss
    from pytorch_metric_learning.losses import NormalizedSoftmaxLoss as NormalizedSoftmaxLoss
    from pytorch_metric_learning.losses import NPairsLoss as NPairsLoss
    from pytorch_metric_learning.losses import NTXentLoss as NTXentLoss
    from pytorch_metric_learning.losses import P2SGradLoss as P2SGradLoss
    from pytorch_metric_learning.losses import PNPLoss as PNPLoss
    from pytorch_metric_learning.losses import ProxyAnchorLoss as ProxyAnchorLoss
    from pytorch_metric_learning.losses import ProxyNCALoss as ProxyNCALoss
    from pytorch_metric_learning.losses import RankedListLoss as RankedListLoss
    from pytorch_metric_learning.losses import SelfSupervisedLoss as SelfSupervisedLoss
    from pytorch_metric_learning.losses import SignalToNoiseRatioContrastiveLoss as SignalToNoiseRatioContrastiveLoss
    from pytorch_metric_learning.losses import SoftTripleLoss as SoftTripleLoss
    from pytorch_metric_learning.losses import SphereFaceLoss as SphereFaceLoss
    from pytorch_metric_learning.losses import SubCenterArcFaceLoss as SubCenterArcFaceLoss
    from pytorch_metric_learning.losses import SupConLoss as SupConLoss
    from pytorch_metric_learning.losses import ThresholdConsistentMarginLoss as ThresholdConsistentMarginLoss
    from pytorch_metric_learning.losses import TripletMarginLoss as TripletMarginLoss
    from pytorch_metric_learning.losses import TupletMarginLoss as TupletMarginLoss
    from pytorch_metric_learning.losses import VICRegLoss as VICRegLoss
    from pytorch_metric_learning.losses import WeightRegularizerMixin as WeightRegularizerMixin

# Losses that replace PML's losses of the same name, because PML 2.9 computes something else; PML's module is unchanged.
CORRECTED: list[str] = ["SmoothAPLoss"]

# Losses of this package; each also registers into PML, see pml_ext.registration.
OURS: list[str] = [
    "CITLoss", "TCMLoss", "TCMRegularizer", "LoOp", "DiscriminativeLoss", "PairWeightingLoss",
    "RecallAtKSurrogateLoss", "HPHNTripletLoss", "LiftedHingeLoss", "CentroidTripletLoss",
]  # fmt: skip

# Parts of losses: LoOp's reducer and distances, a stand-in for a loss's distance, and a softmax with sharded classes.
PARTS: list[str] = [
    "ArcPairReducer", "InjectedDistance", "PartialFC", "check_loop_distance", "inject", "loop_matrix",
    "run_with_distance", "step_by_rows",
]  # fmt: skip

_PML_LOSSES = {
    name: loss for name, loss in vars(_pml.losses).items() if inspect.isclass(loss) and name not in (*CORRECTED, *OURS)
}
globals().update(_PML_LOSSES)

__all__ = [*OURS, *CORRECTED, *sorted(_PML_LOSSES)]

_facts.KNOWN.update({name: globals()[name] for name in __all__})


def __dir__() -> list[str]:
    return __all__
