"""The concordance-induced triplet loss."""

import math
from typing import Any

from torch import Tensor
from typing_extensions import Unpack

from pml_ext._pml import CosineSimilarity, DotProductSimilarity, LpDistance, MeanReducer, is_similarity, term
from pml_ext._shared.checks import check_choice, check_in_range, check_switch
from pml_ext.functional.losses.cit import concordance, concordance_loss, concordance_of_pairs, triplet_losses
from pml_ext.functional.tuples import Tuples, class_sizes, count_triplets, same_and_different, triplets_of
from pml_ext.losses._base import NO_TRIPLET, EmbeddingLoss, Labels, PMLArguments, Reference, Terms, check_selection
from pml_ext.losses._facts import LossFacts
from pml_ext.losses._pairs import copies_in_reference
from pml_ext.losses.injected_distance import describe_distance, is_on_sphere


class CITLoss(EmbeddingLoss):
    r"""Concordance-induced triplet (CIT) loss over all triplets of a batch, without a margin.

    $$L = γ L_e + (1 - γ) L_p$$

    $$L_e = \frac{1}{N} \sum_{(a,p,n)} \max(0, 1 - e^{S_{ap} - S_{an}})$$

    $$L_p = \frac{1}{N} \sum_{(a,p,n)} [\log(e^{S_{an}} + e^{S_{pn}}) - S_{ap}]$$

    The sums are over the N triplets (a, p, n) of the batch; S are similarities.

    The value is exact, but triplets are never enumerated: time and memory grow as for a pair loss. Triplets are
    enumerated only for a miner's indices_tuple or a reducer other than PML's MeanReducer.

    On a GPU the number of operators depends on the size K of the largest class. With γ = 1 it is 58, and above K = 128,
    where negatives are sorted, 99. With γ < 1 it is at most 113 + 16 K. It grows with the batch only where the work
    takes several blocks of 2²⁶ entries: by 27 for each 2²⁶ of the B² (K − 1) compared entries, and with γ < 1 above
    K = 128 with the number of triplets.

    With γ = 1, a batch whose triplets are all ordered correctly gives no gradient. In our runs CIT alone was worse than
    a triplet loss: by 3 points of mAP@R for linear layers on frozen features, by 16 to 17 for whole networks.
    Combine it with an identity (cross-entropy) loss; the paper does not mention one.

    Args:
        gamma: γ, the weight of L_e, in [0, 1]. The paper's experiments use 1; it recommends 0.5 as a trade-off.
        similarity: "unit", S = (1 + cosine)/2, the paper's range [0, 1]; or "cosine", the raw cosine.
        hinge_partial_likelihood: clamp each triplet's term in L_p at zero, so that a positive that is similar enough
            gets no gradient.
        pml: distance, reducer, embedding_regularizer, embedding_reg_weight, collect_stats. The distance is
            CosineSimilarity (default), or LpDistance(p=2) on normalised embeddings; then S = 1 − d/2.
            A reducer other than MeanReducer receives the loss of each triplet. With γ < 1 and without the hinge it may
            be negative, so reducers that select by value (ThresholdReducer, AvgNonZeroReducer) are refused.
    Attributes:
        concordance_index: with collect_stats, the share of the last batch's triplets with S_ap > S_an, regardless of a
            miner; ties count one half. nan without triplets or labels.
    Raises:
        ValueError: gamma outside [0, 1], an unknown similarity, neither labels nor indices_tuple.
        TypeError: a distance without bounds (S must be bounded on both sides); with γ < 1 and no hinge, a reducer that
            selects by value.
    Source: "Triplet Similarity Learning on Concordance Constraint", eqs. 4, 7, 8.
        Paper: the text says there is no penalty if $S_{ap} ≥ \log(e^{S_{an}} + e^{S_{pn}})$, but eq. 7 has no hinge;
        here: eq. 7, and hinge_partial_likelihood adds the hinge.
        Paper: S lies in [0, 1], without a formula; here: (1 + cosine)/2.
        Paper: mean over all triplets, including those of loss 0; here: the same by default, or another reducer.

    >>> import torch
    >>> x, labels = torch.tensor([[1, 0.0], [0.6, 0.8], [0, 1], [-0.6, 0.8]]), torch.tensor([0, 0, 1, 1])
    >>> round(CITLoss()(x, labels).item(), 3), round(CITLoss(gamma=0.5)(x, labels).item(), 3)
    (0.012, 0.215)

    L_e, step by step:

    >>> unit = torch.nn.functional.normalize(x)
    >>> sims, same = (1 + unit @ unit.T) / 2, labels[:, None] == labels
    >>> anchors, positives = (same & ~torch.eye(4, dtype=torch.bool)).nonzero(as_tuple=True)
    >>> pairs, negatives = (~same)[anchors].nonzero(as_tuple=True)
    >>> pos_sims, neg_sims = sims[anchors, positives][pairs], sims[anchors[pairs], negatives]
    >>> round((1 - (pos_sims - neg_sims).exp()).relu().mean().item(), 3)
    0.012
    """

    default_distance = CosineSimilarity
    facts = LossFacts(makes_triplets=True)
    passed_on = ("distance", "reducer")

    def __init__(
        self,
        *,
        gamma: float = 1.0,
        similarity: str = "unit",
        hinge_partial_likelihood: bool = False,
        **pml: Unpack[PMLArguments],
    ) -> None:
        check_in_range(gamma, 0, 1, "gamma")
        check_choice(similarity, ("unit", "cosine"), "similarity")
        check_switch(hinge_partial_likelihood, "hinge_partial_likelihood")
        super().__init__(**pml)
        if not is_on_sphere(self.distance, CosineSimilarity, DotProductSimilarity, LpDistance):
            raise TypeError(
                "CITLoss needs a bounded similarity: distance must be CosineSimilarity(), or LpDistance(p=2, "
                f"power=1, normalize_embeddings=True) for S = 1 − d/2; got {describe_distance(self.distance)}"
            )
        if similarity == "cosine" and not is_similarity(self.distance):
            raise ValueError(
                f"similarity must be 'unit' with {type(self.distance).__name__}, whose S is 1 − d/2; got 'cosine', "
                "which needs CosineSimilarity()"
            )
        if gamma < 1 and not hinge_partial_likelihood:
            check_selection(self, self.reducer)
        self.gamma = gamma
        self.similarity = similarity
        self.hinge_partial_likelihood = hinge_partial_likelihood
        self._record("gamma")
        self._record("concordance_index", is_stat=True)

    def compute_loss(
        self, embeddings: Tensor, labels: Any, indices_tuple: Tuples | None, ref_emb: Reference, ref_labels: Labels
    ) -> Terms:
        hinge, device = self.hinge_partial_likelihood, embeddings.device
        is_over_all = labels is not None and indices_tuple is None
        if is_over_all and ref_emb is None and not self.collect_stats and self.is_mean_of_cosines():
            # The constant of "unit" cancels: both terms use differences of similarities.
            scale = 0.5 if self.similarity == "unit" else 1.0
            value = concordance(embeddings, labels, self.gamma, scale, hinge)
            if not 1 < max(class_sizes(labels)) < len(labels):
                return self._no_terms(NO_TRIPLET)
            return {"loss": term(value)}
        similarities, among_ref = self._both_similarities(embeddings, ref_emb)
        if self.collect_stats:
            self.concordance_index = math.nan
            if labels is not None and (ref_emb is None or ref_labels is not None):
                copies = copies_in_reference(embeddings, labels, indices_tuple, ref_emb, ref_labels)
                pairs = same_and_different(labels, ref_labels, copies, device=device)
                self.concordance_index = concordance_of_pairs(similarities, *pairs).item()
        if is_over_all and type(self.reducer) is MeanReducer:
            same, different = same_and_different(labels, ref_labels, device=device)
            if count_triplets(same, different) == 0:
                return self._no_terms(NO_TRIPLET)
            value = concordance_loss(similarities, among_ref, same, different, self.gamma, hinge)
            return {"loss": term(value)}
        a, p, n = triplets_of(indices_tuple, labels, ref_labels, device=device)
        if len(a) == 0:
            return self._no_terms(NO_TRIPLET, indices_tuple)
        s_pn = None if among_ref is None else among_ref[p, n]
        losses = triplet_losses(similarities[a, p], similarities[a, n], s_pn, self.gamma, hinge)
        return {"loss": term(losses, (a, p, n))}

    def _both_similarities(self, embeddings: Tensor, ref_emb: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Similarities of the anchors to ref_emb, and within ref_emb if L_p needs the (positive, negative) pairs."""
        similarities = self.similarities(embeddings, ref_emb)
        if self.gamma == 1:
            return similarities, None
        return similarities, similarities if ref_emb is None else self.similarities(ref_emb)

    def similarities(self, embeddings: Tensor, ref_emb: Tensor | None = None) -> Tensor:
        """Returns the (B, R) similarities S between (B, D) and (R, D); (B, B) without ref_emb."""
        matrix: Tensor = self.distance(embeddings, ref_emb)
        if not is_similarity(self.distance):
            return 1 - matrix / 2
        return (1 + matrix) / 2 if self.similarity == "unit" else matrix
