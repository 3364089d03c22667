"""Base class of every loss, and the settings of losses and miners.

repr shows the settings. A wrapper's distance, reducer and regularizer are those of the wrapped loss.
"""

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial, wraps
from typing import TYPE_CHECKING, Any, TypedDict

from torch import Tensor, nn
from typing_extensions import Self, Unpack

from pml_ext._checks import check_in_range, check_switch, warn_once
from pml_ext._names import hint
from pml_ext._ops.numerics import no_autocast
from pml_ext._pml import (
    BaseDistance,
    BaseMetricLossFunction,
    CrossBatchMemory,
    LpDistance,
    MeanReducer,
    Recorded,
    SelfSupervisedLoss,
    losses,
    no_terms,
    reducers,
    term,
)
from pml_ext.distances.injected import is_plain_cosine
from pml_ext.losses._batch import Labels, Reference, Tuples, at_least_float32, checked_batch, on_host
from pml_ext.losses._facts import facts_of

SETTINGS = ("distance", "reducer", "embedding_regularizer", "embedding_reg_weight")


def arguments_of(kind: type) -> list[str]:
    """Returns the names of the constructor's arguments, without **kwargs."""
    parameters = inspect.signature(kind).parameters.items()
    return [name for name, parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD]


def check_positional(kind: type, args: tuple[Any, ...]) -> None:
    """Raises a TypeError that names the options for positional arguments that must be passed by name."""
    parameters = list(inspect.signature(kind).parameters.values())
    positional = [each for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
    by_name = [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]
    extra = args[len(positional) :]
    if extra and len(extra) <= len(by_name):
        options = ", ".join(f"{name}={value!r}" for name, value in zip(by_name, extra, strict=False))
        raise TypeError(f"{kind.__name__} takes its options by name: pass {options}")


class ShowsArguments:
    """Base of a loss or miner whose repr shows the constructor's numbers, strings and booleans.

    Attributes:
        fixed: settings that only the constructor reads, so setting them later is an error.
    """

    fixed: tuple[str, ...] = ()

    def __new__(cls, *args: Any, **options: Any) -> Self:
        check_positional(cls, args)
        new: Self = super().__new__(cls)
        return new

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.fixed and name in vars(self):
            raise AttributeError(f"{name} of {type(self).__name__} cannot be changed; create a new object")
        super().__setattr__(name, value)

    def extra_repr(self) -> str:
        values = {name: getattr(self, name, None) for name in arguments_of(type(self))}
        shown = (bool, int, float, str, tuple)
        return ", ".join(f"{name}={value!r}" for name, value in values.items() if isinstance(value, shown))


class EmbeddingModule(ShowsArguments, Recorded):
    """Base of a loss or miner with a default distance.

    Attributes:
        default_distance: creates the distance if none is given.
    """

    default_distance: Callable[[], BaseDistance] = staticmethod(partial(LpDistance, normalize_embeddings=True))
    distance: Any
    reducer: Any

    def get_default_distance(self) -> BaseDistance:
        """Returns a new default distance; the name is PML 2's."""
        return type(self).default_distance()


class SettingsOfTheWrapped(ShowsArguments, nn.Module):
    """Base of a loss or miner that wraps another one; its constructor ends with `_wrap`."""

    WRAPPED = "loss"
    """Name of the attribute that holds the wrapped module."""

    OPTIONS_OF: Mapping[str, str] = {}
    """Option -> name of the attribute that holds another module with this option."""

    def _wrap(self, module: nn.Module) -> None:
        """Stores the module and drops the settings that PML's constructor created: the module's settings apply."""
        for name in SETTINGS:
            self._modules.pop(name, None)
            self.__dict__.pop(name, None)
        self.add_module(self.WRAPPED, module)

    def __setattr__(self, name: str, value: Any) -> None:
        holder = self._holder(name)
        if holder is None:
            super().__setattr__(name, value)
        else:
            setattr(holder, name, value)

    def __getattr__(self, name: str) -> Any:  # called only if normal lookup fails
        holder = self._holder(name)
        return super().__getattr__(name) if holder is None else getattr(holder, name)

    def _holder(self, name: str) -> nn.Module | None:
        """Returns the module that a setting belongs to; None for this object's own."""
        attribute = self.WRAPPED if name in SETTINGS else self.OPTIONS_OF.get(name)
        modules: dict[str, nn.Module] = self.__dict__.get("_modules", {})
        return modules.get(attribute) if attribute else None


class OurLoss(BaseMetricLossFunction):
    """Base of every loss of this package. Creating or unpickling the first one patches PML 2's wrappers."""

    def __new__(cls, *_: Any, **__: Any) -> Self:
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


Terms = dict[str, dict[str, Any]]
"""Sub-loss name -> result of `term`."""

NO_TRIPLET = "this batch has no triplet (two samples of a class and one of another)"


class PMLArguments(TypedDict, total=False):
    """Constructor arguments of every loss of pytorch-metric-learning."""

    distance: BaseDistance | None
    reducer: "reducers.BaseReducer | None"
    embedding_regularizer: nn.Module | None
    embedding_reg_weight: float
    collect_stats: bool | None


PML_ARGUMENTS = tuple(PMLArguments.__annotations__)
_LIKE = {"distance": "CosineSimilarity()", "reducer": "MeanReducer()", "embedding_regularizer": "LpRegularizer()"}


class EmbeddingLoss(EmbeddingModule, OurLoss):
    """A PML loss that checks its input before any work and computes in float32 or better.

    Sums over thousands of pairs lose all digits in 16 bits: half-precision embeddings become float32, autocast is off.
    The loss then is float32; gradients keep the input's type. A subclass defines `_terms`, and `_value_at_once` if it
    has a kernel for the common case.

    Attributes:
        labels_because: why labels are needed in addition to an indices_tuple; empty if a tuple can replace them.
        over_all_pairs: accepts an indices_tuple, since trainers pass one, but does not restrict the pairs to it.
    """

    labels_because: str = ""
    over_all_pairs: bool = False

    def __init__(self, **pml: Unpack[PMLArguments]) -> None:
        check_pml_arguments(type(self), pml, PML_ARGUMENTS)
        super().__init__(**pml)

    def forward(
        self, embeddings: Tensor, labels: Labels = None, indices_tuple: Tuples | None = None,
        ref_emb: Tensor | None = None, ref_labels: Labels = None,
    ) -> Tensor:  # fmt: skip
        """Returns the loss of a batch.

        Args:
            embeddings: (B, D), need not be normalised.
            labels: (B,) integer class ids; may be None if the loss needs only indices_tuple. They may stay on the CPU
                if embeddings are on a GPU. The host then reads them without waiting for the GPU.
            indices_tuple: a miner's (anchor, positive, negative) or (anchor, positive, anchor, negative) indices.
            ref_emb, ref_labels: (R, D) and (R,), the source of positives and negatives. Default: the batch itself.
        Returns:
            The reducer's result, a scalar by default. 0 with a warning, as in PML, if the batch or ref_emb is empty.
        """
        if is_nothing_to_compare(self, embeddings, ref_emb):
            return at_least_float32(embeddings)[:0].sum()
        embeddings, labels, ref_emb, ref_labels = checked_batch(embeddings, labels, ref_emb, ref_labels, indices_tuple)
        has_labels = labels is not None and (ref_emb is None or ref_labels is not None)
        if not has_labels and (self.labels_because or indices_tuple is None):
            raise ValueError(
                "labels (and ref_labels if ref_emb is given) must be tensors of class ids; got None. "
                + (self.labels_because or "Pass them, or a miner's indices_tuple")
            )
        if self.over_all_pairs and ref_emb is None:
            indices_tuple = None
        if labels is not None:
            self._check_labels(on_host(labels))
        with no_autocast(embeddings.device):
            reduced: Tensor = super().forward(embeddings, labels, indices_tuple, ref_emb, ref_labels)
        return reduced

    if TYPE_CHECKING:
        __call__ = forward

    def compute_loss(
        self, embeddings: Tensor, labels: Labels, indices_tuple: Tuples | None, ref_emb: Reference, ref_labels: Labels
    ) -> Terms:
        """Returns the terms for PML's `forward`. Version 2 passes the batch as its own ref_emb and needs a term."""
        if ref_emb is embeddings and ref_labels is labels:
            ref_emb = ref_labels = None
        if labels is not None and indices_tuple is None and ref_emb is None and is_mean_of_cosines(self):
            value = self._value_at_once(embeddings, labels)
            if value is not None:
                return {"loss": term(value)}
        return self._terms(embeddings, labels, indices_tuple, ref_emb, ref_labels) or no_terms()

    def _terms(
        self, embeddings: Tensor, labels: Any, indices_tuple: Tuples | None, ref_emb: Reference, ref_labels: Any
    ) -> Terms:
        """Returns the terms by name, or none if there is nothing to compare. ref_emb None: the batch itself.

        labels, ref_labels: (B,) and (R,); None only if indices_tuple is given and `labels_because` is empty.
        """
        raise NotImplementedError

    def _value_at_once(self, embeddings: Tensor, labels: Tensor) -> Tensor | None:
        """Returns the loss of a batch compared with itself by cosines, or None to use `_terms` instead."""
        return None

    def _check_labels(self, labels: Tensor) -> None:
        """Raises for integer labels that the loss does not accept."""

    def _no_terms(self, what: str, indices_tuple: Tuples | None = None) -> Terms:
        """Returns no terms. Warns once about the missing pairs, unless a miner selected them."""
        if indices_tuple is None:
            self._warn(f"{what}, so its loss is 0")
        return {}

    def _warn(self, what: str) -> None:
        sampler = "use a sampler that draws several samples of each of several classes"
        warn_once(self, f"{type(self).__name__}: {what}; {sampler}")


def is_nothing_to_compare(loss: nn.Module, embeddings: Tensor, ref_emb: Reference) -> bool:
    """Returns whether the batch or ref_emb is empty; warns if so."""
    for name, rows in (("the batch", embeddings), ("ref_emb", ref_emb)):
        if is_empty(rows):
            warn_once(loss, f"{type(loss).__name__}: {name} is empty, so its loss is 0")
            return True
    return False


def is_empty(embeddings: object) -> bool:
    """Returns whether this is a batch without rows; PML's losses are 0 for it."""
    return isinstance(embeddings, Tensor) and embeddings.ndim == 2 and len(embeddings) == 0


def is_mean_of_cosines(loss: BaseMetricLossFunction) -> bool:
    """Returns whether the loss is a plain mean over cosines, so that distance and reducer need not see its terms."""
    return reduces_by_mean(loss) and is_plain_cosine(loss.distance)


def reduces_by_mean(loss: BaseMetricLossFunction) -> bool:
    """Returns whether PML's MeanReducer reduces every term."""
    reducer, term_reducers = loss.reducer, [loss.reducer]
    if isinstance(reducer, reducers.MultipleReducers):
        term_reducers = [*reducer.reducers.values(), reducer.default_reducer]
    return all(type(term_reducer) is MeanReducer for term_reducer in term_reducers)


def check_pml_arguments(kind: type, given: Mapping[str, Any], known: Iterable[str]) -> None:
    """Raises for an argument that PML does not accept, or whose value would fail only in training."""
    for name in sorted(set(given) - set(known)):
        raise TypeError(
            f"{kind.__name__} got unknown argument {name!r}{hint(name, [*arguments_of(kind), *known], str)}"
        )
    for name, value in given.items():
        if name == "embedding_reg_weight":
            check_in_range(value, -math.inf, math.inf, name)
        elif name == "collect_stats" and value is not None:
            check_switch(value, name)
        elif value is not None and not isinstance(value, nn.Module):
            raise TypeError(f"{name} of {kind.__name__} must be an object like PML's {_LIKE[name]}; got {value!r}")
