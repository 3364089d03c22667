"""What the losses of this package share: checks of the input, precision, the warning about a batch without terms."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypedDict

from torch import Tensor, nn
from typing_extensions import Unpack

from pml_ext._checks import check_in_range, check_switch, warn_once
from pml_ext._names import hint
from pml_ext._ops.precision import no_autocast
from pml_ext._pml import BaseDistance, BaseMetricLossFunction, LpDistance, MeanReducer, reducers
from pml_ext.distances.plain_cosine import is_plain_cosine
from pml_ext.losses._batch import Labels, Tuples, at_least_float32, checked_batch
from pml_ext.losses._settings import ShowsArguments, arguments_of

NO_TRIPLET = "this batch has no triplet (two samples of a class and one of another)"


class PMLArguments(TypedDict, total=False):
    """What every loss of pytorch-metric-learning takes."""

    distance: BaseDistance | None
    reducer: reducers.BaseReducer | None
    embedding_regularizer: nn.Module | None
    embedding_reg_weight: float
    collect_stats: bool | None


PML_ARGUMENTS = tuple(PMLArguments.__annotations__)
_LIKE = {"distance": "CosineSimilarity()", "reducer": "MeanReducer()", "embedding_regularizer": "LpRegularizer()"}


class EmbeddingLoss(ShowsArguments, BaseMetricLossFunction):
    """A PML loss that checks its input before any work and computes in float32 or better.

    Sums over thousands of pairs lose all digits in 16 bits: half-precision embeddings become float32, autocast is off.
    The loss then is float32, gradients keep the input's type. A subclass defines PML's `compute_loss`, and
    `_value_at_once` if it has a kernel for the most used case.

    Attributes:
        default_distance: makes the distance where none is given.
        labels_because: why labels are needed even beside an indices_tuple; empty where it can replace them.
        over_all_pairs: accepts an indices_tuple, since trainers pass one, and ignores it.
        reference_begins_with_batch: the first rows of ref_emb are the anchors, which do not pair with themselves.
    """

    default_distance: Callable[[], BaseDistance] = LpDistance
    labels_because: str = ""
    over_all_pairs: bool = False
    reference_begins_with_batch: bool = False

    def __init__(self, **pml: Unpack[PMLArguments]) -> None:
        check_pml_arguments(type(self), pml, PML_ARGUMENTS)
        super().__init__(**pml)

    def get_default_distance(self) -> BaseDistance:
        return type(self).default_distance()

    def forward(
        self, embeddings: Tensor, labels: Labels = None, indices_tuple: Tuples | None = None,
        ref_emb: Tensor | None = None, ref_labels: Labels = None,
    ) -> Tensor:  # fmt: skip
        """The loss of a batch.

        Args:
            embeddings: (B, D), need not be normalised.
            labels: (B,) integer class ids; may be None where indices_tuple says everything. Beside embeddings on a
                GPU they may stay on the CPU: then the host need not wait for the GPU to read them.
            indices_tuple: a miner's (anchor, positive, negative) or (anchor, positive, anchor, negative) indices.
            ref_emb, ref_labels: (R, D) and (R,): positives and negatives are taken from here instead.
        Returns:
            what the reducer makes of it: a scalar by default. 0 for an empty batch or ref_emb, as in PML, with a
            warning.
        """
        if is_empty(embeddings) or is_empty(ref_emb):
            what = "the batch" if is_empty(embeddings) else "ref_emb"
            warn_once(self, f"{type(self).__name__}: {what} is empty, so its loss is 0")
            zero: Tensor = self.reducer(self.zero_losses(), at_least_float32(embeddings), labels)
            return zero
        batch = checked_batch(embeddings, labels, ref_emb, ref_labels, indices_tuple)
        has_labels = batch.labels is not None and (batch.ref_emb is None or batch.ref_labels is not None)
        if not has_labels and (self.labels_because or indices_tuple is None):
            raise ValueError(
                "labels (and ref_labels where ref_emb is given) must be tensors of class ids; got None. "
                + (self.labels_because or "Give them, or a miner's indices_tuple to choose from")
            )
        if self.over_all_pairs:
            indices_tuple = None
        if batch.on_host is not None:
            self._check_labels(batch.on_host)
        with no_autocast(embeddings.device):
            if (
                batch.labels is not None
                and batch.ref_emb is None
                and indices_tuple is None
                and is_mean_of_cosines(self)
            ):
                assert batch.on_host is not None
                value = self._value_at_once(batch.embeddings, batch.labels, batch.on_host)
                if value is not None:
                    return self._reduced(value, batch.embeddings, batch.labels)
            reduced: Tensor = super().forward(
                batch.embeddings, batch.labels, indices_tuple, batch.ref_emb, batch.ref_labels
            )
        return reduced

    if TYPE_CHECKING:
        __call__ = forward

    def _value_at_once(self, embeddings: Tensor, labels: Tensor, on_host: Tensor) -> Tensor | None:
        """The loss of a batch compared with itself by cosines; None to go on with `compute_loss`. See Batch."""
        return None

    def _check_labels(self, on_host: Tensor) -> None:
        """Raises for labels that are whole numbers and still do not fit. on_host: see Batch."""

    def __init_subclass__(cls, **options: Any) -> None:
        """A subclass that overrides compute_loss must not inherit the parent's `_value_at_once`."""
        super().__init_subclass__(**options)
        if "compute_loss" in vars(cls) and "_value_at_once" not in vars(cls):
            cls._value_at_once = EmbeddingLoss._value_at_once  # type: ignore[method-assign]

    def _reduced(self, value: Tensor, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Passes a finished mean through the reducer, which may have hooks, and adds the regularizer's term."""
        name = self._sub_loss_names()[0]
        terms = {name: {"losses": value, "indices": None, "reduction_type": "already_reduced"}}
        self.add_embedding_regularization_to_loss_dict(terms, embeddings)
        reduced: Tensor = self.reducer(terms, embeddings, labels)
        return reduced

    def _no_terms(self, what: str, indices_tuple: Tuples | None = None) -> dict[str, Any]:
        """A loss of 0; warns once of what is missing, unless a miner chose the terms."""
        if indices_tuple is None:
            self._warn(f"{what}, so its loss is 0")
        none: dict[str, Any] = self.zero_losses()
        return none

    def _warn(self, what: str) -> None:
        sampler = "use a sampler that draws several samples of each of several classes"
        warn_once(self, f"{type(self).__name__}: {what}; {sampler}")


def is_empty(embeddings: object) -> bool:
    """Whether it is a batch of no rows, for which PML's losses are 0."""
    return isinstance(embeddings, Tensor) and embeddings.ndim == 2 and len(embeddings) == 0


def is_mean_of_cosines(loss: BaseMetricLossFunction) -> bool:
    """Whether the loss is a plain mean over cosines, so that neither distance nor reducer must see its terms."""
    return reduces_by_mean(loss) and is_plain_cosine(loss.distance)


def undivided_unless_mean_of_cosines(loss: BaseMetricLossFunction) -> str:
    """For `LossFacts.undivided` of a loss whose sums go by its kernel."""
    return "" if is_mean_of_cosines(loss) else "it is divided with CosineSimilarity and MeanReducer only"


def reduces_by_mean(loss: BaseMetricLossFunction) -> bool:
    """Whether PML's MeanReducer reduces every sub-loss but the embedding regularizer."""
    reducer = loss.reducer
    kind = type(reducer)
    if kind not in (reducers.MultipleReducers, ReducersOfTerms):
        return kind is MeanReducer
    named = dict(reducer.reducers.items())
    return all(type(named.get(name, reducer.default_reducer)) is MeanReducer for name in loss._sub_loss_names())


class ReducersOfTerms(reducers.MultipleReducers):
    """PML's MultipleReducers, but a single term goes straight to its reducer, without a buffer and a sum of one."""

    def forward(self, loss_dict: dict[str, Any], embeddings: Tensor, labels: Tensor | None) -> Any:
        if len(loss_dict) > 1:
            return super().forward(loss_dict, embeddings, labels)
        (name,) = loss_dict
        return self.reducers[name](loss_dict, embeddings, labels)


def check_pml_arguments(kind: type, given: Mapping[str, Any], known: Iterable[str]) -> None:
    """Raises for an argument that PML does not know, or would keep until it fails in training."""
    refuse_unknown(kind, set(given) - set(known), [*arguments_of(kind), *known])
    for name, value in given.items():
        if name == "embedding_reg_weight":
            check_in_range(value, -math.inf, math.inf, name)
        elif name == "collect_stats" and value is not None:
            check_switch(value, name)
        elif value is not None and not isinstance(value, nn.Module):
            raise TypeError(f"{name} of {kind.__name__} must be an object like PML's {_LIKE[name]}; got {value!r}")


def refuse_unknown(kind: type, unknown: Iterable[str], known: Iterable[str], more: str = "") -> None:
    """Raises a TypeError that suggests known arguments, followed by `more`, if any is unknown."""
    for name in sorted(unknown):
        raise TypeError(f"{kind.__name__} got unknown argument {name!r}{hint(name, known, str)}{more}")


def is_on_sphere(distance: Any, *kinds: type) -> bool:
    """Whether it is of one of these kinds, plain (p=2, power=1), between unit vectors."""
    settings = [getattr(distance, name, None) for name in ("p", "power", "normalize_embeddings")]
    return isinstance(distance, kinds) and settings == [2, 1, True]


def describe_distance(distance: Any) -> str:
    """For messages: LpDistance(normalize_embeddings=True, p=2, power=1)."""
    names = [name for name in ("normalize_embeddings", "p", "power") if hasattr(distance, name)]
    return f"{type(distance).__name__}({', '.join(f'{name}={getattr(distance, name)!r}' for name in names)})"
