"""The triplet loss of a sample and class centroids."""

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus
from typing_extensions import Unpack

from pml_ext._checks import check_choice, check_in_range, check_switch
from pml_ext._pml import BaseDistance, LpDistance, is_similarity, normalized, term
from pml_ext.functional.losses.centroid_triplet import class_counts, class_means, means_of_others
from pml_ext.functional.tuples import pairs_of
from pml_ext.losses._base import EmbeddingLoss, PMLArguments, Terms
from pml_ext.losses._batch import Labels, Reference, Tuples
from pml_ext.losses._facts import LossFacts


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
        triplets_per_anchor: "all"; here for trainers written for PML 1.7, which had this loss with these arguments.
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
        self, margin: float = 0.5, swap: bool = False, smooth_loss: bool = False, triplets_per_anchor: str = "all", *,
        negatives: str = "hardest", unit_means: bool = True, **pml: Unpack[PMLArguments],
    ) -> None:  # fmt: skip
        check_in_range(margin, 0, float("inf"), "margin")
        check_choice(triplets_per_anchor, ("all",), "triplets_per_anchor")
        check_choice(negatives, ("hardest", "all"), "negatives")
        check_switch(swap, "swap")
        check_switch(smooth_loss, "smooth_loss")
        check_switch(unit_means, "unit_means")
        super().__init__(**pml)
        self.margin = margin
        self.swap = swap
        self.smooth_loss = smooth_loss
        self.triplets_per_anchor = triplets_per_anchor
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


def row_distances(distance: BaseDistance, x: Tensor, others: Tensor, *, rows: int = 25) -> Tensor:
    """(N,) distances of each row of x from the same row of the others, `rows` at a time.

    Up to 25 rows torch.cdist subtracts instead of multiplying, and so is exact for close rows.
    """
    blocks = zip(x.split(rows), others.split(rows), strict=True)
    return torch.cat([distance(some, those).diagonal() for some, those in blocks])
