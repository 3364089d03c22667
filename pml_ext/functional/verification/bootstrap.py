"""How far a verification rate may be off: resampling of subjects."""

import torch
from torch import Tensor

from pml_ext._checks import check_labels
from pml_ext.functional.verification.rates import check_far, check_scores, largest_count_within


def bootstrap_tar_at_far(
    scores: Tensor,
    subjects_a: Tensor,
    subjects_b: Tensor,
    far: float,
    *,
    resamples: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
) -> tuple[Tensor, Tensor]:
    """Percentile interval of TAR at FAR when subjects, not pairs, are drawn anew.

    Pairs of one subject are not independent, subjects are. Each resample draws as many subjects as there are, with
    replacement; a genuine pair counts as often as its subject was drawn, an impostor pair as often as the product
    of its two subjects' draws. The threshold is chosen anew in each resample, as in `functional.tar_at_far`.

    Args:
        scores: (P,) similarities, higher is more alike, finite (negate distances).
        subjects_a, subjects_b: (P,) integer ids of the pairs' subjects; a pair of equal ids is genuine.
        far: allowed false accept rate, in (0, 1].
        resamples: how many; each costs a pass over the pairs.
        confidence: of the interval, in (0, 1).
        seed: of the draws.
    Returns:
        lower, upper: 0-dim float64; nan where `functional.tar_at_far` is. Resamples without a genuine or an impostor
        pair are left out.
    Raises:
        ValueError: lengths that differ, scores not finite, far, confidence or resamples out of range.
    Source: Bolle, Ratha and Pankanti, "Error analysis of pattern recognition systems: the subsets bootstrap",
        CVIU 93 (2004). Paper: whole subsets of one subject's pairs; here: both subjects of an impostor pair count.
    """
    check_labels(subjects_a, len(scores), "subjects_a")
    check_labels(subjects_b, len(scores), "subjects_b")
    same = subjects_a == subjects_b
    check_scores(scores, same)
    check_far(far)
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be in (0, 1); got {confidence!r}")
    if resamples < 1:
        raise ValueError(f"resamples must be at least 1; got {resamples}")
    nothing = torch.full((), torch.nan, dtype=torch.float64, device=scores.device)
    if not bool(same.any()) or not largest_count_within(far, int((~same).sum())):
        return nothing, nothing
    ordered, order = scores.sort(descending=True)
    last_of_ties = torch.cat([ordered[:-1] != ordered[1:], same.new_ones(1)])
    same = same[order]
    subjects, index = torch.unique(torch.stack([subjects_a[order], subjects_b[order]]), return_inverse=True)
    generator = torch.Generator().manual_seed(seed)
    rates = []
    for _ in range(resamples):
        drawn = torch.randint(len(subjects), (len(subjects),), generator=generator)
        draws = torch.bincount(drawn, minlength=len(subjects)).to(scores.device)
        weights = torch.where(same, draws[index[0]], draws[index[0]] * draws[index[1]])
        accepts = torch.where(same, weights, 0).cumsum(0)
        false_accepts = weights.cumsum(0) - accepts
        genuine, impostors = int(accepts[-1]), int(false_accepts[-1])
        if genuine and impostors:
            within = last_of_ties & (false_accepts <= largest_count_within(far, impostors))
            rates.append(torch.where(within, accepts, 0).max() / genuine)
    if not rates:
        return nothing, nothing
    tail = (1 - confidence) / 2
    lower, upper = torch.stack(rates).double().quantile(torch.tensor([tail, 1 - tail]).to(nothing)).unbind()
    return lower, upper
