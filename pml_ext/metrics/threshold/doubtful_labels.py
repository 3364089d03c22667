"""Samples whose labels look wrong: they match another class, and not their own."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pml_ext.functional.pairwise.pair_distances import PairDistances

_SHARE_BY_CHANCE = 0.05
_SIGNIFICANCE = 0.01
_ROWS_AT_ONCE = 1024


@dataclass(frozen=True)
class DoubtfulLabel:
    """A sample that looks mislabelled.

    row: of the embeddings, or of their file; score: mean with the other samples of its label; likely_label: the class
    that it matches best; likely_score: mean with that class.
    """

    row: int
    label: int | str
    score: float
    likely_label: int | str
    likely_score: float


def doubtful_labels(
    pairs: PairDistances, ids: Tensor, names: Sequence[int | str], threshold: float, rows: Sequence[int] | None
) -> tuple[tuple[DoubtfulLabel, ...], Tensor]:
    """Find the samples whose mean score with their class is below the threshold, and with another at or above it.

    The other match must be rare: as strong as the top 5 % of such matches of samples that their own class accepts. If
    images became harder instead, a rejected sample matches another class so well in about 5 % of cases. Unless
    significantly more do (binomial, 1 %), no label is doubtful.

    Args:
        ids, names: (N,) as the pairs were made from, and the name of each id.
        threshold: a score.
        rows: N numbers that name the samples; None: 0, 1, …
    Returns:
        the doubtful ones, the best match first; an (N,) mask of all others, on the CPU.
    """
    from scipy.special import bdtrc  # a dependency of pytorch-metric-learning's scikit-learn

    index, sizes = pairs.index, torch.bincount(pairs.index)
    sums = pairs.other.new_zeros(len(sizes), pairs.other.shape[1]).index_add(0, index, pairs.other)
    own = ((sums[index] - pairs.other) * pairs.unit).sum(dim=1) / (sizes[index] - 1)  # nan without other samples
    is_rejected = own < threshold
    # The mean of a class leaves out samples that it rejects: wrong labels would blur it.
    members = index[~is_rejected]
    counts = torch.bincount(members, minlength=len(sizes))
    means = torch.zeros_like(sums).index_add(0, members, pairs.other[~is_rejected]) / counts.clamp_min(1)[:, None]
    best, likely = torch.empty_like(own), torch.empty_like(index)
    for start in range(0, len(own), _ROWS_AT_ONCE):
        block = slice(start, start + _ROWS_AT_ONCE)
        scores = pairs.unit[block] @ means.T
        scores[:, counts == 0] = -torch.inf
        scores.scatter_(1, index[block, None], -torch.inf)
        best[block], likely[block] = scores.max(dim=1)
    by_chance = best[own >= threshold].sort().values
    level = threshold
    if len(by_chance):
        level = max(level, float(by_chance[int((1 - _SHARE_BY_CHANCE) * len(by_chance))]))
    places = torch.nonzero(is_rejected & (best >= level)).flatten()
    if bdtrc(len(places) - 1, int(is_rejected.sum()), _SHARE_BY_CHANCE) > _SIGNIFICANCE:
        places = places[:0]
    places = places[best[places].argsort(descending=True)]
    found = torch.argsort(ids, stable=True)[places.cpu()]
    columns = found.tolist(), own[places].tolist(), likely[places].tolist(), best[places].tolist()
    doubtful = tuple(
        DoubtfulLabel(at if rows is None else int(rows[at]), names[int(ids[at])], score, names[other], likely_score)
        for at, score, other, likely_score in zip(*columns, strict=True)
    )
    return doubtful, torch.ones(len(ids), dtype=torch.bool).index_fill(0, found, False)
