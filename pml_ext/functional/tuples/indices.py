"""A miner's pairs or triplets as the pairs, triplets or sample weights that a loss needs."""

import torch
from torch import Tensor

from pml_ext.functional.tuples.pairs import same_and_different

Tuples = tuple[Tensor, ...]
"""(anchor, positive, negative) or (anchor, positive, anchor, negative) indices."""


def pairs_of(indices_tuple: Tuples) -> Tuples:
    """Anchors and positives, anchors and negatives."""
    if len(indices_tuple) == 4:
        return indices_tuple
    anchors, positives, negatives = indices_tuple
    return anchors, positives, anchors, negatives


def triplets_of(indices_tuple: Tuples | None, labels: Tensor | None, ref_labels: Tensor | None = None) -> Tuples:
    """Anchors, positives and negatives: every positive with every negative pair of its anchor.

    indices_tuple None: all triplets of the labels; ref_labels None: of the batch with itself.
    """
    if indices_tuple is None:
        assert labels is not None
        same, different = same_and_different(labels, ref_labels)
        anchors, positives = same.nonzero(as_tuple=True)
        return every_triplet(anchors, positives, different)
    if len(indices_tuple) == 3:
        return indices_tuple
    anchors, positives, others, negatives = indices_tuple
    pair, other = torch.where(anchors[:, None] == others)
    return anchors[pair], positives[pair], negatives[other]


def every_triplet(anchors: Tensor, positives: Tensor, different: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Each positive pair with every negative of its anchor; different: (B, R), the negative pairs."""
    pair, negatives = different[anchors].nonzero(as_tuple=True)
    return anchors[pair], positives[pair], negatives


def weights_of(indices_tuple: Tuples | None, labels: Tensor, dtype: torch.dtype, *, with_itself: bool = True) -> Tensor:
    """(B,) how often each sample occurs in the tuples, the most frequent one 1; all 1 without a tuple.

    with_itself: positives and negatives are of the batch, and count, too.
    """
    if indices_tuple is None or all(len(part) == 0 for part in indices_tuple):
        return torch.ones_like(labels, dtype=dtype)
    parts = indices_tuple if with_itself else pairs_of(indices_tuple)[::2]
    counts = torch.bincount(torch.cat(parts), minlength=len(labels))
    return counts.to(dtype) / counts.max()
