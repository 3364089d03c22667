"""Smoothed ranking losses for any class sizes: average precision (SmoothAP) and recall at k."""

from collections.abc import Sequence

import torch
from torch import Tensor
from typing_extensions import Unpack

from pml_ext._pml import CosineSimilarity, term
from pml_ext._shared.checks import check_above_zero
from pml_ext.functional.losses.smooth_rank import check_short_lists, smooth_average_precision, smooth_recall_at_k
from pml_ext.functional.tuples import Tuples, count_pairs, same_class_pairs, weights_of
from pml_ext.losses._base import EmbeddingLoss, Labels, PMLArguments, Reference, Terms
from pml_ext.losses._facts import LossFacts
from pml_ext.losses._pairs import copies_in_reference
from pml_ext.losses.injected_distance import describe_distance


class SmoothAPLoss(EmbeddingLoss):
    r"""SmoothAP: 1 − smoothed average precision, with every sample of the batch as a query.

    $$L = 1 - \frac{1}{|P|} \sum_{p ∈ P} \frac{r_p(P)}{r_p(all)}$$

    $$r_p(A) = 1 + \sum_{z ∈ A, z ≠ p} σ((s_z - s_p) / τ)$$

    for each query, with its positives P and its cosines s; r(A) is the smoothed rank among A, σ is the sigmoid.

    Replaces PML 2.9's loss of the same name. PML reads a batch of C classes with K samples each as K classes with C
    samples, so it is correct only if C = K; then both agree. Here classes may have any size and any order, and ref_emb
    can be ranked instead of the batch.

    Args:
        temperature: τ, temperature of the sigmoids, above 0.
        **pml: distance (CosineSimilarity), reducer, embedding_regularizer, embedding_reg_weight, collect_stats.
    Source: Brown et al., "Smooth-AP: Smoothing the Path Towards Large-Scale Image Retrieval", ECCV 2020, eq. 7.
        As in the authors' code, a sample is one of its positives if the batch is ranked. A sample that is alone in
        its class is ranked but is not a query.

    >>> import torch
    >>> x, labels = torch.tensor([[1, 0.0], [0.6, 0.8], [0, 1], [-0.6, 0.8]]), torch.tensor([0, 0, 1, 1])
    >>> round(SmoothAPLoss(temperature=0.1)(x, labels).item(), 3)
    0.092
    """

    default_distance = CosineSimilarity
    facts = LossFacts(takes_all_positives=True)
    labels_because = "SmoothAPLoss needs labels: it ranks the complete batch, whatever a miner selected"

    def __init__(self, temperature: float = 0.01, **pml: Unpack[PMLArguments]) -> None:
        super().__init__(**pml)
        check_above_zero(temperature, "temperature")
        if not isinstance(self.distance, CosineSimilarity):
            raise TypeError(f"SmoothAPLoss needs CosineSimilarity; got {describe_distance(self.distance)}")
        self.temperature = temperature
        self._record("temperature")

    def compute_loss(
        self, embeddings: Tensor, labels: Tensor, indices_tuple: Tuples | None, ref_emb: Reference, ref_labels: Labels
    ) -> Terms:
        copies = copies_in_reference(embeddings, labels, indices_tuple, ref_emb, ref_labels)
        with_itself = ref_emb is None or copies is not None
        items_of = labels if ref_labels is None else ref_labels.cpu()
        rows, items, counts = same_class_pairs(labels, items_of)
        # The precision of a sample that is alone in its class is 1 for any embedding.
        queries = (counts > int(with_itself)).nonzero().squeeze(1)
        if len(queries) == 0:
            return self._no_terms("no sample of the batch has a positive")
        if int(counts.min()) == len(items_of):
            self._warn("the batch has no negatives (one class), so its loss is 0")
        similarities = self.distance(embeddings, ref_emb)
        asked = labels
        if len(queries) < len(labels):
            asked = labels[queries]
            rows, items, _ = same_class_pairs(asked, items_of)
            similarities = similarities[queries.to(embeddings.device, non_blocking=True)]
        tables = (queries, rows, items, asked, items_of)
        queries, rows, items, asked, items_of = (each.to(embeddings.device, non_blocking=True) for each in tables)
        positive = asked[:, None] == items_of
        precision = smooth_average_precision(similarities, positive, self.temperature, (rows, items))
        weights = weights_of(indices_tuple, labels, precision, with_itself=ref_emb is None)
        losses = (1 - precision) * weights[queries]
        return {"loss": term(losses, queries)}


class RecallAtKSurrogateLoss(EmbeddingLoss):
    r"""Recall@k surrogate: 1 − smoothed recall@k, averaged over several k, with every sample of the batch as a query.

    $$\text{recall@k} = \frac{1}{\min(k, |P|)} \sum_{p ∈ P} σ((k - r_p) / τ_{rank})$$

    $$r_p = 1 + \sum_{z ≠ p} σ((s_z - s_p) / τ)$$

    P are the query's positives, s the cosines of the query with them and with the other items z, σ is the sigmoid.

    Classes may have any size and any order, and ref_emb can be ranked instead of the batch. Queries without a positive
    are ignored. The paper's similarity mixup is not included. An indices_tuple weights each query by how often it
    occurs, as in PML's SmoothAPLoss; an empty one gives equal weights.

    Args:
        ks: short-list lengths, integers of 1 or more; they may exceed the batch.
        temperature: τ, for comparing cosines, above 0.
        rank_temperature: τ_rank, for comparing ranks with k, above 0.
        **pml: distance (CosineSimilarity), reducer, embedding_regularizer, embedding_reg_weight, collect_stats.
    Raises:
        TypeError: a distance other than CosineSimilarity; the temperature is for cosines.
        ValueError: a k or temperature out of range, no labels.
    Source: Patel et al., "Recall@k Surrogate Loss with Large Batches and Similarity Mixup", CVPR 2022, section 3.
        Paper and here: one temperature for all k (the default in the authors' code is k).
        Paper and here: a query is not part of its ranking (in the authors' code it is, at rank 1).
        The denominator and the missing clip at k: see functional.smooth_recall_at_k.

    >>> x, labels = torch.tensor([[1, 0.0], [0.6, 0.8], [0, 1], [-0.6, 0.8]]), torch.tensor([0, 0, 1, 1])
    >>> round(RecallAtKSurrogateLoss(ks=(1, 2), temperature=0.1)(x, labels).item(), 3)
    0.467
    """

    default_distance = CosineSimilarity
    facts = LossFacts(takes_all_positives=True)
    labels_because = "RecallAtKSurrogateLoss ranks the complete batch, so an indices_tuple does not replace them"

    def __init__(
        self, *, ks: Sequence[int] = (1, 2, 4, 8, 16), temperature: float = 0.01, rank_temperature: float = 1.0,
        **pml: Unpack[PMLArguments],
    ) -> None:  # fmt: skip
        check_short_lists(ks)
        check_above_zero(temperature, "temperature")
        check_above_zero(rank_temperature, "rank_temperature")
        super().__init__(**pml)
        if not isinstance(self.distance, CosineSimilarity):
            raise TypeError(f"RecallAtKSurrogateLoss needs CosineSimilarity; got {describe_distance(self.distance)}")
        self.ks = tuple(int(k) for k in ks)
        self.temperature = temperature
        self.rank_temperature = rank_temperature
        self._record("temperature", "rank_temperature")

    def compute_loss(
        self, embeddings: Tensor, labels: Tensor, indices_tuple: Tuples | None, ref_emb: Reference, ref_labels: Labels
    ) -> Terms:
        copies = copies_in_reference(embeddings, labels, indices_tuple, ref_emb, ref_labels)
        if ref_emb is None:
            copies = torch.arange(len(labels), device=embeddings.device)
        one_class = count_pairs(labels, ref_labels)[1] == 0
        labels = labels.to(embeddings.device, non_blocking=True)
        positive = labels[:, None] == (labels if ref_labels is None else ref_labels.to(labels.device))
        similarities = self.distance(embeddings, ref_emb)
        if copies is not None:
            positive.scatter_(1, copies[:, None], False)
            similarities = similarities.scatter(1, copies[:, None], -torch.inf)
        queries = positive.any(dim=1).nonzero().squeeze(1)
        if one_class or len(queries) == 0:
            is_missing = "is no sample of another class" if one_class else "are no two samples of a class"
            return self._no_terms(f"there {is_missing} to rank")
        if len(queries) < len(labels):
            similarities, positive = similarities[queries], positive[queries]
        recalls = smooth_recall_at_k(similarities, positive, self.ks, self.temperature, self.rank_temperature)
        weights = weights_of(indices_tuple, labels, recalls, with_itself=ref_emb is None)
        losses = (1 - recalls.mean(dim=1)) * weights[queries]
        return {"loss": term(losses, queries)}
