"""Base class of every loss, and the settings of losses and miners.

repr shows the settings. A wrapper's distance, reducer and regularizer are those of the wrapped loss.
"""

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial, wraps
from typing import TYPE_CHECKING, Any, TypedDict

import torch
from torch import Tensor, nn
from typing_extensions import Self, Unpack

from pml_ext._ops.custom_gradient import no_autocast
from pml_ext._pml import (
    BaseDistance,
    BaseMetricLossFunction,
    CosineSimilarity,
    CrossBatchMemory,
    LpDistance,
    MeanReducer,
    Recorded,
    SelfSupervisedLoss,
    ThresholdReducer,
    losses,
    reducer_of_terms,
    reducers,
    regularizers,
    term,
)
from pml_ext._shared.checks import (
    check_embeddings,
    check_in_range,
    check_indices_tuple,
    check_labels,
    check_object,
    check_switch,
    warn_once,
)
from pml_ext._shared.names import hint
from pml_ext._shared.settings import CheckedSettings, argument_names
from pml_ext.functional.tuples import Tuples
from pml_ext.losses._facts import facts_of

SETTINGS = ("distance", "reducer", "embedding_regularizer", "embedding_reg_weight")


class ShowsArguments(CheckedSettings):
    """Base of a loss or miner whose repr shows the constructor's numbers, strings and booleans."""

    def extra_repr(self) -> str:
        kind: Any = type(self)
        values = {name: getattr(self, name, None) for name in argument_names(kind)}
        shown = (bool, int, float, str, tuple)
        return ", ".join(f"{name}={value!r}" for name, value in values.items() if isinstance(value, shown))


class EmbeddingModule(ShowsArguments, Recorded):
    """Base of a loss or miner with a default distance.

    Attributes:
        default_distance: creates the distance if there is none.
    """

    default_distance: Callable[[], BaseDistance] = staticmethod(partial(LpDistance, normalize_embeddings=True))
    passed_on: tuple[str, ...] = ("distance",)
    pml_arguments: Iterable[str]  # names of those that are in **pml
    distance: Any
    reducer: Any

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.pml_arguments and hasattr(self, name):
            check_pml_arguments(type(self), {name: value})
        if name == "distance" and value is None:
            value = self.get_default_distance()
        super().__setattr__(name, value)

    def get_default_distance(self) -> BaseDistance:
        """Returns a new default distance; the name is PML 2's."""
        return type(self).default_distance()


class SettingsOfTheWrapped(ShowsArguments, nn.Module):
    """Base of a loss or miner that wraps another one; its constructor ends with `_wrap`."""

    WRAPPED = "loss"
    """Name of the attribute that holds the wrapped module."""

    pml_arguments = SETTINGS

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
            return
        if name in SETTINGS:
            check_pml_arguments(type(self), {name: value})
        if name == "distance" and value is None and hasattr(holder, "get_default_distance"):
            value = holder.get_default_distance()
        setattr(holder, name, value)
        if name in ("reducer", "embedding_regularizer") and isinstance(holder, BaseMetricLossFunction):
            holder.set_reducer(holder.reducer)  # a copy for each term, of which the regularizer is one

    def __getattr__(self, name: str) -> Any:  # called only if normal lookup fails
        holder = self._holder(name)
        return super().__getattr__(name) if holder is None else getattr(holder, name)

    def _holder(self, name: str) -> Any:
        """Returns the module that a setting belongs to; None for a setting of this object."""
        attribute = self.WRAPPED if name in SETTINGS else self.OPTIONS_OF.get(name)
        modules: dict[str, nn.Module] = self.__dict__.get("_modules", {})
        return modules.get(attribute) if attribute else None


Labels = Tensor | None
"""(B,) class ids; None if an indices_tuple replaces them."""
Reference = Tensor | None
"""(R, D) embeddings to compare the batch with; None: the batch itself."""
Terms = dict[str, dict[str, Any]]
"""Sub-loss name -> result of `term`."""


class OurLoss(BaseMetricLossFunction):
    """Base of every loss of this package, which checks a batch before any work.

    Creating or unpickling the first one patches PML 2's wrappers, which accept only the class names that PML lists. A
    subclass defines `compute_value`.

    Attributes:
        labels_because: why labels are needed in addition to an indices_tuple; empty if a tuple can replace them.
    """

    labels_because: str = ""

    def __new__(cls, *_: Any, **__: Any) -> Self:
        _open_wrappers()
        new: Self = super().__new__(cls)
        return new

    def forward(
        self, embeddings: Tensor, labels: Labels = None, indices_tuple: Tuples | None = None,
        ref_emb: Tensor | None = None, ref_labels: Labels = None,
    ) -> Tensor:  # fmt: skip
        """Returns the loss of a batch.

        A training step may be compiled: torch.compile breaks its graph at the loss, which runs as without it.

        Args:
            embeddings: (B, D), need not be normalised.
            labels: (B,) integer class ids; may be None if the loss needs only indices_tuple. They may stay on the CPU
                if embeddings are on a GPU. The host then reads them without waiting for the GPU.
            indices_tuple: a miner's (anchor, positive, negative) or (anchor, positive, anchor, negative) indices.
            ref_emb, ref_labels: (R, D) and (R,), the source of positives and negatives. Default: the batch itself.
        Returns:
            The reducer's result, a scalar by default. 0 with a warning, as in PML, if the batch or ref_emb is empty.
        """
        if torch.compiler.is_compiling():  # a decorator would import the compiler, which takes 1.3 s
            outside: Any = torch.compiler.disable(self.forward)
            value: Tensor = outside(embeddings, labels, indices_tuple, ref_emb, ref_labels)
            return value
        if is_nothing_to_compare(self, embeddings, ref_emb):
            return self.value_of_nothing(at_least_float32(embeddings)[:0])
        embeddings, labels, ref_emb, ref_labels = checked_batch(embeddings, labels, ref_emb, ref_labels, indices_tuple)
        has_labels = labels is not None and (ref_emb is None or ref_labels is not None)
        if not has_labels and (self.labels_because or indices_tuple is None):
            raise ValueError(
                "labels (and ref_labels with ref_emb) must be tensors of class ids; got None. "
                + (self.labels_because or "Pass them, or a miner's indices_tuple")
            )
        if labels is not None:
            labels = labels.cpu()  # read there any number of times, while a GPU works
        return self.compute_value(embeddings, labels, indices_tuple, ref_emb, ref_labels)

    if TYPE_CHECKING:
        __call__ = forward

    def value_of_nothing(self, embeddings: Tensor) -> Tensor:
        """Returns the loss of an empty batch, (0, D)."""
        return embeddings.sum()

    def compute_value(
        self, embeddings: Tensor, labels: Any, indices_tuple: Tuples | None, ref_emb: Reference, ref_labels: Any
    ) -> Tensor:
        """Returns the loss of a checked batch of float32 or better; arguments as those of `compute_loss`."""
        raise NotImplementedError


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


NO_TRIPLET = "this batch has no triplet (two samples of a class and one of another)"
_PLAIN_COSINE = {**vars(CosineSimilarity(collect_stats=False)), "training": True}


class PMLArguments(TypedDict, total=False):
    """Constructor arguments of every loss of pytorch-metric-learning."""

    distance: BaseDistance | None
    reducer: "reducers.BaseReducer | None"
    embedding_regularizer: nn.Module | None
    embedding_reg_weight: float
    collect_stats: bool | None


_PARTS = {
    "distance": (BaseDistance, "CosineSimilarity()"),
    "reducer": (reducers.BaseReducer, "MeanReducer()"),
    "embedding_regularizer": (regularizers.BaseRegularizer, "LpRegularizer()"),
}


class EmbeddingLoss(EmbeddingModule, OurLoss):
    """A PML loss that computes in float32 or better.

    Sums over thousands of pairs lose all digits in 16 bits: half-precision embeddings become float32, autocast is off.
    The loss then is float32; gradients keep the input's type. A subclass defines `compute_loss`.

    Attributes:
        term_names: names of the terms of `compute_loss`; each gets a copy of the user's reducer.
        has_gradient_below_0: whether terms below 0 have a gradient, so that no reducer may select terms by value. If
            this depends on settings, the constructor calls `check_selection`, and "reducer" is in `passed_on`.
    """

    pml_arguments = PMLArguments.__annotations__
    term_names: tuple[str, ...] = ("loss",)
    has_gradient_below_0 = False

    def __init__(self, **pml: Unpack[PMLArguments]) -> None:
        check_pml_arguments(type(self), pml)
        super().__init__(**pml)

    def set_reducer(self, reducer: Any) -> None:
        """Sets the reducer of the constructor; the name is PML 2's."""
        self.reducer = copy.deepcopy(reducer)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "reducer" and value is None:
            value = self.get_default_reducer()
        if name == "reducer" and isinstance(value, nn.Module):
            if self.has_gradient_below_0:
                check_selection(self, value)
            value = reducer_of_terms(value, self.term_names, is_regularized=bool(self.embedding_regularizer))
        super().__setattr__(name, value)
        if name == "embedding_regularizer" and value is not None and hasattr(self, "reducer"):
            self.reducer = self.reducer  # the regularizer is a further term

    def value_of_nothing(self, embeddings: Tensor) -> Tensor:
        """Returns the reducer's result for an empty batch, (0, D)."""
        terms = self.zero_terms()
        if self.embedding_regularizer is not None:
            terms["embedding_reg_loss"] = term(0)
        return self._reduced(terms, embeddings, None)

    def compute_value(
        self, embeddings: Tensor, labels: Any, indices_tuple: Tuples | None, ref_emb: Reference, ref_labels: Any
    ) -> Tensor:
        """Returns the reducer's result for the terms of `compute_loss`."""
        self.reset_stats()
        with no_autocast(embeddings.device):
            terms = self.compute_loss(embeddings, labels, indices_tuple, ref_emb, ref_labels)
            self.add_embedding_regularization_to_loss_dict(terms, embeddings)
            ids = None if labels is None else labels.to(embeddings.device, non_blocking=True)
            return self._reduced(terms, embeddings, ids)

    def _reduced(self, terms: Terms, embeddings: Tensor, labels: Labels) -> Tensor:
        with naming_reducer(self, AssertionError, LookupError, NotImplementedError, TypeError):
            value: Tensor = self.reducer(terms, embeddings, labels)
        return value

    def compute_loss(
        self, embeddings: Tensor, labels: Any, indices_tuple: Tuples | None, ref_emb: Reference, ref_labels: Any
    ) -> Terms:
        """Returns the terms by name, for the reducer.

        labels: (B,), on the CPU. ref_emb, ref_labels: (R, D) and (R,); None for the batch itself.
        Labels are None only with an indices_tuple and an empty `labels_because`.
        """
        raise NotImplementedError

    def is_mean_of_cosines(self) -> bool:
        """Returns whether a kernel may replace distance and reducer: unmodified, CosineSimilarity and MeanReducer."""
        distance = self.distance
        is_plain = type(distance) is CosineSimilarity and {**vars(distance), "training": True} == _PLAIN_COSINE
        return is_plain and type(self.reducer) is MeanReducer

    def _no_terms(self, what: str, indices_tuple: Tuples | None = None) -> Terms:
        """Returns the terms of a loss of 0. Warns once about the missing pairs, unless a miner selected them."""
        if indices_tuple is None:
            self._warn(f"{what}, so its loss is 0")
        return self.zero_terms()

    def zero_terms(self) -> Terms:
        """Returns the terms of a loss of 0, by the names of every other batch."""
        return {name: term(0) for name in (("loss",) if type(self.reducer) is MeanReducer else self.term_names)}

    def _warn(self, what: str) -> None:
        sampler = "use a sampler that draws several samples of each of several classes"
        warn_once(self, f"{type(self).__name__}: {what}; {sampler}")


def check_selection(loss: nn.Module, reducer: nn.Module) -> None:
    """Raises for a reducer that selects terms by value, for a loss whose terms below 0 have a gradient."""
    selecting = [type(part).__name__ for part in reducer.modules() if isinstance(part, ThresholdReducer)]
    if selecting:
        raise TypeError(
            f"reducer of {type(loss).__name__} must not select terms by value, because those below 0 have a "
            f"gradient; got {selecting[0]}. Use MeanReducer()"
        )


@contextmanager
def naming_reducer(loss: Any, *errors: type[Exception]) -> Iterator[None]:
    """Raises these errors as a TypeError that names the loss's reducer."""
    try:
        yield
    except errors as error:
        reducer = getattr(loss, "reducer", None)
        if not isinstance(reducer, nn.Module):
            raise
        parts = [part for part in reducer.modules() if isinstance(part, reducers.BaseReducer)]
        names = dict.fromkeys(type(part).__name__ for part in parts)
        raise TypeError(
            f"{', '.join(names)} cannot reduce the terms of {type(loss).__name__}: {type(error).__name__}: {error}. "
            "Use MeanReducer()"
        ) from error


def is_empty(embeddings: object) -> bool:
    """Returns whether this is a batch without rows."""
    return isinstance(embeddings, Tensor) and embeddings.ndim == 2 and len(embeddings) == 0


def is_nothing_to_compare(loss: nn.Module, embeddings: Tensor, ref_emb: Reference) -> bool:
    """Returns whether the batch or ref_emb is empty; warns if so."""
    for name, rows in (("the batch", embeddings), ("ref_emb", ref_emb)):
        if is_empty(rows):
            warn_once(loss, f"{type(loss).__name__}: {name} is empty, so its loss is 0")
            return True
    return False


def checked_batch(
    embeddings: Tensor,
    labels: Tensor | None,
    ref_emb: Tensor | None = None,
    ref_labels: Tensor | None = None,
    indices_tuple: Tuples | None = None,
) -> tuple[Tensor, Labels, Reference, Labels]:
    """Checks the input of a loss or miner. Returns float32 or better embeddings, and labels on their device.

    Only checks the indices_tuple. Drops a ref_emb that is the batch itself.
    """
    check_embeddings(embeddings)
    if ref_emb is not None:
        check_embeddings(ref_emb, "ref_emb")
    if indices_tuple is not None:
        check_indices_tuple(indices_tuple, len(embeddings), len(embeddings if ref_emb is None else ref_emb))
    points = at_least_float32(embeddings)
    ids = None if labels is None else check_labels(labels, len(embeddings))
    if ref_emb is None or (ref_emb is embeddings and ref_labels is labels):
        return points, ids, None, None
    ref_points = points if ref_emb is embeddings else at_least_float32(ref_emb)
    if ref_points.shape[1] != points.shape[1] or ref_points.dtype != points.dtype:
        raise ValueError(
            f"ref_emb must have {embeddings.shape[1]} columns, like embeddings, and a type compatible with "
            f"{embeddings.dtype}; got {ref_emb.shape[1]} columns of {ref_emb.dtype}"
        )
    ref_ids = None if ref_labels is None else check_labels(ref_labels, len(ref_emb), "ref_labels")
    return points, ids, ref_points, ref_ids


def copy_losses(losses: Any) -> Any:
    """Returns a deep copy of a loss, or of a dict of losses, with the same trainable parameters.

    Stored tensors of the last step (DynamicSoftMarginLoss) are detached from its graph.
    """
    modules = [*losses.values()] if isinstance(losses, Mapping) else [losses]
    parts = [part for module in modules for part in module.modules()]
    kept = [value for part in parts for value in vars(part).values() if isinstance(value, Tensor)]
    parameters = [parameter for part in parts for parameter in part.parameters(recurse=False)]
    shared = {id(parameter): parameter for parameter in parameters if parameter.requires_grad}
    return copy.deepcopy(losses, shared | {id(value): value.detach().clone() for value in kept if not value.is_leaf})


def at_least_float32(x: Tensor) -> Tensor:
    """Converts 16-bit floats to float32. A row of zeros gets no gradient, because in 16 bits it would be infinite."""
    if x.dtype not in (torch.float16, torch.bfloat16):
        return x
    wide = x.float()
    return torch.where((x != 0).any(dim=1, keepdim=True), wide, wide.detach()) if x.requires_grad else wide


def labels_for(loss: nn.Module, labels: Labels, embeddings: Tensor) -> Labels:
    """Returns the labels for an inner loss: this package's read them on the CPU, PML's would wait for their copy."""
    if labels is None or isinstance(loss, OurLoss):
        return labels
    return labels.to(embeddings.device, non_blocking=True)


def check_pml_arguments(kind: Any, options: Mapping[str, Any]) -> None:
    """Raises for an unknown argument, or one of PML whose value would fail only in training."""
    for name, value in options.items():
        if name not in kind.pml_arguments:
            known = [*argument_names(kind), *kind.pml_arguments]
            raise TypeError(f"{kind.__name__} has no argument {name!r}{hint(name, known)}")
        if name == "embedding_reg_weight":
            check_in_range(value, -math.inf, math.inf, name)
        elif name == "collect_stats" and value is not None:
            check_switch(value, name)
        elif name in _PARTS and value is not None:
            base, example = _PARTS[name]
            check_object(value, base, f"{name} of {kind.__name__}", f"an object like PML's {example}")
