"""The only door to pytorch-metric-learning.

Version 3 renames the hooks that a loss overrides; keeping every import here leaves one file to change.
"""

import copy
from typing import TYPE_CHECKING, Any

from pytorch_metric_learning import distances, losses, miners, reducers, regularizers
from pytorch_metric_learning.distances import BaseDistance, CosineSimilarity, DotProductSimilarity, LpDistance
from pytorch_metric_learning.losses import BaseMetricLossFunction, CrossBatchMemory, SelfSupervisedLoss
from pytorch_metric_learning.miners import BaseMiner
from pytorch_metric_learning.reducers import AvgNonZeroReducer, MeanReducer
from pytorch_metric_learning.utils.distributed import DistributedLossWrapper, DistributedMinerWrapper

if TYPE_CHECKING:
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
    from pytorch_metric_learning.utils.inference import FaissKMeans

__all__ = [
    "AccuracyCalculator",
    "AvgNonZeroReducer",
    "BaseDistance",
    "BaseMetricLossFunction",
    "BaseMiner",
    "CosineSimilarity",
    "CrossBatchMemory",
    "DistributedLossWrapper",
    "DistributedMinerWrapper",
    "DotProductSimilarity",
    "FaissKMeans",
    "LpDistance",
    "MeanReducer",
    "SelfSupervisedLoss",
    "distances",
    "losses",
    "miners",
    "reducer_of_terms",
    "reducers",
    "regularizers",
    "retrieval_dataset",
]


def reducer_of_terms(reducer: Any, names: tuple[str, ...]) -> Any:
    """A user's reducer for a loss of several terms, each of which needs its own; MeanReducer gets their sum."""
    if reducer is None or type(reducer) is MeanReducer:
        return reducer
    if isinstance(reducer, (reducers.MultipleReducers, reducers.DoNothingReducer)):
        return reducer
    return reducers.MultipleReducers({name: copy.deepcopy(reducer) for name in names})


def retrieval_dataset(name: str) -> Any:
    """PML's data set class of a name, imported only when asked for."""
    from pytorch_metric_learning import datasets

    return getattr(datasets, name)


def __getattr__(name: str) -> Any:
    """On demand, as they bring faiss and scikit-learn, which a training loop does without."""
    if name == "AccuracyCalculator":
        from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

        return AccuracyCalculator
    if name == "FaissKMeans":
        from pytorch_metric_learning.utils.inference import FaissKMeans

        return FaissKMeans
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
