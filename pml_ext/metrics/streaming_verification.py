"""Verification over more pairs than fit in memory."""

import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from pml_ext.functional.verification.histogram import ScoreHistogram, auc_bounds, eer_bounds, tar_bounds
from pml_ext.metrics import keys
from pml_ext.metrics.undefined import lacking_pairs, warn_undefined
from pml_ext.metrics.verification import FARS, checked_fars, rates_of


class StreamingVerification(Metric):
    """`VerificationEvaluator`'s rates of scores that come in pieces, in memory that does not grow (17 MB for cosines).

    A torchmetrics.Metric. Scores are counted in bins of 2^-19 (1.9e-6). A reported threshold is a bin's edge, its TAR
    is exact over all pairs, and its FAR never exceeds the target; a TAR larger by some pairs of one bin may have been
    missed: `bounds` tells by how many at most. Threads may update one object. Where torch.distributed is initialised,
    every rank counts its own pairs, and `compute`, called on all of them, sums the counts.

    Args:
        fars: the false accept rates to report, in (0, 1].
        low, high: where scores lie, integers: −1 and 1 for cosines. Others count as the nearer end.
        device: of the counts.
        options: of torchmetrics.Metric, such as process_group.
    Attributes:
        histogram: the counts.

    >>> metric = StreamingVerification(fars=(0.5,))
    >>> metric.update(torch.tensor([0.9, 0.6, 0.7]), torch.tensor([True, True, False]))
    >>> metric.update(torch.tensor([0.3, 0.2]), torch.tensor([True, False]))
    >>> round(metric.compute()["tar_at_far_5e-1"], 3)
    1.0
    """

    is_differentiable = False
    full_state_update = False

    def __init__(
        self,
        fars: Sequence[float] = FARS,
        *,
        low: int = -1,
        high: int = 1,
        device: torch.device | str = "cpu",
        **options: Any,
    ) -> None:
        # A cached result would miss what was merged.
        super().__init__(**{"compute_with_cache": False} | options)
        self.fars = checked_fars(fars)
        self.histogram = ScoreHistogram(low, high, device=device)
        self._lock = threading.RLock()
        self.add_state("counts", self.histogram.counts, dist_reduce_fx="sum")
        # Zeros to reset to, without 17 MB for them.
        self._defaults["counts"] = self.counts.new_zeros(()).expand_as(self.counts)

    @property
    def counts(self) -> Tensor:
        """The state that torchmetrics sums, moves and resets: the histogram's counts."""
        return self.histogram.counts

    @counts.setter
    def counts(self, counts: Tensor) -> None:
        self.histogram.counts = counts

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({**state, "_lock": threading.RLock()})

    def update(self, scores: Tensor, same: Tensor) -> None:
        """Count pairs: (P,) scores, finite, higher is more alike; (P,) bool, True for pairs of one subject."""
        with self._lock:  # two threads that raise a count at once would lose one of the two
            self.histogram.update(scores, same)

    def merge(self, other: "StreamingVerification") -> None:
        """Add the pairs of another one of the same low and high."""
        # Always locked in the same order, so that two threads that merge the same two cannot wait for each other.
        first, second = sorted((self, other), key=id)
        with first._lock, second._lock:
            self.histogram.merge(other.histogram)
            self._update_count += other._update_count

    def compute(self) -> dict[str, float]:
        """The keys of `VerificationEvaluator` but for the accuracies; nan, with a warning, without pairs of a kind."""
        with self._lock:
            return rates_of(self.histogram.roc(), self.fars)

    def bounds(self) -> dict[str, tuple[float, float]]:
        """Between which values tar_at_far_…, auc and eer of the exact scores lie: (lower, upper); nan as the rates.

        compute() reports the lower bound of a TAR, which is reached, and for auc and eer a value between the two. Of
        the pairs that this process counted.
        """
        with self._lock:
            roc = self.histogram.roc()
        found = {keys.tar_at_far(far): tar_bounds(roc, far) for far in self.fars}
        found |= {keys.AUC: auc_bounds(roc), keys.EER: eer_bounds(roc)}
        if lacking := lacking_pairs(roc):
            warn_undefined((name, lacking) for name in found)
        return {name: (float(lower), float(upper)) for name, (lower, upper) in found.items()}
