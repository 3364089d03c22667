"""Finds and counts discordant, hard, semi-hard and easy triplets."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from pml_ext._checks import check_choice, check_floating, check_in_range, check_mask
from pml_ext._ops.blocks import rows_of_a_block

# By the gap S_ap − S_an. A tie is hard, as in PML's TripletMarginMiner, but it is not discordant.
KINDS: dict[str, Callable[[Tensor, float], Tensor]] = {
    "discordant": lambda gap, margin: gap < 0,
    "hard": lambda gap, margin: gap <= 0,
    "semihard": lambda gap, margin: (gap > 0) & (gap <= margin),
    "easy": lambda gap, margin: gap > margin,
}


def triplets_of_kind(
    similarities: Tensor, same: Tensor, different: Tensor, kind: str, margin: float, *, entries: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """All (anchor, positive, negative) of one kind, ordered by anchor, then positive, then negative.

    Works in blocks of positive pairs, without a (B, R, R) tensor.

    Args:
        similarities: (B, R), larger = more alike (pass negated distances).
        same, different: (B, R) bool, the positive and the negative pairs.
        kind: by the gap g = S_ap − S_an: "discordant" g < 0, "hard" g <= 0, "semihard" 0 < g <= margin,
            "easy" g > margin. Each triplet is one of the last three.
        margin: in the unit of the similarities, >= 0.
        entries: entries of one block (positive pairs, R); None: the device's block size.
    Returns:
        three index tensors of equal length.

    >>> similarities = torch.tensor([[1, 0.6, 0.7], [0.6, 1, 0.2], [0.7, 0.2, 1]])
    >>> same = torch.tensor([[False, True, False], [True, False, False], [False, False, False]])
    >>> different = torch.tensor([[False, False, True], [False, False, True], [True, True, False]])
    >>> [indices.tolist() for indices in triplets_of_kind(similarities, same, different, "hard", margin=0.2)]
    [[0], [1], [2]]
    """
    check_choice(kind, KINDS, "kind")
    is_kind = KINDS[kind]
    found = []
    for anchors, positives, gap, negative in _gaps(similarities, same, different, margin, entries):
        pair, n = torch.nonzero(is_kind(gap, margin) & negative, as_tuple=True)
        found.append((anchors[pair], positives[pair], n))
    a, p, n = (torch.cat(part) for part in zip(*found, strict=True))
    return a, p, n


def count_triplet_kinds(
    similarities: Tensor, same: Tensor, different: Tensor, margin: float, *, entries: int | None = None
) -> dict[str, int]:
    """The number of triplets of each kind; see triplets_of_kind.

    The concordance index is 1 − (discordant + hard)/(2 · all triplets): a tie counts one half.

    >>> similarities = torch.tensor([[1, 0.6, 0.7], [0.6, 1, 0.2], [0.7, 0.2, 1]])
    >>> same = torch.tensor([[False, True, False], [True, False, False], [False, False, False]])
    >>> different = torch.tensor([[False, False, True], [False, False, True], [True, True, False]])
    >>> count_triplet_kinds(similarities, same, different, margin=0.2)
    {'discordant': 1, 'hard': 1, 'semihard': 0, 'easy': 1}
    """
    counts = dict.fromkeys(KINDS, 0)
    for _, _, gap, negative in _gaps(similarities, same, different, margin, entries):
        for kind, is_kind in KINDS.items():
            counts[kind] += int((is_kind(gap, margin) & negative).sum())
    return counts


def _gaps(
    similarities: Tensor, same: Tensor, different: Tensor, margin: float, entries: int | None
) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Blocks of positive pairs: anchors, positives, the gaps to all columns, and the mask of negative columns."""
    check_floating(similarities, "similarities", "(B, R)")
    check_mask(same, similarities.shape, "same")
    check_mask(different, similarities.shape, "different")
    check_in_range(margin, 0, float("inf"), "margin")
    anchors, positives = torch.nonzero(same, as_tuple=True)
    rows = rows_of_a_block(similarities.shape[1], similarities.device, entries=entries)
    for a, p in zip(anchors.split(rows), positives.split(rows), strict=True):
        yield a, p, similarities[a, p][:, None] - similarities[a], different[a]
