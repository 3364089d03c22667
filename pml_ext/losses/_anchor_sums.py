"""What one rank computes of each loss over the batch of all ranks: sums over some anchors, and of how many terms."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, distributed, nn

from pml_ext._ops.distributed import add_transpose_of_ranks_
from pml_ext._pml import MeanReducer, losses, reducers
from pml_ext.distances.injected import twin_of
from pml_ext.functional.loop.partners import consecutive_pairs
from pml_ext.functional.losses.cit_rows import concordance_sum_of_rows
from pml_ext.functional.losses.tcm_rows import threshold_consistency_sums_of_rows
from pml_ext.functional.tuples.pairs import class_spans, same_and_different
from pml_ext.losses._tuple_loss import compares_triplets
from pml_ext.losses.cit import CITLoss
from pml_ext.losses.loop import LoOp
from pml_ext.losses.pair_weighting import PairWeightingLoss
from pml_ext.losses.tcm import TCMLoss

Sums = tuple[Tensor, Tensor]
"""(T,) sums of the loss's T terms over a rank's anchors, with a graph, and (T,) how many they are of."""


class Part(NamedTuple):
    """Which samples are the anchors of every rank; the embeddings of all are in this order, class by class."""

    of_ranks: list[slice]
    rank: int

    @property
    def own(self) -> slice:
        return self.of_ranks[self.rank]

    @property
    def size(self) -> int:
        return int(self.own.stop - self.own.start)


OF_ANCHORS = (losses.MultiSimilarityLoss, losses.CircleLoss, losses.SupConLoss, PairWeightingLoss)
"""Losses with a term for each anchor, 0 where it has no pair."""


def concordance_sums(loss: CITLoss, x: Tensor, labels: Tensor, part: Part) -> Sums:
    spans, everyone = class_spans(labels), distributed.group.WORLD
    assert everyone is not None
    total = concordance_sum_of_rows(
        x, part.own, spans, loss.gamma, loss.similarity, loss.hinge_partial_likelihood,
        add_transpose=lambda rows: add_transpose_of_ranks_(rows, part.of_ranks, everyone),
    )  # fmt: skip
    size = spans.size[part.own]
    return total.view(1), (size - 1).mul(len(labels) - size).sum().to(total.dtype).view(1)


def threshold_consistency_sums(loss: TCMLoss, x: Tensor, labels: Tensor, part: Part) -> Sums:
    spans, margins = class_spans(labels), (loss.margin_plus, loss.margin_minus)
    sums, counts = threshold_consistency_sums_of_rows(x, part.own, spans, *margins, indicator=loss.indicator)
    weights = sums.new_tensor([loss.lambda_plus, loss.lambda_minus])
    if loss.divide_by == "all":
        size = spans.size[part.own]
        counts = torch.stack([(size - 1).sum(), (len(labels) - size).sum()]).to(sums.dtype)
    return sums * weights, counts


def anchors_first_sums(loss: Any, x: Tensor, labels: Tensor, part: Part) -> Sums:
    """With the anchors first in the reference, where a sample's comparison with itself is on the diagonal.

    For losses of ours, which need no list of pairs: of PairWeighting's memory the list was a third.
    """
    own, before, after = part.own, slice(0, part.own.start), slice(part.own.stop, None)
    if not part.size:
        return _nothing(loss, x)
    terms = _Terms(loss, empty=part.size if isinstance(loss, OF_ANCHORS) else 0)
    twin = twin_of(loss, {"reducer": terms}, reference_begins_with_batch=True, _has_warned=True)
    first = [torch.cat([every[own], every[before], every[after]]) for every in (x, labels)]
    twin(x[own], labels[own], None, *first)
    return terms.sums, terms.counts


def sample_sums(loss: Any, x: Tensor, labels: Tensor, part: Part) -> Sums:
    terms = _Terms(loss, empty=part.size)
    twin_of(loss, {"reducer": terms})(x[part.own], labels[part.own])
    return terms.sums, terms.counts


def pair_sums(loss: Any, x: Tensor, labels: Tensor, part: Part) -> Sums:
    if not part.size:
        return _nothing(loss, x)
    terms = _Terms(loss, empty=part.size if isinstance(loss, OF_ANCHORS) else 0)
    twin_of(loss, {"reducer": terms})(x[part.own], labels[part.own], _all_pairs(labels, part.own), x, labels)
    return terms.sums, terms.counts


def triplet_sums(loss: Any, x: Tensor, labels: Tensor, part: Part) -> Sums:
    if not part.size:
        return _nothing(loss, x)
    terms = _Terms(loss, empty=0)
    same, different = _masks(labels, part.own)
    anchors, positives = same.nonzero(as_tuple=True)
    tuples = _all_negatives(anchors, positives, different)
    twin_of(loss, {"reducer": terms})(x[part.own], labels[part.own], tuples, x, labels)
    return terms.sums, terms.counts


def arc_sums(loss: LoOp, x: Tensor, labels: Tensor, part: Part) -> Sums:
    """Anchors are whole classes, so an arc's two ends are anchors of one rank."""
    inner = loss.loss
    if not part.size:
        return _nothing(inner, x)
    terms = _Terms(inner, empty=part.size if isinstance(inner, OF_ANCHORS) else 0)
    same, different = _masks(labels, part.own)
    anchors, positives = same.nonzero(as_tuple=True)
    if loss.positives == "arc" and loss.pairing == "consecutive":
        anchors, partners = consecutive_pairs(labels[part.own])
        positives = part.own.start + partners
    tuples: tuple[Tensor, ...] = (anchors, positives, *different.nonzero(as_tuple=True))
    if compares_triplets(inner):
        tuples = _all_negatives(anchors, positives, different)
    del same, different  # memory that the loss can use
    inside = twin_of(inner, {"reducer": terms})
    twin_of(loss, {"loss": inside})(x[part.own], labels[part.own], tuples, x, labels)
    return terms.sums, terms.counts


def _masks(labels: Tensor, rows: slice) -> tuple[Tensor, Tensor]:
    """(rows, B): which pairs of an anchor are of one class, and which of two."""
    same, different = same_and_different(labels[rows], labels)
    same[:, rows].fill_diagonal_(False)
    return same, different


def _all_pairs(labels: Tensor, rows: slice) -> tuple[Tensor, ...]:
    """The positive and the negative pairs of some anchors, as PML's losses take them."""
    same, different = _masks(labels, rows)
    return (*same.nonzero(as_tuple=True), *different.nonzero(as_tuple=True))


def _nothing(loss: Any, x: Tensor) -> Sums:
    """Of a rank without anchors."""
    none = x.new_zeros(len(loss.sub_loss_names()))
    return none, none


def _all_negatives(anchors: Tensor, positives: Tensor, different: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Triplets: each positive pair with every negative of its anchor."""
    pair, negatives = different[anchors].nonzero(as_tuple=True)
    return anchors[pair], positives[pair], negatives


class _Terms(nn.Module):
    """In a reducer's place: keeps the sums of terms and their numbers, which the reducer would divide.

    Args:
        loss: whose reducer is a MeanReducer or AvgNonZeroReducer, or has one of these for each sub-loss.
        empty: how many terms of 0 count for a sub-loss that has found no pair.
    """

    def __init__(self, loss: Any, *, empty: int) -> None:
        super().__init__()
        self.kinds = dict(zip(loss.sub_loss_names(), map(type, reducers_of(loss)), strict=True))
        self.empty = empty
        self.sums = self.counts = torch.zeros(0)

    def forward(self, terms: dict[str, dict[str, Any]], embeddings: Tensor, labels: Tensor) -> Tensor:
        sums, counts = [], []
        for name, kind in self.kinds.items():
            values = terms[name]["losses"]
            if terms[name]["reduction_type"] == "already_reduced" or not isinstance(values, Tensor):
                sums.append(embeddings[:0].sum())
                counts.append(torch.tensor(self.empty if kind is MeanReducer else 0, device=embeddings.device))
            elif kind is MeanReducer:
                sums.append(values.sum())
                counts.append(torch.tensor(len(values), device=values.device))
            else:
                found = values > 0
                sums.append(torch.where(found, values, 0).sum())
                counts.append(found.sum())
        self.sums = torch.stack(sums)
        self.counts = torch.stack(counts).to(self.sums.dtype)
        return self.sums.sum()


def reducers_of(loss: Any) -> list[nn.Module]:
    """Of each sub-loss."""
    if not isinstance(loss.reducer, reducers.MultipleReducers):
        return [loss.reducer]
    named = dict(loss.reducer.reducers.items())
    return [named.get(name, loss.reducer.default_reducer) for name in loss.sub_loss_names()]
