"""The triplet loss of the hard positive and the hard negative."""

import torch
from torch import Tensor
from typing_extensions import Unpack

from pml_ext._checks import check_choice, check_in_range
from pml_ext._pml import is_similarity, term
from pml_ext.functional.tuples import hardest_of_pairs, hardest_triplets, same_and_different
from pml_ext.losses._base import NO_TRIPLET, EmbeddingLoss, PMLArguments, Terms
from pml_ext.losses._batch import Labels, Reference, Tuples
from pml_ext.losses._positive_pairs import consecutive_among, pair_masks


class HPHNTripletLoss(EmbeddingLoss):
    """relu(d_ap − d_an + margin) of each sample, its farthest positive, and the nearest negative of these two.

    The nearest negative is that of either end of the pair; a pair whose nearest negative is the positive's has the
    positive for an anchor. Pairs with a ref_emb have one end in the batch, whose nearest negative it then is.
    HPHNMiner picks the same triplets. LoOp(HPHNTripletLoss()) takes the negatives between arcs.

    Args:
        margin: >= 0, in the measure of the distance.
        positives: "farthest": the pairs are each sample and its farthest positive. "consecutive": they are the 1st and
            2nd sample of a class, the 3rd and 4th, …, in batch order; the distance d_ap then is the largest of either
            end to a sample of its class. The same for classes of two.
        **pml: distance (any; LpDistance, on normalised embeddings, is the default), reducer (MeanReducer, over all
            these triplets, those of loss 0 included; PML's TripletMarginLoss leaves them out), embedding_regularizer,
            embedding_reg_weight, collect_stats.
            An indices_tuple limits the choice: the hardest are taken among its positive and its negative pairs; for
            "consecutive" its positive pairs are those to sum over.
    Raises:
        ValueError: a negative margin, another `positives`, neither labels nor indices_tuple, ref_emb beside
            positives="consecutive".
    Source: HPHN in Xuan et al., "Improved Embeddings with Easy Positive Triplet Mining", WACV 2020, and per positive
        pair in Vasudeva et al., "LoOp", ICCV 2021. Paper: in LoOp the pairs are consecutive samples of a class, as with
        positives="consecutive", and the margin is not stated; here: also each sample and its farthest positive, the
        default, and margin 0.2.
        Xuan et al. take the anchor's own nearest negative: that is PML's TripletMarginLoss with BatchHardMiner.

    >>> x, labels = torch.tensor([[1, 0.0], [0.6, 0.8], [0, 1], [-0.6, 0.8]]), torch.tensor([0, 0, 1, 1])
    >>> round(HPHNTripletLoss(margin=0.2)(x, labels).item(), 3)
    0.331
    """

    def __init__(self, *, margin: float = 0.2, positives: str = "farthest", **pml: Unpack[PMLArguments]) -> None:
        check_in_range(margin, 0, float("inf"), "margin")
        check_choice(positives, ("farthest", "consecutive"), "positives")
        super().__init__(**pml)
        self.margin = margin
        self.positives = positives
        self._record("margin")

    def _terms(
        self, embeddings: Tensor, labels: Labels, indices_tuple: Tuples | None, ref_emb: Reference, ref_labels: Labels
    ) -> Terms:
        with_itself = ref_emb is None
        matrix = self.distance(embeddings, ref_emb)
        distances = -matrix if is_similarity(self.distance) else matrix
        positive, negative = pair_masks(matrix, labels, ref_labels, indices_tuple)
        if self.positives == "consecutive":
            i, j = consecutive_among(positive, labels, with_itself=with_itself)
            assert labels is not None
            a, p, b, n = hardest_of_pairs(distances, same_and_different(labels)[0], negative, i, j)
            tuples: tuple[Tensor, ...] = (i, j)
        else:
            tuples = a, p, n = hardest_triplets(distances, positive, negative, among_themselves=with_itself)
            b = a
        if len(a) == 0 or not bool(negative.any()):
            return self._no_terms(NO_TRIPLET, indices_tuple)
        losses = torch.relu(self.distance.margin(matrix[a, p], matrix[b, n]) + self.margin)
        return {"loss": term(losses, tuples)}
