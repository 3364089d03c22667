"""Pair-based losses: PairWeightingLoss and LiftedHingeLoss."""

from typing import Any

import torch
from torch import Tensor
from typing_extensions import Unpack

from pml_ext._ops.numerics import row_blocks
from pml_ext._pml import CosineSimilarity, is_similarity, term
from pml_ext._shared.checks import check_choice, check_in_range
from pml_ext._shared.settings import argument_names
from pml_ext.functional.losses.hinges import hinges_of_pairs, nearest_negatives
from pml_ext.functional.losses.pair_weighting import (
    WEIGHTINGS,
    Weighting,
    multi_similarity_mining,
    weighted_sums,
)
from pml_ext.functional.tuples import Tuples, same_and_different
from pml_ext.losses._base import EmbeddingLoss, Labels, PMLArguments, Reference, Terms
from pml_ext.losses._pairs import consecutive_among, copies_in_reference, lacks_pairs, pair_masks
from pml_ext.losses.injected_distance import InjectedDistance, describe_distance

_OPTIONS = ("alpha", "beta", "base", "bounded", "scale", "margin", "neg_margin", "bins")


class PairWeightingLoss(EmbeddingLoss):
    r"""General pair weighting: a weighted sum of pair similarities with the gradient of any pair-based loss.

    $$F_i = \sum_n w_{in} S_{in} - \sum_p w_{ip} S_{ip}$$

    for each anchor i, with its negatives n and positives p. The weights are computed from S and then held constant:

    $$w_{ij} = |∂L / ∂S_{ij}|$$

    The first and second derivatives equal those of the loss that the weights come from. The value does not: F_i may be
    negative, so reducers that select by value (ThresholdReducer, AvgNonZeroReducer) are refused.

    A batch without positive or without negative pairs gives 0 and warns once, even if the original loss is not 0.

    With jsonargparse (LightningCLI), arguments of a default loss carry over to a loss that replaces it. A default
    TripletMarginLoss passes on its margin, which most weightings reject: set `margin: null` in init_args.

    Args:
        weighting: a name in functional.WEIGHTINGS: "uniform", "contrastive", "triplet", "lifted", "lifted_star",
            "binomial_deviance", "bin_lifted", "multi_similarity", "nca", "n_pairs", "histogram". The
            function's docstring names the original loss. contrastive and triplet are sums over pairs and triplets, as
            in the paper.
        mining: None, or the ε >= 0 of multi-similarity mining (0.1 in the paper). The weighting then uses only the
            pairs that PML's MultiSimilarityMiner keeps.
        alpha, beta, base, bounded, scale, margin, neg_margin, bins: options of the weighting's function; None uses the
            function's default.
        **pml: distance (a similarity: CosineSimilarity by default), reducer (mean over anchors by default),
            embedding_regularizer, embedding_reg_weight, collect_stats.
    Raises:
        TypeError: an option that neither the weighting nor PML accepts, or a distance that is not a similarity.
        ValueError: an unknown weighting, an option out of range, or missing labels.
    Source: Wang et al., "Multi-Similarity Loss with General Pair Weighting for Deep Metric Learning", CVPR 2019,
        eqs. 2 and 3. All rows of its Table 2 are "binomial_deviance", "lifted_star", "bin_lifted" and
        "multi_similarity" with and without mining, and "uniform" with mining.

    >>> x, labels = torch.tensor([[1, 0.0], [0.6, 0.8], [0, 1], [-0.6, 0.8]]), torch.tensor([0, 0, 1, 1])
    >>> round(PairWeightingLoss("triplet", margin=0.1)(x, labels).item(), 3)
    0.05
    """

    default_distance = CosineSimilarity
    has_gradient_below_0 = True

    def __init__(
        self, weighting: Weighting = "multi_similarity", mining: float | None = None, *,
        alpha: float | None = None, beta: float | None = None, base: float | None = None, bounded: bool | None = None,
        scale: float | None = None, margin: float | None = None, neg_margin: float | None = None,
        bins: int | None = None, **pml: Unpack[PMLArguments],
    ) -> None:  # fmt: skip
        check_choice(weighting, WEIGHTINGS, "weighting")
        if mining is not None:
            check_in_range(mining, 0, float("inf"), "mining")
        super().__init__(**pml)
        if not is_similarity(self.distance):
            raise TypeError(
                "PairWeightingLoss needs a similarity, such as CosineSimilarity(): its weightings are defined on "
                f"similarities; got {describe_distance(self.distance)}"
            )
        self.weighting = weighting
        self.mining = mining
        self.alpha = alpha
        self.beta = beta
        self.base = base
        self.bounded = bounded
        self.scale = scale
        self.margin = margin
        self.neg_margin = neg_margin
        self.bins = bins
        known = argument_names(WEIGHTINGS[weighting])[3:]
        if unknown := [name for name in self.options if name not in known]:
            accepted = ", ".join(known) or "no option"
            raise TypeError(f"weighting {weighting!r} accepts {accepted}; got {', '.join(unknown)}")
        pair = torch.zeros(1, 1, device="cpu")
        self.weights(pair, pair > 0, pair > 0)  # rejects values out of range
        self._record("weighting", "mining")

    @property
    def labels_because(self) -> str:  # type: ignore[override]
        return "" if self.mining is None else "Only an indices_tuple without mining replaces them"

    @property
    def options(self) -> dict[str, Any]:
        """The options of the weighting's function that are not None."""
        values = {name: getattr(self, name) for name in _OPTIONS}
        return {name: value for name, value in values.items() if value is not None}

    def weights(self, similarity: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        """Returns the (B, R) weights w of a similarity matrix and its pair masks, without mining or gradient."""
        with torch.no_grad():
            weights: Tensor = WEIGHTINGS[self.weighting](similarity, positive, negative, **self.options)
        return weights

    def compute_loss(
        self, embeddings: Tensor, labels: Labels, indices_tuple: Tuples | None, ref_emb: Reference, ref_labels: Labels
    ) -> Terms:
        similarity = self.distance(embeddings, ref_emb)
        positive, negative = pair_masks(similarity, labels, ref_labels, indices_tuple)
        if indices_tuple is None and lacks_pairs(labels, ref_labels, None):
            return self._no_terms("this batch has no positive or no negative pair")
        if self.mining is not None:
            assert labels is not None
            copies = copies_in_reference(embeddings, labels, indices_tuple, ref_emb, ref_labels)
            pairs = same_and_different(labels, ref_labels, copies, device=similarity.device)
            kept = multi_similarity_mining(similarity.detach(), *pairs, self.mining)
            positive, negative = positive & kept[0], negative & kept[1]

        def weigh(similarity: Tensor) -> Tensor:
            weights = WEIGHTINGS[self.weighting](similarity, positive, negative, **self.options)
            return torch.addcmul(weights, weights, positive, value=-2)

        losses = weighted_sums(similarity, weigh)
        return {"loss": term(losses, torch.arange(len(losses), device=losses.device))}


class LiftedHingeLoss(EmbeddingLoss):
    r"""Lifted hinge loss: a margin between each positive pair and the negative that is nearest to either sample.

    $$L = \frac{1}{|P|} \sum_{(i,j) ∈ P} \max(0, d_{ij} + m - \min_n \min(d_{in}, d_{jn}))$$

    P are the positive pairs, m is the margin, n runs over the negatives.

    With ref_emb, j and n are in ref_emb, and the distances within it are computed in blocks.

    Inside LoOp, of a pair that is an arc the minimum is the distance between this arc and the nearest other one; with
    ref_emb, only arcs through i count.

    Args:
        margin: >= 0, in the measure of the distance.
        positives: "all" uses every pair of a class. "consecutive" uses the 1st and 2nd sample of a class, the 3rd and
            4th, …, in batch order, as LoOp with positives="arc" does.
        **pml: distance (any; LpDistance, on normalised embeddings, is the default), reducer (MeanReducer, over the
            pairs), embedding_regularizer, embedding_reg_weight, collect_stats.
            An indices_tuple restricts the loss to its positive and negative pairs.
    Raises:
        ValueError: a negative margin, an unknown `positives`, neither labels nor indices_tuple, or ref_emb with
            positives="consecutive".
    Source: Vasudeva et al., "LoOp", ICCV 2021, eq. 16. Paper: consecutive pairs, no margin stated; here: also all.
        Song et al.'s lifted structure, with a square and a log-sum-exp, is PML's LiftedStructureLoss.

    >>> import torch
    >>> x, labels = torch.eye(4) + 0.1, torch.tensor([0, 0, 1, 1])
    >>> round(float(LiftedHingeLoss(margin=0.2)(x, labels)), 3)  # all distances are equal
    0.2
    """

    def __init__(self, *, margin: float = 0.2, positives: str = "all", **pml: Unpack[PMLArguments]) -> None:
        check_in_range(margin, 0, float("inf"), "margin")
        check_choice(positives, ("consecutive", "all"), "positives")
        super().__init__(**pml)
        self.margin = margin
        self.positives = positives
        self._record("margin")

    def compute_loss(
        self, embeddings: Tensor, labels: Labels, indices_tuple: Tuples | None, ref_emb: Reference, ref_labels: Labels
    ) -> Terms:
        with_itself = ref_emb is None
        matrix = self.distance(embeddings, ref_emb)
        positive, negative = pair_masks(matrix, labels, ref_labels, indices_tuple)
        if self.positives == "consecutive":
            anchors, positives = consecutive_among(positive, labels, with_itself=with_itself)
        else:
            anchors, positives = positive.nonzero(as_tuple=True)
        if len(anchors) == 0 or lacks_pairs(labels, ref_labels, indices_tuple):
            return self._no_terms("this batch has no positive or no negative pair", indices_tuple)
        distances = -matrix if is_similarity(self.distance) else matrix
        nearest = nearest_negatives(distances, negative)
        ref_nearest = nearest if ref_emb is None else self._nearest_in_reference(ref_emb, positive, negative)
        losses = hinges_of_pairs(distances, anchors, positives, nearest, ref_nearest, self.margin)
        return {"loss": term(losses, (anchors, positives))}

    def _nearest_in_reference(self, ref_emb: Tensor, positive: Tensor, negative: Tensor) -> Tensor | None:
        """Returns the (R,) distance of each positive in ref_emb to the nearest negative of its anchors, in blocks."""
        if isinstance(self.distance, InjectedDistance):  # has no distances within ref_emb
            return None
        sign = -1 if is_similarity(self.distance) else 1
        nearest = ref_emb.new_full(ref_emb.shape[:1], torch.inf)
        used = positive.any(dim=0).nonzero().squeeze(1)
        for block in row_blocks(len(used), len(ref_emb), ref_emb.device):
            rows = used[block]
            is_negative = positive[:, rows].T.to(ref_emb.dtype) @ negative.to(ref_emb.dtype) > 0
            distances = sign * self.distance(ref_emb[rows], ref_emb)
            nearest = nearest.index_copy(0, rows, nearest_negatives(distances, is_negative))
        return nearest
