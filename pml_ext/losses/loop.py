"""LoOp: a tuple loss on the closest points of arcs between samples of two classes."""

from typing import Any

import torch
from torch import Tensor

from pml_ext._checks import check_choice, check_embeddings, check_labels, warn_once
from pml_ext._pml import BaseMetricLossFunction
from pml_ext.distances.injected import inject, run_with_distance
from pml_ext.distances.loop import check_loop_distance, loop_matrix
from pml_ext.losses._base import OF_THE_WRAPPED, at_least_float32, refuse_unknown
from pml_ext.losses._tuple_loss import check_tuple_loss


class LoOp(BaseMetricLossFunction):
    """Runs a tuple loss with the negative distances replaced by those of the closest points of two arcs.

    A sample and its partner of the same class span an arc on the sphere; the distance of a negative pair becomes the
    smallest distance between the arcs of the two. Positive distances stay. The loss sees it in its own measure.

    Args:
        loss: a PML loss (or one of ours) that reads its pairs through `self.distance`: cosine similarity, or
            LpDistance(p=2) with power 1 or 2. It keeps its reducer, regularizer, parameters and statistics.
        pairing: "consecutive" (the 1st and 2nd sample of a class, the 3rd and 4th, …, in batch order) or "all"
            (every pair of a class; the closest of the arcs through the two samples counts). A sample left over is
            its own arc.
        geometry: "arc" for distances that normalise, "segment" (straight, in the space itself) for those that do not.
    Raises:
        TypeError: a loss with class weights, one that does not read pairs, a distance without a LoOp form, or
            an unknown argument.
        ValueError: no labels: the arcs are inside classes, so indices_tuple alone does not do.
    Source: Vasudeva et al., "LoOp: Looking for Optimal Hard Negative Embeddings", ICCV 2021, eqs. 15 and 16.
        Paper: consecutive pairs, an even count a class; here: any count, and `pairing="all"`.

    >>> from pml_ext.losses import TripletMarginLoss
    >>> x, labels = torch.eye(4) + 0.1, torch.tensor([0, 0, 1, 1])
    >>> [round(float(loss(x, labels)), 3) for loss in (TripletMarginLoss(), LoOp(TripletMarginLoss()))]
    [0.05, 0.158]
    """

    def __init__(
        self, loss: BaseMetricLossFunction, *, pairing: str = "consecutive", geometry: str = "arc", **unknown: Any
    ) -> None:
        refuse_unknown(type(self), unknown, OF_THE_WRAPPED)
        check_choice(pairing, ("consecutive", "all"), "pairing")
        check_choice(geometry, ("arc", "segment"), "geometry")
        around = f"put LoOp around that one: {type(loss).__name__}(LoOp(...))"
        nested = "the distances are replaced already" if isinstance(loss, LoOp) else around
        check_tuple_loss(loss, cannot="LoOp cannot wrap", nested=nested)
        check_loop_distance(loss.distance, geometry)
        super().__init__(distance=loss.distance)
        self.reducer = loss.reducer
        self.loss = loss
        self.pairing = pairing
        self.geometry = geometry

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor | None = None,
        indices_tuple: tuple[Tensor, ...] | None = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
    ) -> Tensor:
        """What the wrapped loss makes of the batch.

        Args:
            embeddings: (B, D), need not be normalised; 16-bit floats are computed in float32.
            labels: (B,) integer class ids.
            indices_tuple: a miner's pairs or triplets, handed on.
            ref_emb, ref_labels: (R, D) and (R,): negatives are from here, and so are their arcs.
        """
        check_embeddings(embeddings)
        if labels is None or (ref_emb is not None and ref_labels is None):
            raise ValueError("LoOp needs labels (and ref_labels beside ref_emb): its arcs lie inside the classes")
        check_labels(labels, len(embeddings))
        labels = labels.to(embeddings.device)
        embeddings = at_least_float32(embeddings)
        if ref_emb is not None and ref_labels is not None:
            check_embeddings(ref_emb, "ref_emb")
            check_labels(ref_labels, len(ref_emb), "ref_labels")
            ref_emb, ref_labels = at_least_float32(ref_emb), ref_labels.to(ref_emb.device)
        with torch.autocast(embeddings.device.type, enabled=False):
            matrix, is_negative = loop_matrix(
                self.distance, embeddings, labels, ref_emb, ref_labels, pairing=self.pairing, geometry=self.geometry
            )
            points = (embeddings, embeddings if ref_emb is None else ref_emb)
            injected = inject(self.distance, matrix, points=points, two_sets=ref_emb is not None)
            value: Tensor = run_with_distance(
                self.loss, injected, embeddings, labels, indices_tuple, ref_emb, ref_labels
            )
        negatives = int(is_negative.count_nonzero())
        positives = is_negative.numel() - negatives - (len(labels) if ref_emb is None else 0)
        if not negatives or not positives:
            warn_once(
                self,
                f"LoOp: a batch with {positives} positive and {negatives} negative pairs has nothing to replace or "
                "nothing to put there; the wrapped loss is as it is without LoOp",
            )
        elif indices_tuple is None and not injected.was_read:
            raise TypeError(
                f"{type(self.loss).__name__} did not call self.distance(embeddings, ref_emb), so LoOp cannot reach "
                "its pairs"
            )
        return value
