"""Pair weights of a loss, the similarities that they depend on, and the gradient share of each term of a sum."""

import copy
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from pml_ext._ops.custom_gradient import no_autocast
from pml_ext._pml import BaseMetricLossFunction, CrossBatchMemory, DistributedLossWrapper, is_similarity
from pml_ext._pml import losses as pml_losses
from pml_ext._shared.checks import check_embeddings, check_in_range, check_indices_tuple, check_labels
from pml_ext.functional.losses.pair_weighting import Weighting
from pml_ext.functional.tuples import same_and_different
from pml_ext.losses._base import at_least_float32, copy_losses
from pml_ext.losses._facts import check_tuple_loss
from pml_ext.losses.injected_distance import inject, run_with_distance, twin_of
from pml_ext.losses.pair_weighting import PairWeightingLoss
from pml_ext.losses.tcm import TCMRegularizer

# Negative pairs that similarity_dependence perturbs; each costs two runs of the loss.
_PROBES = 16


@torch.inference_mode(False)  # turns gradients on, too
def pair_weights(
    loss: BaseMetricLossFunction, embeddings: Tensor, labels: Tensor, indices_tuple: tuple[Tensor, ...] | None = None
) -> Tensor:
    r"""Returns the weight |∂L/∂S_ij| of every pair, for any loss that computes its pairs by `self.distance`.

    S is the loss's matrix, including the power of its distance: the cosine for CosineSimilarity, and −d for a
    distance d. For L2 on unit vectors, divide by d_ij to get the weight with respect to the cosine. (i, j) and (j, i)
    are separate entries. L includes the division by the reducer, but no embedding regularizer. The loss and its
    statistics do not change.

    Args:
        loss: a tuple loss of PML or of this package.
        embeddings: (B, D).
        labels: (B,) integer class ids.
        indices_tuple: a miner's pairs or triplets.
    Returns:
        (B, B), >= 0, row i for anchor i; 0 for pairs that the loss does not use.
    Raises:
        TypeError: the loss has class weights, does not compare pairs or wraps another loss, or its reducer does not
            return a scalar.
    Source: Wang et al., CVPR 2019, eqs. 1 to 3: $\sum_n w S - \sum_p w S$ with these w held constant has the
        loss's gradient if no pair of the loss has a derivative of the other sign.

    >>> x, labels = torch.tensor([[1, 0.0], [0.6, 0.8], [0, 1], [-0.6, 0.8]]), torch.tensor([0, 0, 1, 1])
    >>> pair_weights(PairWeightingLoss("contrastive"), x, labels)[0]
    tensor([0.0000, 0.2500, 0.0000, 0.0000])
    """
    labels = _checked_labels(loss, embeddings, labels)
    indices_tuple = _checked_tuple(indices_tuple, len(embeddings))
    return _weights_at(loss, _matrix(loss, embeddings), embeddings, labels, indices_tuple)


@dataclass(frozen=True)
class SimilarityDependence:
    """Relative change of a negative pair's weight when similarities change, for the most sensitive pair.

    0 means no change; 1 means that a weight drops to 0 or rises from 0.

    Attributes:
        self_similarity: all similarities shift together, so that only the pair's level changes (Similarity-S).
        negative_relative: the other negative pairs shift (Similarity-N).
        positive_relative: the positive pairs shift (Similarity-P).

    >>> SimilarityDependence(self_similarity=0.3, negative_relative=0.0, positive_relative=0.1).kinds
    'SP'
    """

    self_similarity: float
    negative_relative: float
    positive_relative: float

    @property
    def kinds(self) -> str:
        """The kinds "S", "N" and "P" whose change exceeds 0.2 %, such as "SN"."""
        changes = {"S": self.self_similarity, "N": self.negative_relative, "P": self.positive_relative}
        return "".join(kind for kind, change in changes.items() if change > 2e-3)


@torch.inference_mode(False)  # turns gradients on, too
def similarity_dependence(
    loss: BaseMetricLossFunction | Weighting, embeddings: Tensor, labels: Tensor, *, shift: float = 0.1
) -> SimilarityDependence:
    """Measures on a batch whether the weights of negative pairs depend on Similarity-S, -N and -P.

    Shifts similarities up and down by `shift`, also past 1, and computes the weights again. The result holds for this
    batch: a hinge that is far from all pairs goes unnoticed. A reducer that counts nonzero terms (AvgNonZeroReducer)
    makes each weight depend on all pairs; use a SumReducer to measure the weighting alone.

    Args:
        loss: see `pair_weights`, or the name of a weighting of PairWeightingLoss.
        embeddings: (B, D), labels: (B,) with positive and negative pairs.
        shift: change of the similarities, in [1e-6, 2].
    Returns:
        SimilarityDependence; `kinds` is the loss's row in the paper's Table 1.
    Raises:
        TypeError: see `pair_weights`.
        ValueError: a batch without positive or without negative pairs, or no negative pair with a weight.
    Source: Wang et al., CVPR 2019, section 3 and Table 1. Paper: by argument; here: by perturbation of a loss's real
        gradient. They agree except for N-pairs: Paper: N; here: N and P, as $e^{S_{in} - S_{ip}}$ compares with the
        positive; and in Table 2 for binomial deviance with mining: Paper: S and P; here: N too, as eq. 10 divides by
        N_i, the number of negatives that are mined. Histogram is P in both: a negative's weight is the share of
        positives at its similarity. It reads as SP if a shift moves a similarity past 1 (the last bin), or
        if the shift is not a multiple of the bin width (2/bins), so that pairs move between the nodes of their bins.
        Both effects come from the fixed bins, not from the weighting.

    >>> x = torch.tensor([[1, 0.0], [0.6, 0.8], [0, 1], [-0.6, 0.8]])
    >>> similarity_dependence("multi_similarity", x, torch.tensor([0, 0, 1, 1])).kinds
    'S'
    """
    check_in_range(shift, 1e-6, 2, "shift")
    if isinstance(loss, str):
        loss = PairWeightingLoss(cast(Weighting, loss))
    labels = _checked_labels(loss, embeddings, labels).to(embeddings.device)
    same, different = same_and_different(labels)
    if not same.any() or not different.any():
        raise ValueError("labels must have positive and negative pairs, two samples of a class and two classes")
    embeddings = embeddings.detach().double()
    matrix = _matrix(loss, embeddings)
    closer = 1.0 if is_similarity(loss.distance) else -1.0

    def weights(moved: Tensor, by: float) -> Tensor:
        return _weights_at(loss, matrix + by * closer * moved, embeddings, labels, None)

    before = weights(torch.zeros_like(matrix), 0.0)
    if not before[different].max() > 0:
        raise ValueError("no negative pair of this batch has a weight; use a batch with harder negatives")
    changes = {"self": 0.0, "negative": 0.0, "positive": 0.0}
    pairs = different.triu().nonzero()
    probes = pairs[torch.linspace(0, len(pairs) - 1, min(_PROBES, len(pairs)), device="cpu").long()]
    for by in (-shift, shift):
        for name, moved in (("self", same | different), ("positive", same)):
            changes[name] = max(changes[name], _largest_change(before, weights(moved, by), different))
        for i, j in probes.tolist():
            probe = torch.zeros_like(different)
            probe[i, j] = probe[j, i] = True
            changes["negative"] = max(
                changes["negative"], _largest_change(before, weights(different & ~probe, by), probe)
            )
    return SimilarityDependence(changes["self"], changes["negative"], changes["positive"])


def _largest_change(before: Tensor, after: Tensor, among: Tensor) -> float:
    either = torch.maximum(before, after)
    # Smaller changes may be float32 rounding.
    counted = among & (either > 1e-4 * either.max())
    return float(((after - before).abs() / either)[counted].max()) if counted.any() else 0.0


def _checked_labels(loss: BaseMetricLossFunction, embeddings: Tensor, labels: Tensor) -> Tensor:
    """Returns the labels as int64; raises for a loss or a batch without pair weights."""
    name = type(loss).__name__
    nested = f"ask for the weights of the loss inside the {name}"
    check_tuple_loss(loss, cannot="there are no pair weights of", nested=nested)
    check_embeddings(embeddings)
    return check_labels(labels, len(embeddings))


def _checked_tuple(indices_tuple: tuple[Tensor, ...] | None, count: int) -> tuple[Tensor, ...] | None:
    """Returns copies, because autograd cannot save tensors that were created in inference mode."""
    if indices_tuple is None:
        return None
    check_indices_tuple(indices_tuple, count, count)
    return tuple(part.clone() for part in indices_tuple)


def _matrix(loss: BaseMetricLossFunction, embeddings: Tensor) -> Tensor:
    with torch.no_grad(), no_autocast(embeddings.device):
        matrix: Tensor = copy.deepcopy(loss.distance)(at_least_float32(embeddings))
    return matrix


def _weights_at(
    loss: BaseMetricLossFunction,
    matrix: Tensor,
    embeddings: Tensor,
    labels: Tensor,
    indices_tuple: tuple[Tensor, ...] | None,
) -> Tensor:
    """Returns the weights for a matrix of the loss."""
    matrix = matrix.detach().requires_grad_()
    # A separate gradient path, which PML's zero losses need.
    points = at_least_float32(embeddings.detach()).clone().requires_grad_()
    injected = inject(loss.distance, matrix, points=(points, points))
    copied_loss = copy_losses(loss)  # leaves the caller's statistics and warnings unchanged
    with no_autocast(embeddings.device):
        value = run_with_distance(copied_loss, injected, points, labels.to(points.device), indices_tuple)
        if not isinstance(value, Tensor) or value.ndim:
            raise TypeError(f"the reducer of {type(loss).__name__} must return a scalar; got {type(value).__name__}")
        (gradient,) = torch.autograd.grad(value, matrix, allow_unused=True)
    if gradient is not None:
        return gradient.abs()
    same, different = same_and_different(labels)
    if indices_tuple is None and not injected.was_read and bool(same.any()) and bool(different.any()):
        raise TypeError(
            f"{type(loss).__name__} did not call self.distance(embeddings, ref_emb), so its pairs cannot be reached"
        )
    return torch.zeros_like(matrix)


@torch.inference_mode(False)  # turns gradients on, too
def gradient_shares(
    losses: nn.Module | Mapping[str, nn.Module],
    embeddings: Tensor,
    labels: Tensor,
    indices_tuple: tuple[Tensor, ...] | None = None,
) -> dict[str, float]:
    """Returns each term's share of the gradient on the embeddings of a batch.

    A share is the norm of the term's gradient, divided by the sum of all terms' norms. A term with a share below about
    1 % hardly changes the training, whatever its value: raise its weight.

    Args:
        losses: losses by name, whose values are added; or one loss. TCMRegularizer and PML's MultipleLosses are split
            into their terms, also inside one another, in a CrossBatchMemory or in a DistributedLossWrapper. Their
            memory, statistics, buffers and .grad do not change, nor do the states of random generators.
        embeddings: (B, D).
        labels: (B,) integer class ids.
        indices_tuple: a miner's pairs or triplets, for the losses that accept them.
    Returns:
        Name to fraction; they add up to 1, or are 0 if no term has a gradient. A term whose gradient is not finite has
        nan, and is left out of the sum.
    Raises:
        TypeError: a loss that does not return a scalar.

    >>> from pml_ext.losses import ArcFaceLoss, TCMRegularizer
    >>> _ = torch.manual_seed(0)
    >>> labels = torch.arange(8).repeat_interleave(4)
    >>> embeddings = torch.randn(8, 16)[labels] + torch.randn(32, 16)
    >>> loss = TCMRegularizer(ArcFaceLoss(8, 16))
    >>> {name: round(share, 3) for name, share in gradient_shares(loss, embeddings, labels).items()}
    {'ArcFaceLoss': 0.968, 'TCM': 0.032}
    """
    check_embeddings(embeddings)
    labels = check_labels(labels, len(embeddings)).clone()
    indices_tuple = _checked_tuple(indices_tuple, len(embeddings))
    inputs = at_least_float32(embeddings.detach()).clone().requires_grad_()
    values = {}
    with _random_states_kept(inputs.device), no_autocast(inputs.device):
        for name in _terms_of(losses):
            term = _terms_of(copy_losses(losses))[name]  # a copy for each, as a term may fill a memory that others read
            values[name] = term.value(inputs, labels, indices_tuple)
    return shares_of_values(values, [inputs])


@contextmanager
def _random_states_kept(device: torch.device) -> Iterator[None]:
    of_python, of_numpy = random.getstate(), np.random.get_state()
    devices = [] if device.type == "cpu" else [device]
    try:
        with torch.random.fork_rng(devices, device_type=device.type if devices else "cuda"):
            yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)


def _unchanged(embeddings: Tensor, labels: Tensor, indices_tuple: Any) -> Any:
    return indices_tuple


@dataclass(frozen=True)
class _Term:
    """A loss in a sum, its weight, and the function (embeddings, labels, tuples) that returns the loss's tuples."""

    loss: nn.Module
    weight: float = 1.0
    tuples: Callable[..., Any] = _unchanged

    def value(self, embeddings: Tensor, labels: Tensor, indices_tuple: Any) -> Any:
        tuples = self.tuples(embeddings, labels, indices_tuple)
        value = self.loss(embeddings, labels) if tuples is None else self.loss(embeddings, labels, tuples)
        if isinstance(value, dict) or (isinstance(value, Tensor) and value.numel() != 1):
            name, got = type(self.loss).__name__, type(value).__name__
            raise TypeError(f"the reducer of {name} must return a scalar; got {got}")
        return self.weight * value


def _terms_of(losses: nn.Module | Mapping[str, nn.Module]) -> dict[str, _Term]:
    """Returns the terms of a sum by name."""
    if isinstance(losses, TCMRegularizer):
        return _terms_of(losses.loss) | {"TCM": _Term(losses.tcm)}
    if isinstance(losses, (CrossBatchMemory, DistributedLossWrapper)):
        inside = _terms_of(losses.loss)
        if len(inside) > 1:
            return {name: replace(term, loss=twin_of(losses, {"loss": term.loss})) for name, term in inside.items()}
    if isinstance(losses, pml_losses.MultipleLosses):
        parts = {}
        for name, loss in losses.losses.named_children():
            key = name if losses.is_dict else int(name)
            shown = name if losses.is_dict else f"{name} {type(loss).__name__}"
            parts[shown] = _Term(loss, losses.weights[key], partial(losses.get_indices_tuple, key))
    elif isinstance(losses, Mapping):
        parts = {name: _Term(loss) for name, loss in losses.items()}
    else:
        return {type(losses).__name__: _Term(losses)}
    terms = dict[str, _Term]()
    for name, part in parts.items():
        inside = _terms_of(part.loss)
        for inner, term in inside.items():
            shown = name if len(inside) == 1 else f"{name}: {inner}"
            tuples = partial(_chosen_by_both, part.tuples, term.tuples)
            terms[shown] = _Term(term.loss, part.weight * term.weight, tuples)
    return terms


def _chosen_by_both(outer: Callable[..., Any], inner: Callable[..., Any], *batch: Any) -> Any:
    return inner(*batch[:2], outer(*batch))


def shares_of_values(values: Mapping[str, Any], inputs: Sequence[Tensor]) -> dict[str, float]:
    """Returns `gradient_shares` of computed losses.

    values: scalars by name, with their graphs; inputs: the tensors that they were computed from.
    """
    norms = {}
    for name, value in values.items():
        gradients: Sequence[Tensor | None] = []
        if isinstance(value, Tensor) and value.requires_grad:
            gradients = torch.autograd.grad(value, list(inputs), retain_graph=True, allow_unused=True)
        squares = [float(gradient.double().square().sum()) for gradient in gradients if gradient is not None]
        norms[name] = math.sqrt(sum(squares))
    total = sum(norm for norm in norms.values() if math.isfinite(norm))
    shares = {name: norm / total if total else 0.0 for name, norm in norms.items()}
    return {name: share if math.isfinite(norms[name]) else math.nan for name, share in shares.items()}
