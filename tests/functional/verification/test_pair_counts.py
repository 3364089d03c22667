"""Compiled loops and search count and find the same scores."""

import math

import pytest
import torch
from torch import Tensor

from pml_ext.functional import labelled_pairs_roc
from pml_ext.functional.pairwise.pair_distances import PairDistances
from pml_ext.functional.verification import pair_counts
from pml_ext.functional.verification.pair_counts import Kept, Range, count_scores
from tests.functional.operating_points.test_counting import LABELS, SETS

FINE = 2.0**-19  # the width of a bin
RANGES: dict[str, list[Range]] = {
    "none": [],
    "all": [(-math.inf, math.inf)],
    "one bin": [(0.0, FINE)],
    "several": [(-0.3, -0.2), (0.1, 0.11), (0.5, math.inf)],
}


def counted(pairs: PairDistances, ranges: list[Range], most: int = 2**24) -> tuple[Tensor, Kept | None]:
    histogram, kept = count_scores(pairs, ranges, most=most)
    return histogram.counts, kept


@pytest.fixture
def loops(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Sets of any size are counted by loops."""
    pytest.importorskip("numba")
    monkeypatch.setattr(pair_counts, "_WORTH_LOADING", 0)
    monkeypatch.setattr(pair_counts, "count_by_search", lambda *_: pytest.fail("searched"))
    return monkeypatch


@pytest.mark.parametrize("ranges", RANGES)
@pytest.mark.parametrize("name", SETS)
def test_every_pair_is_counted_once(name: str, ranges: str) -> None:
    """Against one matrix of all scores."""
    pairs = PairDistances(SETS[name].double(), LABELS, block_rows=100)
    counts, kept = counted(pairs, RANGES[ranges])
    assert counts.sum(1).tolist() == [pairs.total_negative_pairs, pairs.total_positive_pairs]
    scores = (pairs.unit @ pairs.unit.T)[(upper := torch.ones(700, 700).triu(1).bool())]
    same = (pairs.index[:, None] == pairs.index)[upper]
    inside = torch.zeros_like(same)
    for low, high in RANGES[ranges]:
        inside |= (scores >= low) & (scores < high)
    assert kept is not None
    order, other = scores[inside].argsort(), kept[0].argsort()
    if ranges != "one bin":  # whose edges a rounding of the product crosses
        torch.testing.assert_close(kept[0][other], scores[inside][order], rtol=0, atol=1e-12)
        assert int(kept[1].sum()) == int(same[inside].sum())


@pytest.mark.parametrize("ranges", RANGES)
@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("block_rows", [None, 37])
def test_loops_find_what_search_finds(
    name: str, ranges: str, dtype: torch.dtype, block_rows: int | None, loops: pytest.MonkeyPatch
) -> None:
    pairs = PairDistances(SETS[name].to(dtype), LABELS, block_rows=block_rows, offsets=torch.linspace(0, 1, 700))
    found, kept = counted(pairs, RANGES[ranges])
    loops.undo()
    expected, kept_by_search = counted(pairs, RANGES[ranges])
    assert torch.equal(found, expected)
    assert kept is not None and kept_by_search is not None
    assert all(torch.equal(*columns) for columns in zip(kept, kept_by_search, strict=True))


def test_too_many_are_not_kept(loops: pytest.MonkeyPatch) -> None:
    pairs = PairDistances(SETS["random"], LABELS)
    every = pairs.total_negative_pairs + pairs.total_positive_pairs
    for _ in range(2):  # by loops, then by search
        assert [counted(pairs, RANGES["all"], most)[1] is None for most in (every, every - 1)] == [False, True]
        loops.undo()


def test_the_curve_is_the_same(loops: pytest.MonkeyPatch) -> None:
    x = torch.randn(40, 16)[LABELS] + torch.randn(700, 16)
    by_loops = labelled_pairs_roc(x, LABELS, fars=(0.1, 1e-3))
    loops.undo()
    for found, expected in zip(by_loops, labelled_pairs_roc(x, LABELS, fars=(0.1, 1e-3)), strict=True):
        assert torch.equal(found, expected)
