"""All imports of pytorch-metric-learning (PML), and all code that depends on its major version.

The package uses version 3's conventions: a loss gets ref_emb None for the batch itself and may have no term. Features
of version 3 that are not documented yet raise an error.
"""

import copy
import math
import os
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

# `as` marks a name as exported.
from pytorch_metric_learning import distances as distances
from pytorch_metric_learning import losses as losses
from pytorch_metric_learning import miners as miners
from pytorch_metric_learning import reducers as reducers
from pytorch_metric_learning import regularizers as regularizers
from pytorch_metric_learning.distances import BaseDistance as BaseDistance
from pytorch_metric_learning.distances import CosineSimilarity as CosineSimilarity
from pytorch_metric_learning.distances import DotProductSimilarity as DotProductSimilarity
from pytorch_metric_learning.distances import LpDistance as LpDistance
from pytorch_metric_learning.losses import BaseMetricLossFunction as BaseMetricLossFunction
from pytorch_metric_learning.losses import CrossBatchMemory as CrossBatchMemory
from pytorch_metric_learning.losses import SelfSupervisedLoss as SelfSupervisedLoss
from pytorch_metric_learning.miners import BaseMiner as BaseMiner
from pytorch_metric_learning.reducers import AvgNonZeroReducer as AvgNonZeroReducer
from pytorch_metric_learning.reducers import MeanReducer as MeanReducer
from torch import Tensor, nn
from torch.nn.functional import normalize

from pml_ext._errors import UserError

IS_3 = find_spec("pytorch_metric_learning.evaluation") is not None
if IS_3 and os.environ.get("PML_EXT_TRY_PML3") != "1":
    raise UserError(
        "pml_ext works with pytorch-metric-learning 2.8 and 2.9, and version 3 is installed: pip install "
        "'pytorch-metric-learning>=2.8,<3'. PML_EXT_TRY_PML3=1 in the environment tries version 3, which pml_ext was "
        "written for from its documentation and never run with"
    )

if TYPE_CHECKING or not IS_3:
    from pytorch_metric_learning.utils.distributed import DistributedLossWrapper as DistributedLossWrapper
    from pytorch_metric_learning.utils.distributed import DistributedMinerWrapper as DistributedMinerWrapper
else:
    from pytorch_metric_learning.distributed import DistributedLossWrapper as DistributedLossWrapper
    from pytorch_metric_learning.distributed import DistributedMinerWrapper as DistributedMinerWrapper

if TYPE_CHECKING:
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator as AccuracyCalculator
    from pytorch_metric_learning.utils.inference import FaissKMeans as FaissKMeans


class _Facts(NamedTuple):
    """Facts about PML's own losses in a major version.

    term_of_each_anchor: whether Circle, MultiSimilarity and SupCon count an anchor without a pair as a term of 0.
    arc_margin: function from degrees to ArcFace's margin.
    """

    term_of_each_anchor: bool
    arc_margin: Callable[[float], float]


FACTS = _Facts(False, math.radians) if IS_3 else _Facts(True, float)

WITHOUT_STATISTICS: dict[str, Any] = {} if IS_3 else {"collect_stats": False}
"""Arguments of a distance that records no norms."""

_KNOWN_DISTANCES = (CosineSimilarity, DotProductSimilarity, LpDistance, distances.SNRDistance)
_KNOWN_REDUCERS = (MeanReducer, AvgNonZeroReducer, reducers.SumReducer)


def term(
    losses: Tensor | int, indices: Tensor | tuple[Tensor, ...] | None = None, *, of_negatives: bool = False
) -> dict[str, Any]:
    """Returns a loss term in the format of PML's reducers.

    losses, indices: (T,) values, and their samples: (T,), two (T,) for pairs, three for triplets; None for a value that
    is already reduced. of_negatives: True for negative pairs.
    """
    if IS_3:
        return {"losses": losses, "indices": indices}
    if indices is None:
        kind = "already_reduced"
    elif isinstance(indices, Tensor):
        kind = "element"
    elif len(indices) == 3:
        kind = "triplet"
    else:
        kind = "neg_pair" if of_negatives else "pos_pair"
    return {"losses": losses, "indices": indices, "reduction_type": kind}


def no_terms() -> dict[str, Any]:
    """Returns the terms of a loss without anything to compare."""
    return {} if IS_3 else {"loss": term(0)}


def reducer_of_terms(reducer: Any, names: tuple[str, ...]) -> Any:
    """Returns a user's reducer for a loss with several terms; in version 2 each term needs its own reducer."""
    if IS_3 or type(reducer) is MeanReducer or not isinstance(reducer, nn.Module):
        return reducer
    if isinstance(reducer, (reducers.MultipleReducers, reducers.DoNothingReducer)):
        return reducer
    return reducers.MultipleReducers({name: copy.deepcopy(reducer) for name in names})


class Recorded(nn.Module):
    """Base class in front of PML's: settings and statistics for PML's record keeper."""

    collect_stats: bool = False
    add_to_recordable_attributes: Any

    def __init__(self, **pml: Any) -> None:
        if not IS_3:
            super().__init__(**pml)
            return
        wanted = pml.pop("collect_stats", None)
        for argument, kinds in (("distance", _KNOWN_DISTANCES), ("reducer", _KNOWN_REDUCERS)):
            given = pml.get(argument)
            if given is not None and type(given) not in kinds:
                known = ", ".join(kind.__name__ for kind in kinds)
                raise TypeError(
                    f"{argument} of {type(self).__name__} must be one of {known} with version 3 of "
                    f"pytorch-metric-learning, whose others are not known here; got {type(given).__name__}"
                )
        super().__init__(**pml)
        self.collect_stats = bool(wanted)

    def _record(self, *names: str, is_stat: bool = False) -> None:
        if not IS_3:
            self.add_to_recordable_attributes(list_of_names=list(names), is_stat=is_stat)


def is_similarity(distance: Any) -> bool:
    """Returns whether larger values mean more similar samples."""
    if IS_3:
        return isinstance(distance, (CosineSimilarity, DotProductSimilarity))
    return bool(distance.is_inverted)


def normalized(distance: Any, x: Tensor) -> Tensor:
    """Returns (N, D) as the distance compares them: normalised if it normalises."""
    if not IS_3:
        points: Tensor = distance.maybe_normalize(x)
        return points
    normalizes = isinstance(distance, CosineSimilarity) or getattr(distance, "normalize_embeddings", None)
    if normalizes is None:
        raise TypeError(
            "distance must be CosineSimilarity() or LpDistance(): of others it is not known whether they normalise; "
            f"got {type(distance).__name__}"
        )
    return normalize(x) if normalizes else x


def gathering_code() -> tuple[Any, ...]:
    """Returns PML's functions that call a loss, miner or memory with tensors gathered from all ranks."""
    if IS_3:
        raise TypeError(
            "the order of the samples in the distributed wrappers of pytorch-metric-learning 3 is not known, so "
            "consecutive samples may differ between ranks: use pairing='all' or positives='all', or one process"
        )
    kinds = DistributedLossWrapper.forward_regular_loss, DistributedMinerWrapper.forward
    return *(kind.__code__ for kind in kinds), DistributedLossWrapper.forward_cross_batch.__code__


def retrieval_dataset(name: str) -> Any:
    """Returns PML's data set class by name, imported on demand."""
    if IS_3:
        raise UserError(
            f"{name} is read by pytorch-metric-learning 2, and version 3 has no data sets: pip install "
            "'pytorch-metric-learning<3', or list the images in a file"
        )
    from pytorch_metric_learning import datasets

    return getattr(datasets, name)


def __getattr__(name: str) -> Any:
    """Imports names on demand that need faiss and scikit-learn, which a training loop does not need."""
    if name not in ("AccuracyCalculator", "FaissKMeans"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if IS_3:
        from pytorch_metric_learning import evaluation

        return getattr(evaluation, name)
    from pytorch_metric_learning.utils import accuracy_calculator, inference

    return getattr(inference if name == "FaissKMeans" else accuracy_calculator, name)
