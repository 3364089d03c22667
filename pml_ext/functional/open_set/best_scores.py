"""Scores of each sample with each identity, in blocks, and the highest scores of probes with other identities."""

from collections.abc import Iterator
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from pml_ext._ops.numerics import TIED, full_precision, row_blocks, unit_rows
from pml_ext._shared.checks import check_choice, check_embeddings, check_finite, check_labels
from pml_ext.functional.pairwise.pair_blocks import both_sides, check_offsets

Template = Literal["best", "mean"]
_ENTRIES = 2**23  # scores per block


class ProbeBlock(NamedTuple):
    """Scores of a block of probes; −inf if there is no score."""

    probes: Tensor  # (P,) rows of the embeddings
    genuine: Tensor  # (P,) best score with another sample of the probe's identity
    others: Tensor  # (P, M) score with each of M identities; −inf for the probe's


class _Memory(NamedTuple):
    """Buffers that every block reuses."""

    best: Tensor  # (P, M)
    cosines: Tensor  # (P, L) cosines with the k-th samples of L identities
    enrolled: Tensor  # (L, D) these samples


class BestScores:
    """Scores of each sample with each identity (M = `identities`), excluding itself; `label`: (N,) identities, from 0.

    An identity's score is the best cosine with its samples, or the cosine with their normalised mean (`template`). With
    `cameras`, samples of the probe's identity and camera are not enrolled; those of other identities are. Both
    samples' (N,) `offsets` are subtracted from each cosine.
    """

    def __init__(
        self,
        embeddings: Tensor,
        labels: Tensor,
        cameras: Tensor | None = None,
        template: Template = "best",
        *,
        offsets: Tensor | None = None,
    ) -> None:
        check_embeddings(embeddings)
        count, device = len(embeddings), embeddings.device
        labels = check_labels(labels, count).to(device)
        check_finite(embeddings)
        check_choice(template, ("best", "mean"), "template")
        # A sample is not compared with its identity's samples of the same number here.
        apart = torch.arange(count, device=device)
        self._apart = apart if cameras is None else check_labels(cameras, count, "cameras").to(device)
        if offsets is not None and template == "mean":
            raise ValueError('template must be "best" for normalised scores: a mean has no offset; got "mean"')
        check_offsets(offsets, count)
        self._unit, self._enrolled = both_sides(unit_rows(embeddings), None if offsets is None else offsets.to(device))
        self.samples, self.device, self.dtype = count, device, self._unit.dtype
        _, index, sizes = torch.unique(labels, return_inverse=True, return_counts=True)
        self.identities = len(sizes)
        if self.identities < 2:
            raise ValueError(f"labels must contain at least two identities; got {self.identities}")
        # Identities by falling size: the k-th samples of all that have as many are a prefix of the identities.
        by_size = sizes.argsort(descending=True, stable=True)
        place = torch.empty_like(by_size)
        place[by_size] = torch.arange(len(sizes), device=device)
        self.label = place[index]
        self._genuine_mean = None
        if template == "mean":
            self._enrolled, self._genuine_mean = self._templates()
            # What a block hides there are cosines of a probe with its identity, which `_genuine_mean` replaces.
            self._layers = [torch.arange(self.identities, device=device)]
            return
        order = self.label.argsort(stable=True)
        first = sizes[by_size].cumsum(0) - sizes[by_size]
        self._layers = [
            order[first[: int((sizes > k).sum())] + k] for k in range(int(sizes.max()))
        ]  # layer k: the k-th sample of every identity with more than k

    def blocks(self, probes: Tensor | None = None) -> Iterator[ProbeBlock]:
        """Yield the scores of the (P,) rows `probes` (None: all), in blocks of 32 MB.

        The next block overwrites `others`.
        """
        chosen = torch.arange(self.samples, device=self.device) if probes is None else probes
        # New memory for each block, between the results kept, fragmented the heap by 500 MB for 20,000 probes.
        memory = _Memory(*(self._unit.new_empty(0) for _ in range(3)))
        for part in row_blocks(len(chosen), self.identities, self.device, entries=_ENTRIES):
            rows = chosen[part]
            here, unit, identity = torch.arange(len(rows), device=self.device), self._unit[rows], self.label[rows]
            best = memory.best
            with full_precision(self.device):
                for k, layer in enumerate(self._layers):
                    enrolled = torch.index_select(self._enrolled, 0, layer, out=memory.enrolled.resize_(0))
                    cosines = torch.mm(unit, enrolled.T, out=(memory.cosines if k else best).resize_(0))
                    has = identity < len(layer)
                    hidden = here[has][self._apart[layer[identity[has]]] == self._apart[rows[has]]]
                    cosines[hidden, identity[hidden]] = -torch.inf
                    if k:
                        shared = best[:, : len(layer)]
                        torch.maximum(shared, cosines, out=shared)
            genuine = best[here, identity] if self._genuine_mean is None else self._genuine_mean[rows]
            best[here, identity] = -torch.inf
            yield ProbeBlock(rows, genuine, best)

    def _templates(self) -> tuple[Tensor, Tensor]:
        """Returns (M, D) normalised means, and (N,) each sample's cosine with the enrolled mean of its identity."""
        sums = self._unit.new_zeros(self.identities, self._unit.shape[1]).index_add_(0, self.label, self._unit)
        both = torch.stack([self.label, self._apart])
        groups, group, sizes = torch.unique(both, dim=1, return_inverse=True, return_counts=True)
        hidden = self._unit.new_zeros(groups.shape[1], sums.shape[1]).index_add_(0, group, self._unit)
        genuine = (self._unit * unit_rows(sums[self.label] - hidden[group])).sum(dim=1)
        alone = sizes[group] == torch.bincount(self.label)[self.label]
        return unit_rows(sums), genuine.masked_fill(alone, -torch.inf)


def share_with_any(above: Tensor, others: int, enrolled: int) -> Tensor:
    """Returns P(a random gallery has an identity above a threshold).

    The formula is 1 − C(others − above, enrolled) / C(others, enrolled).

    above: (…) number of other identities above it. The gallery enrols identities without replacement. The share is
    concave in `above`: equal probes have the largest mean share (Jensen).
    """
    return -torch.expm1(
        _log_choose(others - above, enrolled) - _log_choose(torch.tensor(others, device="cpu"), enrolled)
    )


def share_with_fewer(above: Tensor, others: int, enrolled: int, rank: int) -> Tensor:
    """Returns the probability that fewer than `rank` of the identities above a score are in a random gallery.

    As in `share_with_any`: Σ_{j < rank} C(above, j) C(others − above, enrolled − j) / C(others, enrolled).
    """
    total = torch.zeros(above.shape, dtype=torch.float64, device=above.device)
    if enrolled > others:  # a larger population of the same shares: drawn with replacement
        share, size = above.double() / others, torch.tensor(float(enrolled), dtype=torch.float64, device="cpu")
        for drawn in range(rank):
            few = _log_choose(size, drawn) + torch.special.xlogy(drawn, share)
            total += torch.exp(few + torch.special.xlog1py(enrolled - drawn, -share))
        return total.clamp_(max=1)
    for drawn in range(min(rank, enrolled + 1)):
        ways = _log_choose(above, drawn) + _log_choose(others - above, enrolled - drawn)
        total += torch.exp(ways - _log_choose(torch.tensor(others, device="cpu"), enrolled))
    return total.clamp_(max=1)


def _log_choose(n: Tensor, k: int) -> Tensor:
    """Returns log C(n, k) in float64; −inf where k > n."""
    n = n.double()
    of_k = torch.lgamma(torch.tensor(k + 1.0, dtype=torch.float64, device="cpu"))
    value = torch.lgamma(n + 1) - of_k - torch.lgamma(n - k + 1)
    return torch.where(n < k, -torch.inf, value)


ALL = -1e9  # below every score
_TRIAL = 512  # probes


class HighScores(NamedTuple):
    """Scores >= `low` of P probes with other identities, by probe, descending; on the CPU."""

    value: Tensor  # (S,)
    probe: Tensor  # (S,) from 0 to P − 1
    identity: Tensor  # (S,) from 0 to M − 1
    nth: Tensor  # (S,) rank of the score for its probe, from 0
    genuine: Tensor  # (P,) each probe's score with its identity, −inf without one
    before: Tensor  # (P,) number of other identities within `TIED` of it or higher
    label: Tensor  # (P,) each probe's identity
    identities: int
    low: float

    @property
    def others(self) -> int:
        """Number of other identities that a probe can match."""
        return self.identities - 1


def scores_from(scores: BestScores, low: float, probes: Tensor | None = None) -> HighScores:
    """Returns the scores >= `low` of all probes, or of some."""
    parts: list[tuple[Tensor, ...]] = []
    start = 0
    reached = torch.empty(0, dtype=torch.bool, device=scores.device)  # one buffer for all blocks
    lowest = _lowest_accepted(low, scores.dtype).to(scores.device)
    for block in scores.blocks(probes):
        row, column = torch.ge(block.others, lowest, out=reached.resize_(0)).nonzero(as_tuple=True)
        value, order = block.others[row, column].sort(descending=True)
        row, by_probe = row[order].sort(stable=True)
        sizes = torch.bincount(row, minlength=len(block.genuine))
        nth = torch.arange(len(row), device=row.device) - (sizes.cumsum(0) - sizes)[row]
        before = torch.ge(block.others, block.genuine[:, None] - TIED, out=reached.resize_(0)).sum(1)
        which = value[by_probe], row + start, column[order][by_probe], nth
        parts.append((*which, block.genuine, before, scores.label[block.probes]))
        start += len(block.genuine)
    value, probe, identity, nth, genuine, before, label = (torch.cat(part).cpu() for part in zip(*parts, strict=True))
    return HighScores(value, probe, identity, nth, genuine, before, label, scores.identities, low)


def scores_for_rate(scores: BestScores, enrolled: int, fpir: float) -> HighScores:
    """Returns the scores that determine the threshold for an FPIR in galleries of at least this size."""
    some = torch.randperm(scores.samples, generator=torch.Generator().manual_seed(0), device="cpu")[:_TRIAL]
    trial, rate = scores_from(scores, ALL, some.to(scores.device)), fpir
    while True:
        rate = min(1.0, 2 * rate + 3 / len(some))
        enough = None if rate >= 1 else _crossing(trial, enrolled, rate)
        high = scores_from(scores, ALL if enough is None else enough[1])
        if _crossing(high, enrolled, fpir) is not None:
            return high


def threshold_for_rate(high: HighScores, enrolled: int, fpir: float) -> float | None:
    """Returns the lowest threshold with at most this rate, midway to the next lower score; None if below `low`."""
    crossing = _crossing(high, enrolled, fpir)
    if crossing is None:
        return None
    accepted, refused = crossing
    return (accepted + refused) / 2 if accepted < float("inf") else refused + TIED


def reported(high: HighScores, threshold: float) -> Tensor:
    """Returns a (S,) mask of the scores at or above a threshold, compared in float64."""
    return high.value >= _lowest_accepted(threshold, high.value.dtype)


def is_identified_at(high: HighScores, threshold: float) -> Tensor:
    """Returns a (P,) mask of the probes whose identity is at or above a threshold."""
    return high.genuine >= _lowest_accepted(threshold, high.genuine.dtype)


def _crossing(high: HighScores, enrolled: int, rate: float) -> tuple[float, float] | None:
    """Returns the last score that may be accepted (inf: none) and the next lower one; None if all may."""
    law = share_with_any(torch.arange(high.others + 1, device="cpu"), high.others, enrolled)
    value, order = high.value.sort(descending=True)
    gains = (law[high.nth + 1] - law[high.nth])[order]  # increase of a probe's rate by its next score
    exceeding = torch.nonzero(gains.cumsum(0) / len(high.genuine) > rate * (1 + 1e-12))
    if not len(exceeding):
        return None
    below = value[exceeding[0, 0]]  # including all ties
    accepted = value[value > below + TIED]
    return (float(accepted[-1]) if len(accepted) else float("inf")), float(below)


def _lowest_accepted(threshold: float, dtype: torch.dtype) -> Tensor:
    """Returns the smallest number of a type that is at least a float64 threshold."""
    rounded = torch.tensor(threshold, dtype=dtype, device="cpu")
    return torch.nextafter(rounded, rounded.new_tensor(torch.inf)) if float(rounded) < threshold else rounded
