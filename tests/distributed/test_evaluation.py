"""Evaluation that ranks divide equals that of one process exactly."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch import distributed as dist

from pml_ext._ops.distributed import gather_on_first
from pml_ext.functional.pairwise.pair_distances import PairDistances
from pml_ext.functional.verification.all_pairs import roc_of_all_pairs
from pml_ext.functional.verification.pair_counts import count_scores

FARS = (0.1, 1e-2, 1e-3)
LENGTHS = (7, 0, 3)  # of the ranks' rows


def a_set() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(1300) // 5
    return torch.randn(260, 16, generator=generator)[labels] + torch.randn(1300, 16, generator=generator), labels


def rows_of(rank: int) -> Tensor:
    return torch.arange(LENGTHS[rank] * 2, dtype=torch.float32).view(-1, 2) + 100 * rank


def on_rank(rank: int, ranks: int) -> dict[Any, Any]:
    group = dist.group.WORLD
    assert group is not None
    found: dict[Any, Any] = {
        ("roc", start): list(roc_of_all_pairs(*a_set(), FARS, group=group, expected_from=start)) for start in (0, 10**9)
    }
    pairs = PairDistances(*a_set(), group=group)
    every = len(pairs.unit) * (len(pairs.unit) - 1) // 2
    kept = [count_scores(pairs, [(-math.inf, math.inf)], most=most)[1][0] for most in (every, every - 1)]
    found["kept"] = [scores is not None and len(scores[0]) == every for scores in kept]
    for step in (2, 100):
        found["gathered", step] = gather_on_first(rows_of(rank), group, step=step)
    found["gathered", "nothing"] = gather_on_first(rows_of(1), group)
    return found


@pytest.mark.parametrize("start", [0, 10**9])
def test_the_curve_is_that_of_one_process(found: list[dict[Any, Any]], start: int) -> None:
    alone = roc_of_all_pairs(*a_set(), FARS)
    for of_rank in found:
        for column, expected in zip(of_rank["roc", start], alone, strict=True):
            assert torch.equal(column, expected)


def test_what_is_kept_is_limited_for_all_ranks_together(found: list[dict[Any, Any]]) -> None:
    assert all(of_rank["kept"] == [True, False] for of_rank in found)


def test_rows_come_together_on_the_first_rank(found: list[dict[Any, Any]]) -> None:
    everything = torch.cat([rows_of(rank) for rank in range(len(found))])
    for step in (2, 100):
        assert torch.equal(found[0]["gathered", step], everything)
        assert all(len(other["gathered", step]) == 0 for other in found[1:])
    assert found[0]["gathered", "nothing"].shape == (0, 2)
