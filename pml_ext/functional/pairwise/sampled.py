"""Pair statistics with sampled negative pairs, as in the OPIS paper for large sets."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch import distributed as dist

from pml_ext._checks import check_seed, check_whole
from pml_ext.functional.pairwise.listed import listed_cosines
from pml_ext.functional.pairwise.pair_distances import PairDistances

_MOST_DRAWN = 10**9  # pairs


class SampledPairDistances(PairDistances):
    """All positive pairs, and for each class `negatives_per_positive` random negative pairs per positive pair.

    A negative pair is one sample of the class and one outside it, drawn uniformly with replacement; it counts for that
    class only and takes the memory of one distance. The draw is the same on every device.
    Every rank draws all negative pairs; the ranks divide the positive ones.
    """

    def __init__(
        self,
        embeddings: Tensor,
        labels: Tensor,
        *,
        negatives_per_positive: int,
        seed: int,
        group: dist.ProcessGroup | None = None,
        offsets: Tensor | None = None,
    ) -> None:
        check_negatives_per_positive(negatives_per_positive)
        check_seed(seed)
        super().__init__(embeddings, labels, group=group, offsets=offsets)
        device, count = self.unit.device, len(self.unit)
        sizes = torch.bincount(self.index)
        outside = count - sizes
        drawn = int(self.positive_pairs[outside > 0].sum()) * negatives_per_positive
        if drawn > _MOST_DRAWN:
            raise ValueError(
                f"negatives_per_positive={negatives_per_positive} asks for {drawn} pairs; the limit is {_MOST_DRAWN} "
                "(60 GB). Lower it, or pass None to use all negative pairs, which needs less memory"
            )
        self.negative_pairs = torch.where(outside > 0, self.positive_pairs * negatives_per_positive, 0)
        self._class = torch.repeat_interleave(self.negative_pairs)
        first = (sizes.cumsum(0) - sizes)[self._class]
        draw = torch.rand(2, len(self._class), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        inside_at, outside_at = draw.to(device)
        one = first + (inside_at * sizes[self._class]).long()
        other = (outside_at * outside[self._class]).long()
        other += (other >= first) * sizes[self._class]  # samples are sorted by class: skip its own
        self._negatives = listed_cosines(self.unit, self.other, one, other).mul_(-2).add_(2).clamp_(0, 4).sqrt_()

    @property
    def total_negative_pairs(self) -> int:
        return len(self._negatives)

    def negative_distances_at(self, ranks: Sequence[int]) -> Tensor:
        return self._negatives.sort().values[torch.tensor(list(ranks), device=self.unit.device) - 1]

    def accepted(self, thresholds: Tensor, *, positives_only: bool = False) -> tuple[Tensor, Tensor]:
        positives, negatives = super().accepted(thresholds, positives_only=True)
        if not positives_only:
            limits = thresholds.to(self._negatives).contiguous()
            width = len(limits) + 1  # the last column is for pairs that no threshold accepts
            place = self._class * width + torch.bucketize(self._negatives, limits)
            counts = torch.bincount(place, minlength=len(self.classes) * width).view(-1, width)
            negatives = counts[:, :-1].cumsum(1)
        return positives, negatives


def all_or_sampled_pairs(
    embeddings: Tensor,
    labels: Tensor,
    negatives_per_positive: int | None,
    seed: int,
    group: dist.ProcessGroup | None = None,
    offsets: Tensor | None = None,
) -> PairDistances:
    """PairDistances if negatives_per_positive is None, else SampledPairDistances."""
    check_seed(seed)
    if negatives_per_positive is None:
        return PairDistances(embeddings, labels, group=group, offsets=offsets)
    return SampledPairDistances(
        embeddings, labels, negatives_per_positive=negatives_per_positive, seed=seed, group=group, offsets=offsets
    )


def check_negatives_per_positive(count: int | None) -> None:
    """Raise unless count is None (all negative pairs) or at least 1."""
    if count is not None:
        check_whole(count, "negatives_per_positive")
        if count < 1:
            raise ValueError(f"negatives_per_positive must be at least 1, or None; got {count!r}")
