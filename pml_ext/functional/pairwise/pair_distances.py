"""Distance statistics over all pairs of a data set."""

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from pml_ext._ops.distributed import gather_rows, sum_over_ranks
from pml_ext._ops.numerics import ENTRIES_ON_A_DEVICE, full_precision
from pml_ext._shared.checks import check_items, check_switch, check_tensor, is_whole
from pml_ext.functional.pairwise.pair_blocks import Block, PairBlocks, true_places

# A power of two, so that scaling and the edges of bins are exact.
_BINS_PER_UNIT = 2**15
# Squared distances below this many units in the last place are rounding errors and become 0.
_ULPS_OF_ZERO = 16


class PairDistances(PairBlocks):
    """Counts over the distances of all unordered pairs of a data set, without storing the distances.

    Distances are L2 between L2-normalised embeddings, sqrt(2 − 2 cosine), in [0, 2], computed in float32 (float64
    for float64 input) on the embeddings' device. Distances below 1.4e-3 in float32 are rounding errors and become 0.
    Larger distances that should tie (one sample to two equal ones) can differ by one unit in the last place. A zero
    row has distance sqrt(2) from everything. All counts are exact and deterministic.

    Args:
        embeddings: (N, D), any finite values; normalised here.
        labels: (N,) integer class ids.
        block_rows: rows of a block; memory is a few min(block_rows, N)² floats. None: 1024, or 4096 on a GPU.
        group: the ranks that share the work, each with the same embeddings and labels; counts are summed over them.
            None: this process alone.
        offsets: (N,) subtracted from a sample's cosines with all others, as for normalised scores. The difference,
            clamped to [−1, 1], replaces the cosine in the distance. None: no offsets.
        cameras: (N,) integers; only positive pairs across cameras count. None: all positive pairs count.
    Attributes:
        classes: (T,) the class ids, sorted.
        unit, index: (N, D) unit-length samples sorted by class; (N,) index of each sample's class in `classes`.
        other: second factor of the products; `unit` itself if there are no offsets.
        class_end: (N,) end of each sample's class in the sorted order.
        camera: (N,) cameras in the sorted order, or None.
        block_rows: rows and columns of a block.
        positive_pairs, negative_pairs: (T,) int64, pairs inside the class, and pairs with one sample in the class.
    Raises:
        ValueError: embeddings are not (N, D), floating and finite; labels of another length or not integer;
            block_rows below 1.

    >>> embeddings = torch.tensor([[1.0, 0], [1, 0], [0, 1], [0, 1]])
    >>> pairs = PairDistances(embeddings, torch.tensor([0, 0, 1, 1]))
    >>> pairs.total_positive_pairs, pairs.total_negative_pairs
    (2, 4)
    >>> [counts.tolist() for counts in pairs.accepted(torch.tensor([0.5, 1.5]))]
    [[[1, 1], [1, 1]], [[0, 4], [0, 4]]]
    """

    def negative_distances_at(self, ranks: Sequence[int]) -> Tensor:
        """Returns order statistics of the pooled negative distances: the k-th smallest for each k.

        A histogram locates each rank's bin, and a second pass collects the values in these bins. Further ranks in
        these bins need no pass.

        Args:
            ranks: ranks k, from 1 to total_negative_pairs.
        Returns:
            (len(ranks),) distances, in the embeddings' precision.
        """
        total = self.total_negative_pairs
        check_items(ranks, "ranks", f"whole numbers from 1 to {total}")
        if not len(ranks) or not all(is_whole(k) and 1 <= k <= total for k in ranks):
            raise ValueError(f"ranks must be from 1 to {total}, the number of negative pairs; got {list(ranks)}")
        wanted = torch.tensor(list(ranks), device=self.unit.device)
        with full_precision(self.unit.device):
            bins = torch.searchsorted(self._up_to, wanted)
            values_of = self._values_in(torch.unique(bins).tolist())
            distances_at = []
            for k, bin_ in zip(wanted, bins.tolist(), strict=True):
                values, counts = values_of[bin_]
                below = self._up_to[bin_ - 1] if bin_ else 0
                distances_at.append(values[torch.searchsorted(below + counts.cumsum(0), k)])
        return torch.stack(distances_at)

    def negatives_within(self, distance: float) -> int:
        """Returns the number of negative pairs at this distance or closer."""
        limit = torch.tensor(distance, dtype=self.unit.dtype, device=self.unit.device)
        with full_precision(self.unit.device):
            bin_ = int(limit * _BINS_PER_UNIT)
            below, up_to = (int(self._up_to[place]) if place >= 0 else 0 for place in (bin_ - 1, bin_))
            if up_to == below:
                return below
            values, counts = self._values_in([bin_])[bin_]
        return below + int(counts[values <= limit].sum())

    def positives_around(self, distance: float) -> tuple[float, float]:
        """Returns the largest positive distance up to this one, or -inf, and the smallest beyond it, or inf."""
        limit = torch.tensor(distance, dtype=self.unit.dtype, device=self.unit.device)
        below, beyond = limit.new_full((1,), -torch.inf), limit.new_full((1,), torch.inf)
        with full_precision(self.unit.device):
            for block in self.blocks(positives_only=True):
                distances = to_distances_(block.cosines).view(-1)[self.positive_places(block)[0]]
                is_within = distances <= limit
                below = torch.cat([below, distances[is_within]]).amax(0, keepdim=True)
                beyond = torch.cat([beyond, distances[~is_within]]).amin(0, keepdim=True)
        return float(gather_rows(below, self.group).max()), float(gather_rows(beyond, self.group).min())

    def accepted(self, thresholds: Tensor, *, positives_only: bool = False) -> tuple[Tensor, Tensor]:
        """Count the pairs of each class within each threshold (distance <= threshold).

        Args:
            thresholds: (M,) ascending distances.
            positives_only: leave the negative counts at 0 and skip blocks without positive pairs.
        Returns:
            positives, negatives: (T, M) int64. A negative pair counts for both of its classes.
        Raises:
            ValueError: thresholds are empty, not ascending or nan.
        """
        check_switch(positives_only, "positives_only")
        check_thresholds(thresholds)
        device = self.unit.device
        thresholds = thresholds.to(device=device, dtype=self.unit.dtype).contiguous()
        counts = torch.zeros((2, len(self.classes), len(thresholds)), dtype=torch.int64, device=device)
        search = _Thresholds(thresholds)
        with full_precision(device):
            for block in self.blocks(positives_only=positives_only):
                distances = to_distances_(block.cosines)
                if block.mixed:
                    self._count(counts[0], distances, self.positive_places(block), search, [block.rows])
                if not positives_only:
                    accepted = distances <= thresholds[-1]
                    if block.mixed:
                        accepted &= self.negative_mask(block)
                    sides = [block.rows, block.columns]
                    self._count(counts[1], distances, true_places(accepted), search, sides)
        positives, negatives = sum_over_ranks(counts, self.group).cumsum(2)
        return positives, negatives

    def accepted_at(self, distance: float, *, positives_only: bool = False) -> tuple[Tensor, Tensor]:
        """Returns the (T,) counts of `accepted` at one distance."""
        at = torch.tensor([distance], dtype=torch.float64, device="cpu")
        positives, negatives = self.accepted(at, positives_only=positives_only)
        return positives[:, 0], negatives[:, 0]

    def _count(
        self,
        into: Tensor,
        distances: Tensor,
        places: tuple[Tensor, Tensor, Tensor],
        thresholds: "_Thresholds",
        sides: list[slice],
    ) -> None:
        """Count pairs of a block by class, at the first threshold that accepts them."""
        flat, *of_side = places
        width = into.shape[1] + 1  # the last column is for pairs that no threshold accepts
        first = thresholds.first_reached(distances.view(-1)[flat])
        for side, place in zip(sides, of_side, strict=False):
            low, high = self.classes_of(side)
            counts = torch.bincount((self.index[side] - low)[place] * width + first, minlength=(high - low) * width)
            into[low:high] += counts.view(high - low, width)[:, :-1]

    @cached_property
    def _up_to(self) -> Tensor:
        """Returns the numbers of negative distances up to the end of each bin of 1 / _BINS_PER_UNIT from 0 to 2."""
        bins = 2 * _BINS_PER_UNIT + 1
        histogram = torch.zeros(bins, dtype=torch.int64, device=self.unit.device)
        for block in self.blocks():
            histogram += torch.bincount(_bins_of(self._negatives_of(block)), minlength=bins)
        return sum_over_ranks(histogram, self.group).cumsum(0)

    def _negatives_of(self, block: Block) -> Tensor:
        """Returns a block's negative distances; if it has no other pairs, a view that the next block overwrites."""
        distances = to_distances_(block.cosines)
        return distances[self.negative_mask(block)] if block.mixed else distances.view(-1)

    @cached_property
    def _known_bins(self) -> dict[int, tuple[Tensor, Tensor]]:
        """Returns the bins that `_values_in` has collected."""
        return {}

    def _values_in(self, bins: list[int]) -> dict[int, tuple[Tensor, Tensor]]:
        """Returns the distinct negative distances in some bins, ascending, and their counts; one pass for new bins."""
        missing = [bin_ for bin_ in bins if bin_ not in self._known_bins]
        if not missing:
            return self._known_bins
        is_wanted = torch.zeros(2 * _BINS_PER_UNIT + 1, dtype=torch.bool, device=self.unit.device)
        is_wanted.index_fill_(0, torch.tensor(missing, device=self.unit.device), True)
        values = torch.empty(0, dtype=self.unit.dtype, device=self.unit.device)
        counts = torch.empty(0, dtype=torch.int64, device=self.unit.device)
        pending: list[Tensor] = []
        for block in self.blocks():
            d = to_distances_(block.cosines)
            inside = is_wanted.index_select(0, _bins_of(d)).view_as(d)
            if block.mixed:
                inside &= self.negative_mask(block)
            pending.append(d.view(-1)[true_places(inside)[0]])
            # Merging equal distances (collapsed embeddings) bounds the memory.
            if sum(map(len, pending)) > ENTRIES_ON_A_DEVICE:
                values, counts = _merge(values, counts, pending)
                pending = []
        values, counts = _merge(values, counts, pending)
        if self.group is not None:
            values, counts = gather_rows(values, self.group), gather_rows(counts, self.group)
            values, counts = _merge(values, counts, [])
        bins_of_values = _bins_of(values)
        for bin_ in missing:
            inside = bins_of_values == bin_
            self._known_bins[bin_] = values[inside], counts[inside]
        return self._known_bins


def count_accepted(pairs: PairDistances, thresholds: Tensor, *, positives_only: bool = False) -> tuple[Tensor, Tensor]:
    """Returns (M,) int64 counts of positive and negative pairs of all classes within each of M ascending distances.

    positives_only: leave the negative counts at 0, as in `PairDistances.accepted`.
    """
    check_thresholds(thresholds)
    device = pairs.unit.device
    limits = thresholds.to(device=device, dtype=pairs.unit.dtype).contiguous()
    counts = torch.zeros((2, len(limits)), dtype=torch.int64, device=device)
    with full_precision(device):
        for block in pairs.blocks(positives_only=positives_only):
            distances = to_distances_(block.cosines)
            if block.mixed:
                counts[0] += _first_reached(distances.view(-1)[pairs.positive_places(block)[0]], limits)
            if not positives_only:
                negatives = distances[pairs.negative_mask(block)] if block.mixed else distances.view(-1)
                counts[1] += _first_reached(negatives, limits)
    positives, negatives = sum_over_ranks(counts, pairs.group).cumsum(1)
    return positives, negatives


def check_thresholds(thresholds: Tensor) -> None:
    """Raise unless thresholds are (M,) ascending numbers, M at least 1."""
    check_tensor(thresholds, "thresholds", "(M,)")
    is_list = thresholds.ndim == 1 and len(thresholds) > 0
    if not is_list or not bool((thresholds[1:] >= thresholds[:-1]).all()) or bool(thresholds.isnan().any()):
        raise ValueError(
            f"thresholds must be an ascending, non-empty (M,) tensor of numbers; got shape {tuple(thresholds.shape)}"
        )


def _bins_of(distances: Tensor) -> Tensor:
    """Returns the flat bins of 1 / _BINS_PER_UNIT, int32."""
    return (distances.view(-1) * _BINS_PER_UNIT).int()


class _Thresholds:
    """Finds the first of M ascending thresholds that reaches a distance.

    A table of bins takes a third of the time of a search; it needs bins of at most two thresholds.
    """

    def __init__(self, thresholds: Tensor) -> None:
        self._thresholds = thresholds
        starts = torch.arange(2 * _BINS_PER_UNIT + 2, device=thresholds.device).to(thresholds) / _BINS_PER_UNIT
        self._below = torch.searchsorted(thresholds, starts, out_int32=True)  # of each bin
        self._steps = int(self._below.diff().max())
        self._padded = torch.cat([thresholds, thresholds.new_full((1,), torch.inf)])

    def first_reached(self, distances: Tensor) -> Tensor:
        """Returns (P,) places of the thresholds, M beyond the last, for (P,) distances."""
        if self._steps > 2:
            return torch.bucketize(distances, self._thresholds, out_int32=True)
        first = self._below.index_select(0, _bins_of(distances))
        for _ in range(self._steps):
            first += self._padded.index_select(0, first) < distances
        return first


def to_distances_(cosines: Tensor) -> Tensor:
    """Overwrite cosines with distances."""
    tiny = _ULPS_OF_ZERO * torch.finfo(cosines.dtype).eps
    squares = cosines.mul_(-2).add_(2).clamp_max_(4)
    return torch.threshold_(squares, tiny, 0.0).sqrt_()


def _first_reached(distances: Tensor, limits: Tensor) -> Tensor:
    """Returns (M,) counts of the distances by the first ascending limit that reaches them."""
    within = distances[distances <= limits[-1]]
    return torch.bincount(torch.bucketize(within, limits), minlength=len(limits))


def _merge(values: Tensor, counts: Tensor, pending: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Returns distinct values, ascending, with their counts; each pending value counts once."""
    distinct, place = torch.unique(torch.cat([values, *pending]), return_inverse=True)
    weights = torch.ones_like(place)
    weights[: len(counts)] = counts
    return distinct, torch.zeros_like(distinct, dtype=torch.int64).index_add_(0, place, weights)
