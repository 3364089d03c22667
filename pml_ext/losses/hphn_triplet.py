"""The triplet loss of the hard positive and the hard negative."""

from typing import Any

import torch
from torch import Tensor

from pml_ext._checks import check_in_range
from pml_ext._pml import LpDistance, loss_and_miner_utils
from pml_ext.functional.tuples.hardest import hardest_triplets
from pml_ext.functional.tuples.pairs import same_and_different
from pml_ext.losses._base import EmbeddingLoss, is_with_itself


class HPHNTripletLoss(EmbeddingLoss):
    """relu(d_ap − d_an + margin) of each sample, its farthest positive, and the nearest negative of these two.

    The nearest negative is that of either end of the pair; a pair whose nearest negative is the positive's has the
    positive for an anchor. Pairs with a ref_emb have one end in the batch, whose nearest negative it then is.
    HPHNMiner picks the same triplets. LoOp(HPHNTripletLoss()) takes the negatives between arcs.

    Args:
        margin: >= 0, in the measure of the distance.
        **pml: distance (any; LpDistance, on normalised embeddings, is the default), reducer (MeanReducer, over all
            these triplets, those of loss 0 included; PML's TripletMarginLoss leaves them out), embedding_regularizer,
            embedding_reg_weight, collect_stats.
            An indices_tuple limits the choice: the hardest are taken among its positive and its negative pairs.
    Raises:
        ValueError: a negative margin, neither labels nor indices_tuple.
    Source: HPHN in Xuan et al., "Improved Embeddings with Easy Positive Triplet Mining", WACV 2020, and per positive
        pair in Vasudeva et al., "LoOp", ICCV 2021, with margin 0.2. Paper: in LoOp the pairs are consecutive samples
        of a class; here: those of each sample and its farthest positive, which is the same for classes of two.
        Xuan et al. take the anchor's own nearest negative: that is PML's TripletMarginLoss with BatchHardMiner.
    """

    def __init__(self, *, margin: float = 0.2, **pml: Any) -> None:
        check_in_range(margin, 0, float("inf"), "margin")
        super().__init__(**pml)
        self.margin = margin
        self.add_to_recordable_attributes(name="margin", is_stat=False)

    def get_default_distance(self) -> LpDistance:
        return LpDistance()

    def compute_loss(
        self,
        embeddings: Tensor,
        labels: Tensor | None,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_emb: Tensor,
        ref_labels: Tensor | None,
    ) -> dict[str, Any]:
        with_itself = is_with_itself(embeddings, labels, ref_emb, ref_labels)
        if indices_tuple is not None:
            a1, p, a2, n = loss_and_miner_utils.convert_to_pairs(indices_tuple, labels, ref_labels)
            positive, negative = embeddings.new_zeros(2, len(embeddings), len(ref_emb), dtype=torch.bool)
            positive[a1, p] = True
            negative[a2, n] = True
        else:
            assert labels is not None
            positive, negative = same_and_different(labels, None if with_itself else ref_labels)
        matrix = self.distance(embeddings, ref_emb)
        distances = -matrix if self.distance.is_inverted else matrix
        triplets = hardest_triplets(distances, positive, negative, among_themselves=with_itself)
        a, p, n = triplets
        if len(a) == 0:
            if indices_tuple is None:
                return self._no_terms("this batch has no triplet (two samples of a class and one of another)")
            none: dict[str, Any] = self.zero_losses()
            return none
        losses = torch.relu(self.distance.margin(matrix[a, p], matrix[a, n]) + self.margin)
        return {"loss": {"losses": losses, "indices": triplets, "reduction_type": "triplet"}}
