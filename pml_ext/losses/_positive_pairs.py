"""The positive pairs that a loss sums over, and the negative pairs that it chooses from."""

import torch
from torch import Tensor

from pml_ext.distances.gathered import orders_if_gathered
from pml_ext.functional.loop.partners import consecutive_pairs
from pml_ext.functional.tuples import pairs_of, same_and_different
from pml_ext.losses._batch import Labels, Tuples


def pair_masks(like: Tensor, labels: Labels, ref_labels: Labels, indices_tuple: Tuples | None) -> tuple[Tensor, Tensor]:
    """(B, R) masks, like `like`, of the positive and the negative pairs of an indices_tuple, or else of the labels."""
    if indices_tuple is None:
        assert labels is not None
        return same_and_different(labels, ref_labels)
    a1, p, a2, n = pairs_of(indices_tuple)
    positive, negative = torch.zeros(2, *like.shape, dtype=torch.bool, device=like.device)
    positive[a1, p] = True
    negative[a2, n] = True
    return positive, negative


def consecutive_among(positive: Tensor, labels: Tensor | None, *, with_itself: bool) -> tuple[Tensor, Tensor]:
    """(anchors, positives): consecutive samples of a class among the (B, B) mask of positive pairs."""
    if not with_itself or labels is None:
        raise ValueError(
            "positives='consecutive' needs labels and no ref_emb: its pairs are consecutive samples of the batch; "
            "choose another `positives`"
        )
    anchors, partners = consecutive_pairs(labels, orders_if_gathered(labels)[0])
    kept = positive[anchors, partners]
    return anchors[kept], partners[kept]
