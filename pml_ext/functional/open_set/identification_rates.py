"""Open-set identification: one probe against a gallery of N enrolled identities."""

from typing import NamedTuple

import torch
from torch import Tensor

from pml_ext._checks import check_fraction, check_number, check_whole
from pml_ext.functional.open_set.best_scores import BestScores
from pml_ext.functional.open_set.gallery_law import share_with_any, share_with_fewer

_TRIAL = 512  # probes
_TIED = 1e-6  # cosines closer than this are equal but for rounding


class Identification(NamedTuple):
    """Error rates of a search, as fractions, averaged over all galleries of a size.

    threshold: a match is reported if its cosine is at least this.
    fpir: share of non-mated probes with at least one reported identity.
    fnir: share of mated probes whose own identity is not among the first `rank` reported; nan without mated probes.
    selectivity: mean number of identities reported for a non-mated probe.

    >>> Identification(threshold=0.4, fpir=0.01, fnir=0.05, selectivity=0.01).fnir
    0.05
    """

    threshold: float
    fpir: float
    fnir: float
    selectivity: float


def identification(
    embeddings: Tensor,
    labels: Tensor,
    *,
    gallery_size: int,
    threshold: float | None = None,
    fpir: float | None = None,
    rank: int = 1,
) -> Identification:
    """Exact rates of searches in a gallery of N identities, measured on a set with more identities.

    Every sample is a probe, once non-mated (N of the other M − 1 identities are enrolled) and, if its identity has
    another sample, once mated (its own and N − 1 others are). An identity's score is its best sample's cosine. If m
    other identities reach the threshold, a random gallery has at least one of them with probability
    1 − C(M − 1 − m, N) / C(M − 1, N), so the mean over all galleries needs no sampling.

    Args:
        embeddings: (N, D), finite; normalised here.
        labels: (N,) identities, two or more.
        gallery_size: identities enrolled, 1 to M − 1.
        threshold: cosine from which an identity is reported; −1 reports all, so that 1 − fnir is the CMC at `rank`.
        fpir: the highest rate allowed, instead of a threshold. The lowest threshold that meets it is chosen, midway to
            the next lower score; cosines within 1e-6 count as equal. If the highest score alone exceeds the rate, the
            threshold is above that score.
        rank: the own identity must be among this many. Ties count against it.
    Returns:
        Identification, in float64; cosines are float32, or float64 for float64 embeddings.
    Raises:
        ValueError: a gallery larger than M − 1 identities; none or both of threshold and fpir; values out of range.
    Source: ISO/IEC 19795-1 and NISTIR 8271 (FPIR, FNIR, selectivity).

    >>> angles = torch.tensor([0.0, 0.1, 1.0, 1.1, 2.0, 2.1])
    >>> embeddings = torch.stack([angles.cos(), angles.sin()], dim=1)
    >>> found = identification(embeddings, torch.tensor([0, 0, 1, 1, 2, 2]), gallery_size=1, fpir=0.01)
    >>> found.fpir, found.fnir
    (0.0, 0.0)
    """
    if (threshold is None) == (fpir is None):
        raise ValueError(f"give one of threshold and fpir; got threshold={threshold!r}, fpir={fpir!r}")
    check_whole(rank, "rank", 1)
    scores = BestScores(embeddings, labels)
    others = scores.identities - 1
    check_whole(gallery_size, "gallery_size")
    if not 1 <= gallery_size <= others:
        raise ValueError(
            f"gallery_size must be from 1 to {others}, one less than the identities of the set; got {gallery_size}: "
            "measure a larger set"
        )
    if fpir is not None:
        check_fraction(fpir, "fpir")
        return _at_rate(scores, gallery_size, fpir, rank)
    assert threshold is not None
    check_number(threshold, "threshold")
    if threshold != threshold:
        raise ValueError("threshold must be a number; got nan")
    return _at_threshold(scores, gallery_size, float(threshold), rank)


class _Tail(NamedTuple):
    """The scores from a lowest score on."""

    value: Tensor  # (S,) of probes with other identities, descending
    reached: Tensor  # (S,) the false positive rate if all scores down to each are accepted
    own: Tensor  # (P,) each probe's score with its own identity
    before: Tensor  # (P,) the number of others not below it


def _at_threshold(scores: BestScores, enrolled: int, threshold: float, rank: int) -> Identification:
    others = scores.identities - 1
    positives, reported, own, before = 0.0, 0, [], []
    for block in scores.blocks():
        lowest = _lowest_accepted(threshold, block.own.dtype)
        above = (block.others >= lowest).sum(1) if threshold > -1 else torch.full_like(block.probes, others)
        positives += float(share_with_any(above, others, enrolled).sum())
        reported += int(above.sum())
        own.append(block.own)
        before.append((block.others >= block.own[:, None]).sum(1))
    fnir = _miss_rate(torch.cat(own), torch.cat(before), others, enrolled, threshold, rank)
    return Identification(threshold, positives / scores.samples, fnir, reported / scores.samples * enrolled / others)


def _at_rate(scores: BestScores, enrolled: int, fpir: float, rank: int) -> Identification:
    """Rates at the lowest threshold with at most this FPIR, in one pass over all scores and one over a sample's."""
    others = scores.identities - 1
    some = torch.randperm(scores.samples, generator=torch.Generator().manual_seed(0))[:_TRIAL]
    trial, rate, crossing = _tail(scores, enrolled, -2.0, some), fpir, None
    while crossing is None:
        rate = min(1.0, 2 * rate + 3 / len(some))
        enough = None if rate >= 1 else _crossing(trial, rate)
        tail = _tail(scores, enrolled, -2.0 if enough is None else enough[1])
        crossing = _crossing(tail, fpir)
    accepted, refused = crossing
    threshold = (accepted + refused) / 2 if accepted < float("inf") else refused + _TIED
    count = int((tail.value >= _lowest_accepted(threshold, tail.value.dtype)).sum())
    return Identification(
        threshold,
        float(tail.reached[count - 1]) if count else 0.0,
        _miss_rate(tail.own, tail.before, others, enrolled, threshold, rank),
        count / scores.samples * enrolled / others,
    )


def _tail(scores: BestScores, enrolled: int, low: float, probes: Tensor | None = None) -> _Tail:
    """The scores of all probes (or some) from `low` on."""
    others = scores.identities - 1
    law = share_with_any(torch.arange(others + 1), others, enrolled).to(scores.device)
    values, gains, own, before = [], [], [], []
    for block in scores.blocks(probes):
        row, column = (block.others >= low).nonzero(as_tuple=True)
        value, order = block.others[row, column].sort(descending=True)
        row, by_probe = row[order].sort(stable=True)
        sizes = torch.bincount(row, minlength=len(block.own))
        nth = torch.arange(len(row), device=row.device) - (sizes.cumsum(0) - sizes)[row]
        values.append(value[by_probe])
        gains.append(law[nth + 1] - law[nth])  # of a probe's rate, by its next score
        own.append(block.own)
        before.append((block.others >= block.own[:, None]).sum(1))
    value, order = torch.cat(values).sort(descending=True)
    own_of_all = torch.cat(own)
    return _Tail(value, torch.cat(gains)[order].cumsum(0) / len(own_of_all), own_of_all, torch.cat(before))


def _crossing(tail: _Tail, rate: float) -> tuple[float, float] | None:
    """The last score that may be accepted (inf: none) and the next lower one; None if all may be."""
    exceeding = torch.nonzero(tail.reached > rate * (1 + 1e-12))
    if not len(exceeding):
        return None
    below = tail.value[exceeding[0, 0]]  # with all that tie
    accepted = tail.value[tail.value > below + _TIED]
    return (float(accepted[-1]) if len(accepted) else float("inf")), float(below)


def _miss_rate(own: Tensor, before: Tensor, others: int, enrolled: int, threshold: float, rank: int) -> float:
    mated = own > -torch.inf
    if not bool(mated.any()):
        return float("nan")
    found = share_with_fewer(before[mated], others, enrolled - 1, rank)
    return 1 - float((found * (own[mated] >= _lowest_accepted(threshold, own.dtype))).mean())


def _lowest_accepted(threshold: float, dtype: torch.dtype) -> Tensor:
    """The smallest number of a type that is at least a float64 threshold."""
    rounded = torch.tensor(threshold, dtype=dtype)
    return torch.nextafter(rounded, rounded.new_tensor(torch.inf)) if float(rounded) < threshold else rounded
