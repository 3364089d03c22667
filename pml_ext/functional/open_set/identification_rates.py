"""Open-set identification: one probe against a gallery of N enrolled identities."""

from typing import NamedTuple

from torch import Tensor

from pml_ext._checks import check_fraction, check_number, check_whole
from pml_ext.functional.open_set.best_scores import BestScores, Template
from pml_ext.functional.open_set.high_scores import ALL, scores_for_rate, scores_from, threshold_for_rate
from pml_ext.functional.open_set.rates_by_size import search_rates


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
    cameras: Tensor | None = None,
    template: Template = "best",
) -> Identification:
    """Exact rates of searches in a gallery of N identities, measured on a set with more identities.

    Every sample is a probe, once non-mated (N of the other M − 1 identities are enrolled) and, if its identity has
    another sample, once mated (its own and N − 1 others are). If m other identities reach the threshold, a random
    gallery has at least one of them with probability 1 − C(M − 1 − m, N) / C(M − 1, N), so the mean over all galleries
    needs no sampling.

    Args:
        embeddings: (N, D), finite; normalised here.
        labels: (N,) identities, two or more.
        gallery_size: identities enrolled, 1 to M − 1.
        threshold: cosine from which an identity is reported; −1 reports all, so that 1 − fnir is the CMC at `rank`.
        fpir: the highest rate allowed, instead of a threshold. The lowest threshold that meets it is chosen, midway to
            the next lower score; cosines within 1e-6 count as equal. If the highest score alone exceeds the rate, the
            threshold is above that score.
        rank: the own identity must be among this many. Ties count against it.
        cameras: (N,) integers: a probe's own identity is enrolled by its samples of other cameras alone.
        template: the score of an identity: "best" of the cosines with its samples, or that with their "mean".
    Returns:
        Identification, in float64; cosines are float32, or float64 for float64 embeddings.
    Raises:
        ValueError: a gallery larger than M − 1 identities; none or both of threshold and fpir; values out of range.
    Source: ISO/IEC 19795-1 and NISTIR 8271 (FPIR, FNIR, selectivity).

    >>> import torch
    >>> angles = torch.tensor([0.0, 0.1, 1.0, 1.1, 2.0, 2.1])
    >>> embeddings = torch.stack([angles.cos(), angles.sin()], dim=1)
    >>> found = identification(embeddings, torch.tensor([0, 0, 1, 1, 2, 2]), gallery_size=1, fpir=0.01)
    >>> found.fpir, found.fnir
    (0.0, 0.0)
    """
    if (threshold is None) == (fpir is None):
        raise ValueError(f"give one of threshold and fpir; got threshold={threshold!r}, fpir={fpir!r}")
    check_whole(rank, "rank", 1)
    scores = BestScores(embeddings, labels, cameras, template)
    others = scores.identities - 1
    check_whole(gallery_size, "gallery_size")
    if not 1 <= gallery_size <= others:
        raise ValueError(
            f"gallery_size must be from 1 to {others}, one less than the identities of the set; got {gallery_size}: "
            "measure a larger set"
        )
    if fpir is not None:
        check_fraction(fpir, "fpir")
        high = scores_for_rate(scores, gallery_size, fpir)
        threshold = threshold_for_rate(high, gallery_size, fpir)
        assert threshold is not None
    else:
        assert threshold is not None
        check_number(threshold, "threshold")
        if threshold != threshold:
            raise ValueError("threshold must be a number; got nan")
        # A cosine is at least −1, but for rounding.
        high = scores_from(scores, threshold if threshold > -1 else ALL)
    rates = search_rates(high, threshold if threshold > -1 else ALL, gallery_size, rank=rank)
    fnir = float("nan") if rates.fnir is None else rates.fnir.rate
    return Identification(float(threshold), rates.fpir.rate, fnir, rates.selectivity.rate)
