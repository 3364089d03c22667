import math

import numpy as np
import pytest
import torch
from torch import Tensor

from pml_ext.functional import bootstrap_tar_at_far, rate_interval, tar_at_far


def all_pairs(subjects: int, images: int, spread: float) -> tuple[Tensor, Tensor, Tensor]:
    """Scores whose subjects differ by `spread` in their genuine scores."""
    ids = torch.arange(subjects).repeat_interleave(images)
    a, b = torch.triu_indices(len(ids), len(ids), 1)
    quality = spread * torch.randn(subjects)
    scores = torch.randn(len(a)) + (ids[a] == ids[b]) * (3 + quality[ids[a]])
    return scores, ids[a], ids[b]


def test_is_a_percentile_of_resampled_subjects() -> None:
    """The same draws, with each resample's pairs listed and passed to tar_at_far."""
    scores, a, b = all_pairs(8, 3, 1.0)
    a, b = a * 10 - 3, b * 10 - 3
    scores = (scores * 2).round()
    generator = torch.Generator().manual_seed(5)
    rates: dict[float, list[float]] = {0.2: [], 0.03: []}
    for _ in range(40):
        draws = torch.randint(8, (8,), generator=generator).bincount(minlength=8)
        a_draws, b_draws = draws[(a + 3) // 10], draws[(b + 3) // 10]
        times = torch.where(a == b, a_draws, a_draws * b_draws)
        for far in rates:
            rates[far].append(
                tar_at_far(scores.repeat_interleave(times), (a == b).repeat_interleave(times), far).item()
            )
    for far, confidence in ((0.2, 0.8), (0.03, 0.8), (0.03, 0.2)):
        lower, upper = bootstrap_tar_at_far(scores, a, b, far, resamples=40, confidence=confidence, seed=5)
        expected = np.quantile(rates[far], [(1 - confidence) / 2, (1 + confidence) / 2])
        assert [lower.item(), upper.item()] == pytest.approx(expected.tolist())
    assert lower < upper


def test_is_wider_than_for_independent_pairs_if_subjects_differ() -> None:
    scores, a, b = all_pairs(20, 6, 2.0)
    genuine = int((a == b).sum())
    rate = tar_at_far(scores, a == b, 0.01)
    lower, upper = bootstrap_tar_at_far(scores, a, b, 0.01, resamples=200)
    naive_lower, naive_upper = rate_interval(round(rate.item() * genuine), genuine)
    assert lower < rate < upper
    assert upper - lower > 1.5 * (naive_upper - naive_lower)
    again = bootstrap_tar_at_far(scores, a, b, 0.01, resamples=200)
    other = bootstrap_tar_at_far(scores, a, b, 0.01, resamples=200, seed=1)
    assert again == (lower, upper) != other


def test_too_few_pairs_are_nan() -> None:
    scores, a, b = all_pairs(4, 2, 0.0)
    for arguments in ((a, b, 1e-3), (a, a, 0.5), (a, b + 9, 0.5)):
        assert all(math.isnan(value) for value in bootstrap_tar_at_far(scores, *arguments, resamples=3))


def test_errors() -> None:
    scores, a, b = all_pairs(4, 2, 0.0)
    with pytest.raises(ValueError, match="subjects_b must have shape"):
        bootstrap_tar_at_far(scores, a, b[1:], 0.1)
    with pytest.raises(ValueError, match="confidence must be in"):
        bootstrap_tar_at_far(scores, a, b, 0.1, confidence=1.0)
    with pytest.raises(ValueError, match="resamples must be at least 1"):
        bootstrap_tar_at_far(scores, a, b, 0.1, resamples=0)
    with pytest.raises(ValueError, match=r"far must be in \(0, 1\]"):
        bootstrap_tar_at_far(scores, a, b, 0.0)
    with pytest.raises(ValueError, match="scores must be finite"):
        bootstrap_tar_at_far(scores * torch.nan, a, b, 0.1)


def test_resamples_must_be_whole_numbers() -> None:
    with pytest.raises(ValueError, match="resamples must be a whole number; got nan"):
        bootstrap_tar_at_far(torch.rand(9), torch.arange(9), torch.arange(9) // 2, 0.5, resamples=float("nan"))
