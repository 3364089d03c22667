"""Miners of this package, and every miner of pytorch-metric-learning under the same import path."""

# `as` marks a name as exported: type checkers cannot read the computed __all__ below.
import inspect
from typing import TYPE_CHECKING

from pml_ext import _pml
from pml_ext.miners.loop import LoOpMiner as LoOpMiner
from pml_ext.miners.triplets import ConcordanceMiner as ConcordanceMiner
from pml_ext.miners.triplets import DisjointTripletMiner as DisjointTripletMiner
from pml_ext.miners.triplets import HPHNMiner as HPHNMiner

if TYPE_CHECKING:
    from pytorch_metric_learning.miners import AngularMiner as AngularMiner
    from pytorch_metric_learning.miners import BaseMiner as BaseMiner
    from pytorch_metric_learning.miners import BatchEasyHardMiner as BatchEasyHardMiner
    from pytorch_metric_learning.miners import BatchHardMiner as BatchHardMiner
    from pytorch_metric_learning.miners import DistanceWeightedMiner as DistanceWeightedMiner
    from pytorch_metric_learning.miners import (
        EmbeddingsAlreadyPackagedAsTriplets as EmbeddingsAlreadyPackagedAsTriplets,
    )
    from pytorch_metric_learning.miners import HDCMiner as HDCMiner
    from pytorch_metric_learning.miners import MultiSimilarityMiner as MultiSimilarityMiner
    from pytorch_metric_learning.miners import PairMarginMiner as PairMarginMiner
    from pytorch_metric_learning.miners import TripletMarginMiner as TripletMarginMiner
    from pytorch_metric_learning.miners import UniformHistogramMiner as UniformHistogramMiner

_PML_MINERS = {name: miner for name, miner in vars(_pml.miners).items() if inspect.isclass(miner)}
globals().update(_PML_MINERS)

# Miners of this package; each also registers into PML, see pml_ext.registration.
OURS: list[str] = ["LoOpMiner", "ConcordanceMiner", "HPHNMiner", "DisjointTripletMiner"]

__all__ = [*OURS, *sorted(_PML_MINERS)]


def __dir__() -> list[str]:
    return __all__
