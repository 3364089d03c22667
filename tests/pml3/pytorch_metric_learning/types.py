from typing import NamedTuple

import torch
from torch import Tensor

INDICES = (torch.int64, torch.int32)


class PairIndices(NamedTuple):
    pos_anchors: Tensor
    positives: Tensor
    neg_anchors: Tensor
    negatives: Tensor


class TripletIndices(NamedTuple):
    anchors: Tensor
    positives: Tensor
    negatives: Tensor


def typed(indices):
    if not all(isinstance(part, Tensor) and part.dtype in INDICES and part.ndim == 1 for part in indices):
        raise TypeError("indices must be 1-D tensors of int64 or int32")
    return {3: TripletIndices, 4: PairIndices}[len(indices)](*indices)


def every_pair(labels, ref_labels):
    """In the batch itself without each row's own copy."""
    same = labels[:, None] == (labels if ref_labels is None else ref_labels)
    different = ~same
    if ref_labels is None:
        same.fill_diagonal_(False)
    return PairIndices(*same.nonzero(as_tuple=True), *different.nonzero(as_tuple=True))


def every_triplet(indices):
    if isinstance(indices, TripletIndices):
        return indices
    pair, other = (indices.pos_anchors[:, None] == indices.neg_anchors).nonzero(as_tuple=True)
    return TripletIndices(indices.pos_anchors[pair], indices.positives[pair], indices.negatives[other])
