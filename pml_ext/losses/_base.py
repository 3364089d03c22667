"""What the losses of this package share, from the check of their input to the warning that there is nothing to do."""

import inspect
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pml_ext._checks import check_embeddings, check_indices_tuple, check_labels, warn_once
from pml_ext._ops.precision import no_autocast
from pml_ext._pml import BaseMetricLossFunction, MeanReducer, reducers
from pml_ext.distances.plain_cosine import is_plain_cosine

PML_ARGUMENTS = ("distance", "reducer", "embedding_regularizer", "embedding_reg_weight", "collect_stats")
NO_TRIPLET = "this batch has no triplet (two samples of a class and one of another)"
OF_THE_WRAPPED = f"; {', '.join(PML_ARGUMENTS)} are those of the wrapped loss"


class EmbeddingLoss(BaseMetricLossFunction):
    """A PML loss that checks its input before any work and computes in float32 or better.

    Half-precision embeddings are converted to float32 and autocast is switched off inside: sums over
    thousands of pairs lose all digits in 16 bits. The loss then is float32, gradients keep the input's type.

    A subclass has PML's `compute_loss`, and may have `_value_at_once`, a kernel for the most used case.

    Attributes:
        labels_because: for the error message, why labels are needed even beside an indices_tuple; empty where an
            indices_tuple can replace them.
        over_all_pairs: an indices_tuple is accepted, since trainers pass it, and not used.
        reference_begins_with_batch: the first rows of ref_emb are the anchors again, and no pairs with themselves.
    Raises:
        TypeError: an argument that neither the loss nor PML knows.
        ValueError: embeddings that are not (N, D) floating, an empty batch, labels of another length or that are
            not whole numbers, no labels where they are needed, or an indices_tuple that points outside of the batch.
    """

    labels_because: str = ""
    over_all_pairs: bool = False
    reference_begins_with_batch: bool = False

    def __init__(self, **pml: Any) -> None:
        refuse_unknown(type(self), set(pml) - set(PML_ARGUMENTS), f", {', '.join(PML_ARGUMENTS)}")
        super().__init__(**pml)

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor | None = None,
        indices_tuple: tuple[Tensor, ...] | None = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
    ) -> Tensor:
        """The loss of a batch.

        Args:
            embeddings: (B, D), need not be normalised.
            labels: (B,) integer class ids; may be None where indices_tuple says everything. Beside embeddings on a
                GPU they may stay on the CPU: then the host need not wait for the GPU to read them.
            indices_tuple: a miner's (anchor, positive, negative) or (anchor, positive, anchor, negative) indices.
            ref_emb, ref_labels: (R, D) and (R,): positives and negatives are taken from here instead.
        Returns:
            what the reducer makes of it: a scalar by default.
        """
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

    def _value_at_once(self, embeddings: Tensor, labels: Tensor, on_host: Tensor) -> Tensor | None:
        """The mean over all pairs or triplets of a batch with itself, by cosines; None to go on with `compute_loss`.

        Args:
            labels, on_host: see Batch.
        """
        return None

    def _check_labels(self, on_host: Tensor) -> None:
        """What a loss asks of its labels beside being whole numbers. on_host: see Batch."""

    def __init_subclass__(cls, **options: Any) -> None:
        """A subclass that overrides compute_loss must not inherit the parent's `_value_at_once`."""
        super().__init_subclass__(**options)
        if "compute_loss" in vars(cls) and "_value_at_once" not in vars(cls):
            cls._value_at_once = EmbeddingLoss._value_at_once  # type: ignore[method-assign]

    def _reduced(self, value: Tensor, embeddings: Tensor, labels: Tensor) -> Tensor:
        """A finished mean passes through the reducer too: it may have hooks, or add the regularizer's term."""
        name = self._sub_loss_names()[0]
        terms = {name: {"losses": value, "indices": None, "reduction_type": "already_reduced"}}
        self.add_embedding_regularization_to_loss_dict(terms, embeddings)
        reduced: Tensor = self.reducer(terms, embeddings, labels)
        return reduced

    def _no_terms(self, what: str, indices_tuple: tuple[Tensor, ...] | None = None) -> dict[str, Any]:
        """A loss of 0, and, the first time, a warning of what is missing; no warning where a miner chose the terms."""
        if indices_tuple is None:
            self._warn(f"{what}, so its loss is 0")
        none: dict[str, Any] = self.zero_losses()
        return none

    def _warn(self, what: str) -> None:
        sampler = "use a sampler that draws several samples of each of several classes"
        warn_once(self, f"{type(self).__name__}: {what}; {sampler}")


class Batch(NamedTuple):
    """Input that has been checked: floats of 32 bits or more, labels on their device.

    on_host, ref_on_host: the labels as they were given: where that is on the CPU, beside embeddings on a device, they
        can be read without waiting for the device.
    """

    embeddings: Tensor
    labels: Tensor | None
    ref_emb: Tensor | None
    ref_labels: Tensor | None
    on_host: Tensor | None
    ref_on_host: Tensor | None


def checked_batch(
    embeddings: Tensor,
    labels: Tensor | None,
    ref_emb: Tensor | None = None,
    ref_labels: Tensor | None = None,
    indices_tuple: tuple[Tensor, ...] | None = None,
) -> Batch:
    """The input of a loss or miner, checked and converted. The indices_tuple is only checked.

    A ref_emb that is the batch again is left out; what else is given twice stays one object.
    """
    check_embeddings(embeddings)
    if ref_emb is not None:
        check_embeddings(ref_emb, "ref_emb")
    if indices_tuple is not None:
        check_indices_tuple(indices_tuple, len(embeddings), len(embeddings if ref_emb is None else ref_emb))
    points = at_least_float32(embeddings)
    given = None if labels is None else check_labels(labels, len(embeddings))
    ids = None if given is None else given.to(embeddings.device, non_blocking=True)
    if ref_emb is None or (ref_emb is embeddings and ref_labels is labels):
        return Batch(points, ids, None, None, given, None)
    ref_points = points if ref_emb is embeddings else at_least_float32(ref_emb)
    if ref_points.shape[1] != points.shape[1] or ref_points.dtype != points.dtype:
        raise ValueError(
            f"ref_emb must have the {embeddings.shape[1]} columns of embeddings, and a type that goes with "
            f"{embeddings.dtype}; got {ref_emb.shape[1]} columns of {ref_emb.dtype}"
        )
    if ref_labels is None:
        return Batch(points, ids, ref_points, None, given, None)
    ref_given = check_labels(ref_labels, len(ref_emb), "ref_labels")
    ref_ids = ids if ref_labels is labels else ref_given.to(ref_emb.device, non_blocking=True)
    return Batch(points, ids, ref_points, ref_ids, given, ref_given)


def is_with_itself(embeddings: Tensor, labels: Tensor | None, ref_emb: Tensor, ref_labels: Tensor | None) -> bool:
    """The batch is compared with itself, and a sample is no pair with itself."""
    return ref_emb is embeddings and ref_labels is labels


def is_mean_of_cosines(loss: BaseMetricLossFunction) -> bool:
    """The loss is nothing but a mean of something over cosines: neither distance nor reducer has to see its terms."""
    return reduces_by_mean(loss) and is_plain_cosine(loss.distance)


def undivided_unless_mean_of_cosines(loss: BaseMetricLossFunction) -> str:
    """For `LossFacts.undivided` of a loss whose sums go by its kernel."""
    return "" if is_mean_of_cosines(loss) else "it is divided with CosineSimilarity and MeanReducer only"


def reduces_by_mean(loss: BaseMetricLossFunction) -> bool:
    """Every sub-loss but the embedding regularizer is reduced by PML's MeanReducer."""
    reducer = loss.reducer
    kind = type(reducer)
    if kind not in (reducers.MultipleReducers, ReducersOfTerms):
        return kind is MeanReducer
    named = dict(reducer.reducers.items())
    return all(type(named.get(name, reducer.default_reducer)) is MeanReducer for name in loss._sub_loss_names())


class ReducersOfTerms(reducers.MultipleReducers):
    """PML's MultipleReducers, which leaves a single term to its reducer at once: no buffer of terms, no sum of one."""

    def forward(self, loss_dict: dict[str, Any], embeddings: Tensor, labels: Tensor | None) -> Any:
        if len(loss_dict) > 1:
            return super().forward(loss_dict, embeddings, labels)
        (name,) = loss_dict
        return self.reducers[name](loss_dict, embeddings, labels)


def refuse_unknown(kind: type, unknown: Iterable[str], beside: str = "") -> None:
    """A TypeError that lists the constructor's own arguments, and what is said beside them, if any is unknown."""
    names = sorted(unknown)
    if names:
        parameters = inspect.signature(kind).parameters.items()
        own = ", ".join(name for name, parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD)
        raise TypeError(f"{kind.__name__} got unknown argument {', '.join(map(repr, names))}; known: {own}{beside}")


def describe_distance(distance: Any) -> str:
    """For messages: LpDistance(normalize_embeddings=True, p=2, power=1)."""
    names = [name for name in ("normalize_embeddings", "p", "power") if hasattr(distance, name)]
    return f"{type(distance).__name__}({', '.join(f'{name}={getattr(distance, name)!r}' for name in names)})"


def at_least_float32(x: Tensor) -> Tensor:
    """16-bit floats as float32, others as they are.

    A row of zeros, which has no direction, gets no gradient then: divided by its norm it would be infinite in 16 bits.
    """
    if x.dtype not in (torch.float16, torch.bfloat16):
        return x
    wide = x.float()
    return torch.where((x != 0).any(dim=1, keepdim=True), wide, wide.detach()) if x.requires_grad else wide
