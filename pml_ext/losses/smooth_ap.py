"""SmoothAP for any class sizes and any order of the batch."""

from torch import Tensor
from typing_extensions import Unpack

from pml_ext._checks import check_above_zero
from pml_ext._pml import CosineSimilarity, term
from pml_ext.distances.settings import describe_distance
from pml_ext.functional.losses.smooth_rank import smooth_average_precision
from pml_ext.functional.tuples import weights_of
from pml_ext.losses._base import EmbeddingLoss, PMLArguments, Terms
from pml_ext.losses._batch import Labels, Reference, Tuples
from pml_ext.losses._facts import LossFacts
from pml_ext.losses._shares import anchors_first_sums


class SmoothAPLoss(EmbeddingLoss):
    """1 − smoothed average precision, the batch ranked for each of its samples.

    Takes the place of PML 2.9's loss of the same name, which reads a batch of C classes with K samples as K classes
    of C samples and so is right only where C = K (there both agree). Here classes may have any size, stand in any
    order, and ref_emb may be ranked instead of the batch.

    Args:
        temperature: of the sigmoids, above 0.
        **pml: distance (CosineSimilarity), reducer, embedding_regularizer, embedding_reg_weight, collect_stats.
    Source: Brown et al., "Smooth-AP: Smoothing the Path Towards Large-Scale Image Retrieval", ECCV 2020, eq. 7.
    As in the authors' code a sample is among its own positives when the batch ranks itself; samples without another
    one of their class are ranked, but no queries.

    >>> import torch
    >>> x, labels = torch.tensor([[1, 0.0], [0.6, 0.8], [0, 1], [-0.6, 0.8]]), torch.tensor([0, 0, 1, 1])
    >>> round(SmoothAPLoss(temperature=0.1)(x, labels).item(), 3)
    0.092
    """

    default_distance = CosineSimilarity
    facts = LossFacts(
        takes_all_positives="it ranks all positives of a sample; a tuple only weights the samples",
        sums=anchors_first_sums,
    )
    labels_because = "SmoothAPLoss needs labels: it ranks the whole batch, whatever a miner picked"

    def __init__(self, temperature: float = 0.01, **pml: Unpack[PMLArguments]) -> None:
        super().__init__(**pml)
        check_above_zero(temperature, "temperature")
        if not isinstance(self.distance, CosineSimilarity):
            raise TypeError(f"SmoothAPLoss needs CosineSimilarity; got {describe_distance(self.distance)}")
        self.temperature = temperature
        self._record("temperature")

    def _terms(
        self, embeddings: Tensor, labels: Tensor, indices_tuple: Tuples | None, ref_emb: Reference, ref_labels: Labels
    ) -> Terms:
        with_itself = self.reference_begins_with_batch or ref_emb is None
        positive = labels[:, None] == (labels if ref_labels is None else ref_labels)
        # Alone in its class, a sample has nothing to find: its precision is 1 whatever the embedding.
        queries = (positive.sum(dim=1) > int(with_itself)).nonzero().squeeze(1)
        if len(queries) == 0:
            return self._no_terms("no sample of the batch has a positive")
        if bool(positive.all()):
            self._warn("the batch has no negatives (one class), so its loss is 0")
        similarities = self.distance(embeddings, ref_emb)
        if len(queries) < len(labels):
            similarities, positive = similarities[queries], positive[queries]
        precision = smooth_average_precision(similarities, positive, self.temperature)
        weights = weights_of(indices_tuple, labels, precision.dtype, with_itself=with_itself)
        losses = (1 - precision) * weights[queries]
        return {"loss": term(losses, queries)}
