"""The lifted structure loss of LoOp, with a hinge and a hard minimum."""

from torch import Tensor
from typing_extensions import Unpack

from pml_ext._checks import check_choice, check_in_range
from pml_ext._pml import is_similarity, term
from pml_ext.functional.losses.pair_weighting import hinges_of_pairs
from pml_ext.losses._base import EmbeddingLoss, PMLArguments, Terms
from pml_ext.losses._batch import Labels, Reference, Tuples
from pml_ext.losses._positive_pairs import consecutive_among, pair_masks


class LiftedHingeLoss(EmbeddingLoss):
    """relu(d_ij + margin − the least distance of i or j to a negative), the mean over the positive pairs (i, j).

    With LoOp around it the least distance is that between the arc i–j and another one.

    Args:
        margin: >= 0, in the measure of the distance.
        positives: "all": every two samples of a class are a pair; with ref_emb its negatives are those of the anchor.
            "consecutive": the 1st and 2nd sample of a class, the 3rd and 4th, …, in batch order. LoOp takes these
            pairs by itself.
        **pml: distance (any; LpDistance, on normalised embeddings, is the default), reducer (MeanReducer, over the
            pairs), embedding_regularizer, embedding_reg_weight, collect_stats.
            An indices_tuple limits the choice to its positive and its negative pairs.
    Raises:
        ValueError: a negative margin, another `positives`, neither labels nor indices_tuple, ref_emb beside
            positives="consecutive".
    Source: Vasudeva et al., "LoOp", ICCV 2021, eq. 16. Paper: consecutive pairs, no margin named; here: also all pairs.
        Song et al.'s lifted structure, with a square and a log-sum-exp, is PML's LiftedStructureLoss.

    >>> import torch
    >>> x, labels = torch.eye(4) + 0.1, torch.tensor([0, 0, 1, 1])
    >>> round(float(LiftedHingeLoss(margin=0.2)(x, labels)), 3)  # all distances are alike
    0.2
    """

    def __init__(self, *, margin: float = 0.2, positives: str = "all", **pml: Unpack[PMLArguments]) -> None:
        check_in_range(margin, 0, float("inf"), "margin")
        check_choice(positives, ("consecutive", "all"), "positives")
        super().__init__(**pml)
        self.margin = margin
        self.positives = positives
        self._record("margin")

    def _terms(
        self, embeddings: Tensor, labels: Labels, indices_tuple: Tuples | None, ref_emb: Reference, ref_labels: Labels
    ) -> Terms:
        with_itself = ref_emb is None
        matrix = self.distance(embeddings, ref_emb)
        positive, negative = pair_masks(matrix, labels, ref_labels, indices_tuple)
        if self.positives == "consecutive":
            anchors, positives = consecutive_among(positive, labels, with_itself=with_itself)
        else:
            anchors, positives = positive.nonzero(as_tuple=True)
        if len(anchors) == 0 or not bool(negative.any()):
            return self._no_terms("this batch has no positive or no negative pair", indices_tuple)
        distances = -matrix if is_similarity(self.distance) else matrix
        losses = hinges_of_pairs(distances, anchors, positives, negative, self.margin, with_itself)
        return {"loss": term(losses, (anchors, positives))}
