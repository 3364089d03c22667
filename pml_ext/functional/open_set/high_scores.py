"""The highest scores of probes with other identities, from which every rate of a search follows."""

from typing import NamedTuple

import torch
from torch import Tensor

from pml_ext.functional.open_set.best_scores import BestScores
from pml_ext.functional.open_set.gallery_law import share_with_any

ALL = -1e9  # below every score
_TRIAL = 512  # probes
_TIED = 1e-6  # cosines closer than this are equal but for rounding


class HighScores(NamedTuple):
    """Scores of P probes with other identities from `low` on, probe by probe, descending; on the CPU."""

    value: Tensor  # (S,)
    probe: Tensor  # (S,) from 0 to P − 1
    identity: Tensor  # (S,) from 0 to M − 1
    nth: Tensor  # (S,) 0 for a probe's highest
    own: Tensor  # (P,) each probe's score with its own identity, −inf where it has none
    before: Tensor  # (P,) the number of other identities not below it
    label: Tensor  # (P,) its identity
    identities: int
    low: float

    @property
    def others(self) -> int:
        """Identities that a probe can be taken for."""
        return self.identities - 1


def scores_from(scores: BestScores, low: float, probes: Tensor | None = None) -> HighScores:
    """The scores of all probes (or some) from `low` on."""
    found: list[tuple[Tensor, ...]] = []
    start = 0
    reached = torch.empty(0, dtype=torch.bool, device=scores.device)  # one memory for all blocks, as theirs
    for block in scores.blocks(probes):
        lowest = _lowest_accepted(low, block.others.dtype).to(scores.device)
        row, column = torch.ge(block.others, lowest, out=reached.resize_(0)).nonzero(as_tuple=True)
        value, order = block.others[row, column].sort(descending=True)
        row, by_probe = row[order].sort(stable=True)
        sizes = torch.bincount(row, minlength=len(block.own))
        nth = torch.arange(len(row), device=row.device) - (sizes.cumsum(0) - sizes)[row]
        before = torch.ge(block.others, block.own[:, None], out=reached.resize_(0)).sum(1)
        which = value[by_probe], row + start, column[order][by_probe], nth
        found.append((*which, block.own, before, scores.label[block.probes]))
        start += len(block.own)
    value, probe, identity, nth, own, before, label = (torch.cat(part).cpu() for part in zip(*found, strict=True))
    return HighScores(value, probe, identity, nth, own, before, label, scores.identities, low)


def scores_for_rate(scores: BestScores, enrolled: int, fpir: float) -> HighScores:
    """The scores that decide which threshold has a false positive rate in galleries of at least this size."""
    some = torch.randperm(scores.samples, generator=torch.Generator().manual_seed(0))[:_TRIAL]
    trial, rate = scores_from(scores, ALL, some.to(scores.device)), fpir
    while True:
        rate = min(1.0, 2 * rate + 3 / len(some))
        enough = None if rate >= 1 else _crossing(trial, enrolled, rate)
        high = scores_from(scores, ALL if enough is None else enough[1])
        if _crossing(high, enrolled, fpir) is not None:
            return high


def threshold_for_rate(high: HighScores, enrolled: int, fpir: float) -> float | None:
    """The lowest threshold with at most this rate, midway to the next lower score; None if it lies below `low`."""
    crossing = _crossing(high, enrolled, fpir)
    if crossing is None:
        return None
    accepted, refused = crossing
    return (accepted + refused) / 2 if accepted < float("inf") else refused + _TIED


def reported(high: HighScores, threshold: float) -> Tensor:
    """(S,) which scores are at or above a threshold, in float64."""
    return high.value >= _lowest_accepted(threshold, high.value.dtype)


def found_at(high: HighScores, threshold: float) -> Tensor:
    """(P,) whose own identity is at or above a threshold."""
    return high.own >= _lowest_accepted(threshold, high.own.dtype)


def _crossing(high: HighScores, enrolled: int, rate: float) -> tuple[float, float] | None:
    """The last score that may be accepted (inf: none) and the next lower one; None if all may be."""
    law = share_with_any(torch.arange(high.others + 1), high.others, enrolled)
    value, order = high.value.sort(descending=True)
    gains = (law[high.nth + 1] - law[high.nth])[order]  # of a probe's rate, by its next score
    exceeding = torch.nonzero(gains.cumsum(0) / len(high.own) > rate * (1 + 1e-12))
    if not len(exceeding):
        return None
    below = value[exceeding[0, 0]]  # with all that tie
    accepted = value[value > below + _TIED]
    return (float(accepted[-1]) if len(accepted) else float("inf")), float(below)


def _lowest_accepted(threshold: float, dtype: torch.dtype) -> Tensor:
    """The smallest number of a type that is at least a float64 threshold."""
    rounded = torch.tensor(threshold, dtype=dtype)
    return torch.nextafter(rounded, rounded.new_tensor(torch.inf)) if float(rounded) < threshold else rounded
