"""LoOp's own way to reduce its triplet loss."""

import torch
from torch import Tensor

from pml_ext._pml import MeanReducer


class ArcPairReducer(MeanReducer):
    """The sum over the negative arcs, the mean over the positive pairs; for triplets only, of LoOp(TripletMarginLoss).

    The batch is compared with itself: with a ref_emb, (i, j) and (j, i) are not one pair, as they are here.

    Every two arcs, of samples i, j and k, l, are four triplets of the same loss: i or j is the anchor, k or l the
    negative. They count once. A left-over sample, its own arc, is in two of them and counts half as a negative.
    A mean over the triplets (MeanReducer) is smaller by the number of negative arcs, 14 for batches of 8 classes × 4.

    Source: Vasudeva et al., "LoOp", ICCV 2021, eq. 15.

    >>> import torch
    >>> from pml_ext.losses import LoOp, TripletMarginLoss
    >>> x, labels = torch.eye(6) + 0.1, torch.tensor([0, 0, 1, 1, 2, 2])
    >>> [round(float(LoOp(TripletMarginLoss(reducer=r))(x, labels)), 3) for r in (MeanReducer(), ArcPairReducer())]
    [0.163, 0.326]
    """

    def triplet_reduction(self, losses: Tensor, indices: tuple[Tensor, Tensor, Tensor], *_: object) -> Tensor:
        ends = torch.stack(indices[:2]).sort(dim=0).values
        count = int(ends.unique(dim=1).shape[1])
        return losses.sum() / (4 * count)
