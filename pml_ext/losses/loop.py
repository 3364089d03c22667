"""LoOp: hard negatives from the closest points of arcs between samples, for another loss."""

from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from pml_ext._ops.custom_gradient import no_autocast
from pml_ext._pml import BaseMetricLossFunction, MeanReducer
from pml_ext._shared.checks import check_choice, warn_once
from pml_ext.functional.loop.partners import GEOMETRIES, PAIRINGS, Curve, Pairing, consecutive_pairs
from pml_ext.functional.tuples import Tuples, count_pairs, same_and_different
from pml_ext.losses._base import OurLoss, Reference, SettingsOfTheWrapped, labels_for, naming_reducer
from pml_ext.losses._facts import check_tuple_loss, facts_of, loss_by_name
from pml_ext.losses.injected_distance import inject, run_with_distance
from pml_ext.losses.loop_distance import check_loop_distance, loop_matrix


class ArcPairReducer(MeanReducer):
    r"""Sums triplet losses over the negative arcs and averages over the positive pairs; for LoOp.

    $$L = \frac{1}{|P|} \sum_{(i,j) ∈ P} \sum_A ℓ(i, j, A)$$

    P are the positive pairs, A runs over the negative arcs, ℓ is the triplet loss.

    Use it with positives="arc" and without ref_emb: (i, j) and (j, i) count as one positive pair.

    Two arcs, through samples i, j and k, l, give four triplets with the same loss: i or j is the anchor, k or l the
    negative. They count once. A sample without a partner is an arc of length 0, in two triplets; it counts half as a
    negative. A mean over triplets (MeanReducer) is smaller by a factor, the number of negative arcs: 14 for batches of
    8 classes × 4 samples.

    Source: Vasudeva et al., "LoOp", ICCV 2021, eq. 15.

    >>> import torch
    >>> from pml_ext.losses import LoOp, TripletMarginLoss
    >>> x, labels = torch.eye(6) + 0.1, torch.tensor([0, 0, 1, 1, 2, 2])
    >>> for reducer in (MeanReducer(), ArcPairReducer()):
    ...     print(round(float(LoOp(TripletMarginLoss(reducer=reducer))(x, labels)), 3))
    0.163
    0.326
    """

    def triplet_reduction(self, losses: Tensor, indices: tuple[Tensor, Tensor, Tensor], *_: object) -> Tensor:
        ends = torch.stack(indices[:2]).sort(dim=0).values
        count = int(ends.unique(dim=1).shape[1])
        return losses.sum() / (4 * count)


class LoOp(SettingsOfTheWrapped, OurLoss):
    r"""Looking for optimal hard negatives (LoOp): a tuple loss on the closest points of arcs between samples.

    $$d_{\text{LoOp}}(x_i, x_k) = \min_{p ∈ A_{ij}, q ∈ A_{kl}} d(p, q)$$

    A sample x_i and its partner x_j of the same class span an arc A_ij on the sphere. The distance of a negative pair
    (i, k) becomes the smallest distance between the arcs of its two samples. Positive distances do not change, except
    that they are computed from cosines, with an error of about the root of the precision near 0, as torch.cdist has for
    more than 25 rows. The wrapped loss receives both in the measure of its distance.

    Args:
        loss: a loss of PML or this package that computes its pairs by `self.distance`: cosine similarity, or
            LpDistance(p=2) with power 1 or 2. It keeps its reducer, regularizer, parameters and statistics. Pass an
            object, or the name of a loss with default options, such as "TripletMarginLoss".
        pairing: "consecutive" joins the 1st and 2nd sample of a class, the 3rd and 4th, …, in batch order. "all" joins
            every pair of a class; of the arcs through a sample the closest one counts. A sample without a partner is
            an arc of length 0. In PML's DistributedLossWrapper each rank's own samples come first, so the arcs are the
            same on all ranks if each rank has an even number of samples of every class. Otherwise use "all".
        geometry: "arc" for distances that normalise, "segment" (straight, in the space itself) for those that do not.
        positives: "all" uses the same positives as without LoOp, so that only the negatives change. "arc", the paper's
            choice, uses only positive pairs that are joined by an arc. It drops a miner's other tuples, and warns once
            with their number. Both are equal for two samples per class, for pairing="all", and with ref_emb.
    Attributes:
        distance, reducer, embedding_regularizer, embedding_reg_weight: those of the wrapped loss, also when set.
    Raises:
        TypeError: a loss with class weights, a loss that does not compare pairs, a loss that always uses all positives
            with positives="arc", a distance without a LoOp form, or an unknown argument.
        ValueError: no labels. An indices_tuple is not enough, because arcs join samples of a class.
        RuntimeError: second derivatives (a gradient penalty on the embeddings).
    Source: Vasudeva et al., "LoOp: Looking for Optimal Hard Negative Embeddings", ICCV 2021, algorithm 1; eq. 15 is
        LoOp(TripletMarginLoss(reducer=ArcPairReducer()), positives="arc"), eq. 16 LoOp(LiftedHingeLoss(),
        positives="arc"). Paper: consecutive pairs, an even number of samples per class; here: any number, and
        `pairing="all"`. Paper: algorithm 1 forms its tuples from the arcs, a third of the positive pairs with four
        samples per class, and mining for the multi-similarity loss keeps its positives; here: all positives, unless
        positives="arc".
        Paper: with the multi-similarity loss only negative mining uses the arcs, as in LoOpMiner; here:
        LoOp(MultiSimilarityLoss()) also uses them for its weights.

    >>> from pml_ext.losses import TripletMarginLoss
    >>> x, labels = torch.eye(4) + 0.1, torch.tensor([0, 0, 1, 1])
    >>> [round(float(loss(x, labels)), 3) for loss in (TripletMarginLoss(), LoOp(TripletMarginLoss()))]
    [0.05, 0.158]
    """

    labels_because = "LoOp needs labels: its arcs join samples of a class"

    if TYPE_CHECKING:  # a type checker finds nn.Module's first, because it does not know PML's classes
        __call__ = OurLoss.forward

    def __init__(
        self, loss: BaseMetricLossFunction | str, *, pairing: Pairing = "consecutive",
        geometry: Curve = "arc", positives: Literal["all", "arc"] = "all",
    ) -> None:  # fmt: skip
        check_choice(pairing, PAIRINGS, "pairing")
        check_choice(geometry, GEOMETRIES, "geometry")
        check_choice(positives, ("all", "arc"), "positives")
        loss = loss_by_name(loss)
        around = f"put LoOp around that one: {type(loss).__name__}(LoOp(...))"
        nested = "the distances are replaced already" if isinstance(loss, LoOp) else around
        check_tuple_loss(loss, cannot="LoOp cannot wrap", nested=nested)
        if facts_of(type(loss)).takes_all_positives and positives == "arc" and pairing == "consecutive":
            raise TypeError(
                f"LoOp cannot wrap {type(loss).__name__} with positives='arc': it uses all positives of a sample"
            )
        check_loop_distance(loss.distance, geometry)
        super().__init__(distance=loss.distance)
        self.pairing = pairing
        self.geometry = geometry
        self.positives = positives
        self._wrap(loss)

    def value_of_nothing(self, embeddings: Tensor) -> Tensor:
        """Returns the wrapped loss of an empty batch, (0, D)."""
        loss = self.loss
        value: Tensor
        if isinstance(loss, OurLoss):
            value = loss.value_of_nothing(embeddings)
        else:
            value = loss.reducer(loss.zero_losses(), embeddings, None)
        return value

    def compute_value(
        self, embeddings: Tensor, labels: Any, indices_tuple: Tuples | None, ref_emb: Reference, ref_labels: Any
    ) -> Tensor:
        """Returns the wrapped loss on LoOp's distances; negatives and their arcs are those of ref_emb."""
        distance = self.distance
        check_loop_distance(distance, self.geometry)  # may have changed
        ref_labels = None if ref_labels is None else ref_labels.cpu()  # determine the arcs, with the labels
        is_mined = indices_tuple is not None
        with no_autocast(embeddings.device):
            matrix, is_negative = loop_matrix(
                distance, embeddings, labels, ref_emb, ref_labels, pairing=self.pairing, geometry=self.geometry
            )
            positives, negatives = count_pairs(labels, ref_labels)
            is_tied = self.positives == "arc" and self.pairing == "consecutive" and ref_emb is None
            if is_tied and negatives and positives:
                indices_tuple = self._tuples_on_arcs(labels, indices_tuple, is_negative)
            points = (embeddings, embeddings if ref_emb is None else ref_emb)
            injected = inject(distance, matrix, points=points, two_sets=ref_emb is not None)
            ids, ref_ids = (labels_for(self.loss, each, embeddings) for each in (labels, ref_labels))
            with naming_reducer(self.loss, KeyError, NotImplementedError):
                value: Tensor = run_with_distance(self.loss, injected, embeddings, ids, indices_tuple, ref_emb, ref_ids)
        if not negatives or not positives:
            warn_once(
                self,
                "LoOp: this batch has %d positive and %d negative pairs, and LoOp needs both; the wrapped loss is "
                "computed without LoOp",
                positives,
                negatives,
            )
        elif not injected.was_read and not is_mined and _has_triplet(labels, ref_labels):
            raise TypeError(
                f"{type(self.loss).__name__} did not call self.distance(embeddings, ref_emb), so LoOp cannot reach "
                "its pairs"
            )
        # PML's reducers skip nan, as they count only losses above 0: the loss would be finite with NaN gradients.
        # The largest component tells, as a sum of finite ones could be infinite.
        if not isinstance(value, Tensor):
            return value
        with torch.no_grad():
            largest = torch.linalg.vector_norm(embeddings, torch.inf)
        return torch.add(value, largest, alpha=0)

    def _tuples_on_arcs(self, labels: Tensor, indices_tuple: Tuples | None, is_negative: Tensor) -> tuple[Tensor, ...]:
        """Returns the tuples whose positive pair is joined by an arc: those of indices_tuple, or all."""
        device = is_negative.device
        ends = consecutive_pairs(labels)
        anchors, positives = (index.to(device, non_blocking=True) for index in ends)
        if indices_tuple is not None:
            partner = torch.full((len(labels),), -1, device=device).scatter_(0, anchors, positives)
            on_arc = partner[indices_tuple[0]] == indices_tuple[1]
            used, kind = int(on_arc.sum()), "triplets" if len(indices_tuple) == 3 else "positive pairs"
            if used < len(on_arc):
                warn_once(
                    self,
                    f"LoOp(positives='arc') used %d of %d {kind} of the indices_tuple: those whose positive pair is an "
                    "arc, that is, consecutive samples of a class. Omit positives to use all",
                    used,
                    len(on_arc),
                )
            count = 3 if len(indices_tuple) == 3 else 2
            return *(part[on_arc] for part in indices_tuple[:count]), *indices_tuple[count:]
        if not facts_of(type(self.loss)).makes_triplets:
            return anchors, positives, *_every_negative(is_negative, labels, labels)
        per_anchor: Any = getattr(self.loss, "triplets_per_anchor", "all")
        candidates = is_negative[anchors]
        if per_anchor == "all":
            rows, negatives = _every_negative(candidates, labels[ends[0]], labels)
            return anchors[rows], positives[rows], negatives
        drawn = torch.multinomial(candidates.float(), per_anchor, replacement=True).view(-1)
        return anchors.repeat_interleave(per_anchor), positives.repeat_interleave(per_anchor), drawn


def _every_negative(candidates: Tensor, labels: Tensor, ref_labels: Tensor) -> tuple[Tensor, ...]:
    """Returns row and column of each negative pair; candidates: its (A, B) mask, whose rows and columns have labels."""
    if candidates.device.type in ("cpu", "mps"):  # three times as fast on the CPU; MPS lacks nonzero_static
        return candidates.nonzero(as_tuple=True)
    _, count = count_pairs(labels, ref_labels)
    return candidates.nonzero_static(size=count).unbind(1)  # nonzero would wait for the GPU


def _has_triplet(labels: Tensor, ref_labels: Tensor | None) -> bool:
    """Whether any sample has both a positive and a negative; otherwise a loss may not need any distance."""
    same, different = same_and_different(labels, ref_labels)
    return bool((same.any(1) & different.any(1)).any())
