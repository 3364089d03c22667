"""Confidence interval of a verification rate by resampling subjects."""

import torch
from torch import Tensor

from pml_ext._checks import check_fraction, check_labels, check_seed, check_tensor, check_whole
from pml_ext.functional.verification.checks import check_far, check_scores
from pml_ext.functional.verification.tar_at_far_rule import first_refused, last_place_before


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
    """Percentile interval of TAR at FAR from resampled subjects.

    Subjects are independent; pairs of one subject are not. Each resample draws the same number of subjects with
    replacement. A genuine pair counts as often as its subject is drawn, an impostor pair as often as the product of
    its subjects' draws. Each resample chooses its own threshold, as in `functional.tar_at_far`.

    Args:
        scores: (P,) similarities, higher is more alike, finite (negate distances).
        subjects_a, subjects_b: (P,) integer ids of the pairs' subjects; a pair with equal ids is genuine.
        far: allowed false accept rate, in (0, 1].
        resamples: number of resamples, each a pass over the pairs.
        confidence: of the interval, in (0, 1).
        seed: of the draws.
    Returns:
        lower, upper: 0-dim float64; nan if `functional.tar_at_far` is. Resamples without a genuine or an impostor pair
        are skipped.
    Raises:
        ValueError: different lengths, scores not finite, far, confidence or resamples out of range.
    Source: Bolle, Ratha and Pankanti, "Error analysis of pattern recognition systems: the subsets bootstrap",
        CVIU 93 (2004). Paper: subsets of one subject's pairs; here: both subjects of an impostor pair count.

    >>> scores = torch.tensor([0.9, 0.8, 0.3, 0.7, 0.6, 0.2])
    >>> one, other = torch.tensor([0, 1, 2, 0, 0, 1]), torch.tensor([0, 1, 2, 1, 2, 2])
    >>> lower, upper = bootstrap_tar_at_far(scores, one, other, far=0.5, resamples=50)
    >>> 0 <= float(lower) <= float(upper) <= 1
    True
    """
    check_tensor(scores, "scores", "(P,)")
    if scores.ndim != 1:
        raise ValueError(f"scores must have shape (P,); got {tuple(scores.shape)}")
    subjects_a = check_labels(subjects_a, len(scores), "subjects_a")
    subjects_b = check_labels(subjects_b, len(scores), "subjects_b")
    same = subjects_a == subjects_b
    check_scores(scores, same)
    check_far(far)
    check_fraction(confidence, "confidence")
    check_whole(resamples, "resamples", 1, 10**6)
    check_seed(seed)
    nothing = torch.full((), torch.nan, dtype=torch.float64, device=scores.device)
    if not bool(same.any()) or first_refused(far, int((~same).sum())) is None:
        return nothing, nothing
    ordered, order = scores.sort(descending=True)
    # A threshold cannot split ties: round each number of accepted pairs down to the last one between two scores.
    whole = torch.cat([same.new_ones(1), ordered[:-1] != ordered[1:], same.new_ones(1)])
    untied = torch.where(whole, torch.arange(len(whole), device=scores.device), 0).cummax(0).values
    true_accepts, false_accepts = torch.zeros((2, len(whole)), dtype=torch.int64, device=scores.device)
    same = same[order]
    subjects, index = torch.unique(torch.stack([subjects_a[order], subjects_b[order]]), return_inverse=True)
    generator = torch.Generator().manual_seed(seed)
    rates = []
    for _ in range(resamples):
        drawn = torch.randint(len(subjects), (len(subjects),), generator=generator)
        draws = torch.bincount(drawn, minlength=len(subjects)).to(scores.device)
        weights = torch.where(same, draws[index[0]], draws[index[0]] * draws[index[1]])
        torch.cumsum(torch.where(same, weights, 0), 0, out=true_accepts[1:])
        torch.cumsum(weights, 0, out=false_accepts[1:])
        false_accepts -= true_accepts
        genuine, impostors = int(true_accepts[-1]), int(false_accepts[-1])
        if genuine and impostors:
            # With too few impostor pairs for the rate, allow no false accept.
            place = last_place_before(false_accepts, first_refused(far, impostors) or 1)
            rates.append(true_accepts[untied[place]] / genuine)
    if not rates:
        return nothing, nothing
    tail = (1 - confidence) / 2
    lower, upper = torch.stack(rates).double().quantile(torch.tensor([tail, 1 - tail]).to(nothing)).unbind()
    return lower, upper
