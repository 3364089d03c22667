"""The pairs of a batch that a loss compares: masks, consecutive samples, and a batch's copies in ref_emb."""

import torch
from torch import Tensor

from pml_ext.functional.loop.partners import consecutive_pairs
from pml_ext.functional.tuples import Tuples, count_pairs, pairs_of, same_and_different
from pml_ext.losses._base import Labels, Reference


def pair_masks(like: Tensor, labels: Labels, ref_labels: Labels, indices_tuple: Tuples | None) -> tuple[Tensor, Tensor]:
    """Returns (B, R) masks of positive and negative pairs, from indices_tuple if given, otherwise from the labels."""
    if indices_tuple is None:
        assert labels is not None
        return same_and_different(labels, ref_labels, device=like.device)
    a1, p, a2, n = pairs_of(indices_tuple)
    positive, negative = torch.zeros(2, *like.shape, dtype=torch.bool, device=like.device)
    positive[a1, p] = True
    negative[a2, n] = True
    return positive, negative


def lacks_pairs(labels: Labels, ref_labels: Labels, indices_tuple: Tuples | None) -> bool:
    """Returns whether there is no positive or no negative pair; reads labels on the CPU without waiting for a GPU."""
    if indices_tuple is not None:
        a1, _, a2, _ = pairs_of(indices_tuple)
        return not (len(a1) and len(a2))
    assert labels is not None
    return 0 in count_pairs(labels, ref_labels)


def consecutive_among(positive: Tensor, labels: Tensor | None, *, with_itself: bool) -> tuple[Tensor, Tensor]:
    """Returns (anchors, positives): the positive pairs of the (B, B) mask that are consecutive samples of a class."""
    if not with_itself or labels is None:
        raise ValueError(
            "positives='consecutive' needs labels and no ref_emb: its pairs are consecutive samples of the batch; "
            "choose another `positives`"
        )
    anchors, partners = (index.to(positive.device, non_blocking=True) for index in consecutive_pairs(labels))
    kept = positive[anchors, partners]
    return anchors[kept], partners[kept]


def copies_in_reference(
    embeddings: Tensor, labels: Tensor, indices_tuple: Tuples | None, ref_emb: Reference, ref_labels: Labels
) -> Tensor | None:
    """Returns the (B,) rows of ref_emb that hold the batch itself, or None if ref_emb does not contain it.

    PML's CrossBatchMemory and efficient wrappers put the batch into consecutive rows of ref_emb, and leave the pairs of
    a sample with its own copy out of the indices_tuple. A miner's tuple leaves out other pairs, too. Therefore the rows
    must also equal the batch, in its order. Without an indices_tuple, as in SelfSupervisedLoss, ref_emb is another set.
    """
    if indices_tuple is None or ref_emb is None or ref_labels is None:
        return None
    anchors, positives = indices_tuple[:2]
    labels, ref_labels = labels.to(ref_emb.device), ref_labels.to(ref_emb.device)
    steps = torch.arange(len(labels), device=labels.device)
    starts = (ref_emb == embeddings[0]).all(dim=1).nonzero()
    candidates = (starts + steps) % len(ref_labels)
    candidates = candidates[(ref_labels[candidates] == labels).all(dim=1)]
    for rows in candidates.unbind():  # several if embeddings have collapsed
        is_listed = (rows[anchors] == positives).any()
        if torch.equal(ref_emb[rows], embeddings) and not is_listed:
            return rows
    return None
