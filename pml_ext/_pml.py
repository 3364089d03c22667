"""All imports of pytorch-metric-learning (PML), of version 2.8 or 2.9."""

import copy
from typing import TYPE_CHECKING, Any

import pytorch_metric_learning

from pml_ext._ops.custom_gradient import to_sphere
from pml_ext._shared.errors import UserError

if int(pytorch_metric_learning.__version__.partition(".")[0]) > 2:
    raise UserError(
        "pml_ext works with pytorch-metric-learning 2.8 and 2.9; got "
        f"{pytorch_metric_learning.__version__}: pip install 'pytorch-metric-learning>=2.8,<3'"
    )

# Imported after the check, because version 3 lacks some names. `as` marks a name as exported.
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
from pytorch_metric_learning.reducers import ThresholdReducer as ThresholdReducer
from pytorch_metric_learning.utils.distributed import DistributedLossWrapper as DistributedLossWrapper
from torch import Tensor, nn

if TYPE_CHECKING:
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator as AccuracyCalculator
    from pytorch_metric_learning.utils.inference import FaissKMeans as FaissKMeans


def term(
    losses: Tensor | int, indices: Tensor | tuple[Tensor, ...] | None = None, *, of_negatives: bool = False
) -> dict[str, Any]:
    """Returns a loss term in the format of PML's reducers.

    losses, indices: (T,) values, and their samples: (T,), two (T,) for pairs, three for triplets; None for a value that
    is already reduced. of_negatives: True for negative pairs.
    """
    if indices is None:
        kind = "already_reduced"
    elif isinstance(indices, Tensor):
        kind = "element"
    elif len(indices) == 3:
        kind = "triplet"
    else:
        kind = "neg_pair" if of_negatives else "pos_pair"
    return {"losses": losses, "indices": indices, "reduction_type": kind}


def reducer_of_terms(reducer: Any, names: tuple[str, ...], *, is_regularized: bool) -> Any:
    """Returns a user's reducer for a loss with several terms, each of which needs its own."""
    if isinstance(reducer, (reducers.MultipleReducers, reducers.DoNothingReducer)):
        return reducer
    if not is_regularized and (len(names) == 1 or type(reducer) is MeanReducer):
        return reducer
    return reducers.MultipleReducers({name: copy.deepcopy(reducer) for name in names})


class Recorded(nn.Module):
    """Base class in front of PML's: settings and statistics for PML's record keeper."""

    collect_stats: bool = False
    add_to_recordable_attributes: Any
    get_default_reducer: Any
    reset_stats: Any
    add_embedding_regularization_to_loss_dict: Any

    def _record(self, *names: str, is_stat: bool = False) -> None:
        self.add_to_recordable_attributes(list_of_names=list(names), is_stat=is_stat)


def is_similarity(distance: Any) -> bool:
    """Returns whether larger values mean more similar samples."""
    return bool(distance.is_inverted)


def normalized(distance: Any, x: Tensor) -> Tensor:
    """Returns (N, D) as the distance compares them: normalised if it normalises."""
    if distance.normalize_embeddings and distance.p == 2:
        return to_sphere(x)
    points: Tensor = distance.maybe_normalize(x)
    return points


def retrieval_dataset(name: str) -> Any:
    """Returns PML's data set class by name, imported on demand."""
    from pytorch_metric_learning import datasets

    return getattr(datasets, name)


def __getattr__(name: str) -> Any:
    """Imports names on demand that need faiss and scikit-learn, which a training loop does not need."""
    if name not in ("AccuracyCalculator", "FaissKMeans"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pytorch_metric_learning.utils import accuracy_calculator, inference

    return getattr(inference if name == "FaissKMeans" else accuracy_calculator, name)
