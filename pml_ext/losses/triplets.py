"""Triplet losses with one triplet per sample: CentroidTripletLoss and HPHNTripletLoss."""

from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import softplus
from typing_extensions import Unpack

from pml_ext._pml import BaseDistance, LpDistance, is_similarity, normalized, term
from pml_ext._shared.checks import check_choice, check_in_range, check_switch
from pml_ext.functional.losses.hinges import nearest_negatives
from pml_ext.functional.tuples import Tuples, hardest_of_pairs, hardest_triplets, pairs_of, same_and_different
from pml_ext.losses._base import NO_TRIPLET, EmbeddingLoss, Labels, PMLArguments, Reference, Terms
from pml_ext.losses._facts import LossFacts
from pml_ext.losses._pairs import consecutive_among, lacks_pairs, pair_masks
from pml_ext.losses.injected_distance import InjectedDistance


class CentroidTripletLoss(EmbeddingLoss):
    r"""Centroid triplet loss: each sample is compared with class means instead of samples.

    $$L_x = \max(0, d(x, c_{pos}) - d(x, c_{neg}) + m)$$

    m is the margin. A centroid c is the mean embedding of a class in the batch, or in ref_emb. Embeddings are
    normalised before averaging if the distance normalises and unit_means is True. c_pos excludes the sample itself,
    unless there is a ref_emb. A sample that is alone in its class has no loss.

    With an indices_tuple, c_pos is the mean of the sample's mined positives, and the other centroids are those of the
    classes of its mined negatives. Labels are still needed.

    LoOp and other wrappers that replace pair distances cannot wrap this loss, because it does not compare samples.

    Args:
        margin: >= 0, in the measure of the distance.
        swap: use the smaller of d(x, c_neg) and d(c_pos, c_neg).
        smooth_loss: use log(1 + e^…) instead of relu.
        unit_means: average unit vectors if the distance normalises. False averages the raw embeddings, so that long
            ones count more.
        negatives: "hardest" uses the nearest centroid of another class; "all" uses each of them as a triplet.
        **pml: distance (any), reducer (MeanReducer), embedding_regularizer, embedding_reg_weight, collect_stats.
            A reducer receives the loss of each (sample, other class), indexed by sample.
    Raises:
        ValueError: a negative margin, an unknown `negatives`, no labels.
    Source: Wieczorek et al., "On the Unreasonable Effectiveness of Centroids in Image Retrieval", 2021, section 3.
        Paper: squared Euclidean distances, one centroid of another class; here: LpDistance(power=2) by default, and
        the nearest centroid, as in the authors' code (which also mines among the samples of its fold, margin 0.5).
        Paper: raw embeddings; here: normalised by the default distance, as everywhere in PML. The paper's distance is
        LpDistance(power=2, normalize_embeddings=False).
        Paper: in each fold every class leaves a sample out; here: only the sample's class does.
        PML up to 1.7.3 had this loss with margin 0.05. With equal class sizes it is CentroidTripletLoss(0.05,
        negatives="all", unit_means=False, distance=LpDistance(), reducer=AvgNonZeroReducer()). In batches of five or
        more classes, PML compared each sample with only three other classes.

    >>> x, labels = torch.tensor([[1, 0.0], [0.6, 0.8], [0, 1], [-0.6, 0.8]]), torch.tensor([0, 0, 1, 1])
    >>> round(CentroidTripletLoss(margin=0.5)(x, labels).item(), 3)
    0.11
    """

    facts = LossFacts(reads_distance=False)
    default_distance = staticmethod(partial(LpDistance, power=2, normalize_embeddings=True))
    labels_because = "Centroids are class means, so an indices_tuple does not replace them"

    def __init__(
        self, margin: float = 0.5, swap: bool = False, smooth_loss: bool = False, *, negatives: str = "hardest",
        unit_means: bool = True, **pml: Unpack[PMLArguments],
    ) -> None:  # fmt: skip
        check_in_range(margin, 0, float("inf"), "margin")
        check_choice(negatives, ("hardest", "all"), "negatives")
        check_switch(swap, "swap")
        check_switch(smooth_loss, "smooth_loss")
        check_switch(unit_means, "unit_means")
        super().__init__(**pml)
        self.margin = margin
        self.swap = swap
        self.smooth_loss = smooth_loss
        self.negatives = negatives
        self.unit_means = unit_means
        self._record("margin")

    def compute_loss(
        self, embeddings: Tensor, labels: Tensor, indices_tuple: Tuples | None, ref_emb: Reference, ref_labels: Labels
    ) -> Terms:
        points = normalized(self.distance, embeddings)
        ref_points, averaged = points, embeddings
        if ref_emb is not None:
            ref_points, averaged = normalized(self.distance, ref_emb), ref_emb
        if self.unit_means:
            averaged = ref_points
        known, classes, sizes = torch.unique(
            labels if ref_labels is None else ref_labels.cpu(), return_inverse=True, return_counts=True
        )
        is_positive = labels[:, None] == known
        in_class = is_positive if ref_labels is None else known[classes, None] == known
        num_own = (is_positive * sizes).sum(dim=1) - int(ref_emb is None)
        anchors = ((num_own > 0) & (len(known) > 1)).nonzero().squeeze(1)
        tables = (is_positive, num_own, in_class, classes, sizes, anchors)
        is_positive, num_own, in_class, classes, sizes, anchors = (
            each.to(points.device, non_blocking=True) for each in tables
        )
        sums = in_class.to(averaged.dtype).T @ averaged
        centroids = sums / sizes[:, None]
        is_excluded = is_positive
        if indices_tuple is not None:
            a1, p, a2, n = pairs_of(indices_tuple)
            mined = points.new_zeros(len(points), len(ref_points))
            mined[a1, p] = 1
            num_own = mined.sum(dim=1)
            positive = mined @ averaged / num_own.clamp(min=1)[:, None]
            is_excluded = torch.ones_like(is_positive)
            is_excluded[a2, classes[n]] = False
            anchors = ((num_own > 0) & ~is_excluded.all(dim=1)).nonzero().squeeze(1)
        elif ref_emb is None:  # the class without the sample itself
            positive = (sums[classes] - averaged) / num_own.clamp(min=1)[:, None]
        else:
            positive = centroids[is_positive.int().argmax(dim=1)]
        if len(anchors) == 0:
            return self._no_terms(
                "this batch has no sample with both another one of its class and another class", indices_tuple
            )
        if len(anchors) < len(points):
            points, positive, is_excluded = points[anchors], positive[anchors], is_excluded[anchors]
        return self._losses(points, positive, centroids, is_excluded, anchors)

    def _losses(
        self, points: Tensor, positive: Tensor, centroids: Tensor, is_excluded: Tensor, anchors: Tensor
    ) -> Terms:
        to_positive = row_distances(self.distance, points, positive)
        to_others = self.distance(points, centroids)
        between = self.distance(positive, centroids) if self.swap else to_others
        if is_similarity(self.distance):  # less is nearer
            to_positive, to_others, between = -to_positive, -to_others, -between
        if self.swap:
            to_others = torch.minimum(to_others, between)
        if self.negatives == "hardest":
            to_others = to_others.masked_fill(is_excluded, torch.inf).min(dim=1)[0]
        else:
            rows, columns = (~is_excluded).nonzero(as_tuple=True)
            to_positive, to_others, anchors = to_positive[rows], to_others[rows, columns], anchors[rows]
        violations = to_positive - to_others + self.margin
        losses = softplus(violations) if self.smooth_loss else torch.relu(violations)
        return {"loss": term(losses, anchors)}


def row_distances(distance: BaseDistance, x: Tensor, others: Tensor) -> Tensor:
    """Returns the (N,) distances between rows of x, normalised, and of others; exact for close rows by LpDistance."""
    if type(distance) is not LpDistance:
        diagonal: Tensor = distance(x, others).diagonal()
        return diagonal
    offsets = x - normalized(distance, others)
    if distance.p == distance.power == 2:
        return offsets.square().sum(dim=1)
    lengths: Tensor = torch.linalg.vector_norm(offsets, ord=distance.p, dim=1)
    return lengths if distance.power == 1 else lengths**distance.power


class HPHNTripletLoss(EmbeddingLoss):
    r"""Hard-positive hard-negative (HPHN) triplet loss: the farthest positive and the nearest negative of a sample.

    $$L = \frac{1}{B} \sum_a \max(0, d_{ap} - \min_n \min(d_{an}, d_{pn}) + m)$$

    p is the positive that is farthest from a, n runs over the negatives, m is the margin. If the nearest negative is
    closer to p than to a, p is the triplet's anchor. With ref_emb, p and n are in ref_emb, and the distances of each p
    to ref_emb are computed, too.

    HPHNMiner selects the same triplets without ref_emb. LoOp(HPHNTripletLoss()) measures the negatives between arcs;
    with ref_emb, only negatives of a count.

    Args:
        margin: >= 0, in the measure of the distance.
        positives: "farthest" pairs each sample with its farthest positive. "consecutive" pairs the 1st and 2nd sample
            of a class, the 3rd and 4th, …, in batch order; d_ap is then the largest distance of either sample to one of
            their class. Both are equal for classes of two.
        **pml: distance (any; LpDistance, on normalised embeddings, is the default), reducer (MeanReducer, over all
            triplets, including those of loss 0, which PML's TripletMarginLoss excludes), embedding_regularizer,
            embedding_reg_weight, collect_stats.
            An indices_tuple restricts the loss to its pairs: the hardest ones are chosen among them, or, for
            "consecutive", its positive pairs are averaged.
    Raises:
        ValueError: a negative margin, an unknown `positives`, neither labels nor indices_tuple, or ref_emb with
            positives="consecutive".
    Source: HPHN in Xuan et al., "Improved Embeddings with Easy Positive Triplet Mining", WACV 2020, and per positive
        pair in Vasudeva et al., "LoOp", ICCV 2021. Paper: in LoOp the pairs are consecutive samples of a class, as with
        positives="consecutive", and the margin is not stated; here: also each sample and its farthest positive, the
        default, and margin 0.2.
        Xuan et al. use the nearest negative of the anchor only: that is PML's TripletMarginLoss with BatchHardMiner.

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

    def compute_loss(
        self, embeddings: Tensor, labels: Labels, indices_tuple: Tuples | None, ref_emb: Reference, ref_labels: Labels
    ) -> Terms:
        with_itself = ref_emb is None
        matrix = self.distance(embeddings, ref_emb)
        sign = -1 if is_similarity(self.distance) else 1
        distances = sign * matrix
        positive, negative = pair_masks(matrix, labels, ref_labels, indices_tuple)
        if self.positives == "consecutive":
            i, j = consecutive_among(positive, labels, with_itself=with_itself)
            assert labels is not None
            has_negative = negative.any(dim=1)
            kept = has_negative[i] | has_negative[j]  # a miner may have selected none
            i, j = i[kept], j[kept]
            same, _ = same_and_different(labels, device=matrix.device)
            a, p, b, n = hardest_of_pairs(distances, same, negative, i, j)
            tuples: tuple[Tensor, ...] = (i, j)
        else:
            tuples = a, p, n = hardest_triplets(distances, positive, negative, among_themselves=with_itself)
            b = a
        if len(a) == 0 or lacks_pairs(labels, ref_labels, indices_tuple):
            return self._no_terms(NO_TRIPLET, indices_tuple)
        to_negative = matrix[b, n]
        if ref_emb is not None and not isinstance(self.distance, InjectedDistance):  # has none within ref_emb
            nearest = nearest_negatives(sign * self.distance(ref_emb[p], ref_emb), negative[a])
            to_negative = sign * torch.minimum(sign * to_negative, nearest)
        losses = torch.relu(self.distance.margin(matrix[a, p], to_negative) + self.margin)
        return {"loss": term(losses, tuples)}
