from typing import Any

import torch
from torch import Tensor, nn

from .distances import LpDistance
from .reducers import AvgNonZeroReducer, MeanReducer
from .types import every_pair, every_triplet, typed

Terms = dict[str, dict[str, Any]]


class BaseMetricLossFunction(nn.Module):
    def __init__(
        self, *, distance = None, reducer = None, embedding_regularizer = None,
        embedding_reg_weight = 1.0,
    ):  # fmt: skip
        super().__init__()
        self.distance = self.default_distance() if distance is None else distance
        self.reducer = self.default_reducer() if reducer is None else reducer
        self.embedding_regularizer, self.embedding_reg_weight = embedding_regularizer, embedding_reg_weight

    def default_distance(self):
        return LpDistance()

    def default_reducer(self):
        return MeanReducer()

    def compute_loss(self, embeddings, labels, indices_tuple, ref_emb, ref_labels):
        raise NotImplementedError

    def objective_terms(
        self,
        embeddings,
        labels=None,
        indices_tuple=None,
        ref_emb=None,
        ref_labels=None,
    ):
        if ref_emb is embeddings or (ref_emb is None) != (ref_labels is None and ref_emb is None):
            raise ValueError("ref_emb must be another set, or None for the batch itself")
        for x, ids in ((embeddings, labels), (ref_emb, ref_labels)):
            if ids is not None and (ids.shape != x.shape[:1] or ids.device != x.device):
                raise ValueError("one label a row, on its device")
        indices = None if indices_tuple is None else typed(indices_tuple)
        terms = self.compute_loss(embeddings, labels, indices, ref_emb, ref_labels)
        for term in terms.values():
            if set(term) != {"losses", "indices"} or not isinstance(term["losses"], Tensor):
                raise TypeError(f"a term has losses, a tensor, and indices; got {term}")
            count = term["losses"].shape
            indexed = term["indices"] if isinstance(term["indices"], tuple) else (term["indices"],)
            if any(part.shape != count for part in indexed if part is not None):
                raise ValueError("one index a loss")
        return terms

    def regularization_terms(self, embeddings):
        if self.embedding_regularizer is None:
            return {}
        penalty = self.embedding_reg_weight * self.embedding_regularizer(embeddings)
        return {"embedding_reg_loss": {"losses": penalty, "indices": None}}

    def forward(
        self,
        embeddings,
        labels=None,
        indices_tuple=None,
        ref_emb=None,
        ref_labels=None,
    ):
        value = 0 * embeddings.sum()
        for term in self.objective_terms(embeddings, labels, indices_tuple, ref_emb, ref_labels).values():
            value = value + (term["losses"] if term["indices"] is None else self.reducer.reduce(term["losses"]))
        for term in self.regularization_terms(embeddings).values():
            value = value + term["losses"]
        return value


class TripletMarginLoss(BaseMetricLossFunction):
    def __init__(self, margin=0.2, **options):
        super().__init__(**options)
        self.margin = margin

    def default_reducer(self):
        return AvgNonZeroReducer()

    def compute_loss(self, embeddings, labels, indices_tuple, ref_emb, ref_labels):
        a, p, n = every_triplet(every_pair(labels, ref_labels) if indices_tuple is None else indices_tuple)
        if len(a) == 0:
            return {}
        matrix = self.distance(embeddings, ref_emb)
        losses = torch.relu(self.distance.margin(matrix[a, p], matrix[a, n]) + self.margin)
        return {"loss": {"losses": losses, "indices": (a, p, n)}}


class CentroidTripletLoss(BaseMetricLossFunction):
    """A name of ours."""


class CrossBatchMemory(nn.Module):
    """A name that pml_ext imports."""


class SelfSupervisedLoss(nn.Module):
    """A name that pml_ext imports."""
