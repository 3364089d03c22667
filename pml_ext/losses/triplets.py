"""Losses of one triplet per sample: CentroidTripletLoss with class means, HPHNTripletLoss with the hardest."""

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus
from typing_extensions import Unpack

from pml_ext._checks import check_choice, check_in_range, check_switch
from pml_ext._pml import BaseDistance, LpDistance, is_similarity, normalized, term
from pml_ext.functional.tuples import hardest_of_pairs, hardest_triplets, pairs_of, same_and_different
from pml_ext.losses._base import NO_TRIPLET, EmbeddingLoss, PMLArguments, Terms
from pml_ext.losses._batch import Labels, Reference, Tuples
from pml_ext.losses._facts import LossFacts
from pml_ext.losses.pair_weighting import consecutive_among, pair_masks


def class_means(embeddings: Tensor, classes: Tensor, num_classes: int) -> Tensor:
    """(C, D) mean embedding of each class; classes: (N,) in [0, C), each at least once."""
    return _sums(embeddings, classes, num_classes) / class_counts(classes, num_classes)[:, None]


def means_of_others(embeddings: Tensor, classes: Tensor, num_classes: int) -> Tensor:
    """(N, D) leave-one-out class means, (sum − own)/(n − 1); the row of a sample alone in its class is meaningless."""
    others = (class_counts(classes, num_classes) - 1)[classes]
    return (_sums(embeddings, classes, num_classes)[classes] - embeddings) / others.clamp(min=1)[:, None]


def class_counts(classes: Tensor, num_classes: int) -> Tensor:
    """(C,) number of samples of each class. Unlike bincount it does not synchronise with the GPU."""
    return classes.new_zeros(num_classes).index_add_(0, classes, torch.ones_like(classes))


def _sums(embeddings: Tensor, classes: Tensor, num_classes: int) -> Tensor:
    return embeddings.new_zeros(num_classes, embeddings.shape[1]).index_add(0, classes, embeddings)


def _arguments(options: dict[str, Any], build: object) -> dict[str, Any]:
    own = {name: value for name, value in options.items() if name != "power"}
    return {**own, "distance": LpDistance(power=options["power"])}


class CentroidTripletLoss(EmbeddingLoss):
    """relu(d(x, own class's centroid) − d(x, another class's centroid) + margin) for each sample x of the batch.

    A centroid is the mean of the embeddings of a class in the batch (or in ref_emb), which are normalised before
    where the distance normalises (and unit_means is True); the distance then treats it as any embedding.
    The own class's centroid leaves the sample itself out; with ref_emb it is of the whole class there. A sample alone
    in its class is left out.
    An indices_tuple limits both: the own centroid is of the sample's mined positives, the other ones are of the
    classes (whole) that its mined negatives belong to. Labels are needed all the same.
    Not for LoOp, nor for another wrapper that replaces the distances of pairs: it compares no pairs of samples.

    Args:
        margin: >= 0, in the measure of the distance.
        swap: take the nearer one of d(x, other centroid) and d(own centroid, other centroid).
        smooth_loss: log(1 + e^…) in place of relu.
        unit_means: where the distance normalises, average unit vectors; False: the embeddings as they come, of which
            long ones then count more.
        negatives: "hardest", the nearest centroid of another class; or "all", every one of them, each a triplet.
        **pml: distance (any), reducer (MeanReducer), embedding_regularizer, embedding_reg_weight, collect_stats.
            A reducer gets the loss of each (sample, other class), by the sample.
    Raises:
        ValueError: a negative margin, an unknown name, no labels.
    Source: Wieczorek et al., "On the Unreasonable Effectiveness of Centroids in Image Retrieval", 2021, section 3.
        Paper: squared Euclidean distances, one centroid of another class; here: LpDistance(power=2) by default, and
        the nearest, as the authors' code mines it (there among the samples of its fold too, with margin 0.5).
        Paper: embeddings as they come; here: normalised by the default distance, as everywhere in PML;
        LpDistance(power=2, normalize_embeddings=False) is the paper's.
        Paper: in each of its folds all classes leave a sample out; here: only the own class does.
        PML up to 1.7.3 had this loss with margin 0.05. On classes of one size it is CentroidTripletLoss(0.05,
        negatives="all", unit_means=False, distance=LpDistance(), reducer=AvgNonZeroReducer()); in a batch of five
        classes or more PML compared each sample with three of the others only.

    >>> x, labels = torch.tensor([[1, 0.0], [0.6, 0.8], [0, 1], [-0.6, 0.8]]), torch.tensor([0, 0, 1, 1])
    >>> round(CentroidTripletLoss(margin=0.5)(x, labels).item(), 3)
    0.11
    """

    facts = LossFacts(reads_no_pairs="it compares samples with centroids, not with samples", arguments=_arguments)
    default_distance = staticmethod(partial(LpDistance, power=2, normalize_embeddings=True))
    labels_because = "Centroids are of classes, an indices_tuple does not replace them"

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

    def _terms(
        self, embeddings: Tensor, labels: Tensor, indices_tuple: Tuples | None, ref_emb: Reference, ref_labels: Labels
    ) -> Terms:
        points = normalized(self.distance, embeddings)
        ref_points, averaged = points, embeddings
        if ref_emb is not None:
            ref_points, averaged = normalized(self.distance, ref_emb), ref_emb
        if self.unit_means:
            averaged = ref_points
        known, classes = torch.unique(labels if ref_labels is None else ref_labels, return_inverse=True)
        centroids = class_means(averaged, classes, len(known))
        is_own = labels[:, None] == known[None, :]
        is_other = ~is_own
        if indices_tuple is not None:
            a1, p, a2, n = pairs_of(indices_tuple)
            mined = points.new_zeros(len(points), len(ref_points))
            mined[a1, p] = 1
            count = mined.sum(dim=1)
            own = mined @ averaged / count.clamp(min=1)[:, None]
            is_other = torch.zeros_like(is_own)
            is_other[a2, classes[n]] = True
        elif ref_emb is None:
            own = means_of_others(averaged, classes, len(known))
            count = class_counts(classes, len(known))[classes] - 1
        else:
            own, count = centroids[is_own.int().argmax(dim=1)], is_own.sum(dim=1)
        anchors = ((count > 0) & is_other.any(dim=1)).nonzero().squeeze(1)
        if len(anchors) == 0:
            return self._no_terms(
                "this batch has no sample with both another one of its class and another class", indices_tuple
            )
        return self._losses(points[anchors], own[anchors], centroids, is_other[anchors], anchors)

    def _losses(self, points: Tensor, own: Tensor, centroids: Tensor, is_other: Tensor, anchors: Tensor) -> Terms:
        sign = -1 if is_similarity(self.distance) else 1  # less is nearer
        to_own = sign * row_distances(self.distance, points, own)
        to_others = sign * self.distance(points, centroids)
        if self.swap:
            to_others = torch.minimum(to_others, sign * self.distance(own, centroids))
        if self.negatives == "hardest":
            to_others = to_others.masked_fill(~is_other, torch.inf).min(dim=1)[0]
        else:
            rows, columns = is_other.nonzero(as_tuple=True)
            to_own, to_others, anchors = to_own[rows], to_others[rows, columns], anchors[rows]
        violations = to_own - to_others + self.margin
        losses = softplus(violations) if self.smooth_loss else torch.relu(violations)
        return {"loss": term(losses, anchors)}


def row_distances(distance: BaseDistance, x: Tensor, others: Tensor) -> Tensor:
    """(N,) distances of each row of x from the same row of the others, in blocks of 25 rows.

    Up to 25 rows torch.cdist subtracts instead of multiplying, and so is exact for close rows.
    """
    blocks = zip(x.split(25), others.split(25), strict=True)
    return torch.cat([distance(some, those).diagonal() for some, those in blocks])


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
