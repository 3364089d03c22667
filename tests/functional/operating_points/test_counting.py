"""Compiled loops and search give equal counters and equal OPIS."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from pml_ext.functional import PairDistances, opis
from pml_ext.functional.operating_points import counting
from pml_ext.functional.operating_points.counting import (
    Bins,
    SimilarPairFinder,
    SimilarPairs,
    compiled_count_rows,
    count_by_loops,
    count_by_search,
)

pytest.importorskip("numba")

MADE = torch.Generator().manual_seed(0)
LABELS = torch.randint(0, 40, (700,), generator=MADE)
SETS = {
    "random": torch.randn(700, 8, generator=MADE),
    "tied": torch.randn(700, 8, generator=MADE).sign(),
    "concentrated": torch.randn(40, 256, generator=MADE)[LABELS] + torch.randn(700, 256, generator=MADE),
    "one point": torch.ones(700, 8),
}


def by_both(x, y, bins, counters=np.int32, block_rows=None):
    """The counters by class and pooled, of loops and of search."""
    pairs = PairDistances(x, y, block_rows=block_rows)
    width = 1 + round((bins.top - bins.bottom) / bins.width)
    row = pairs.index.clamp_max(len(pairs.classes) // 2)  # the last row collects several classes
    sizes = (int(row.max()) + 1) * width, width << bins.log_parts
    found = [[torch.from_numpy(np.zeros(size, counters)) for size in sizes] for _ in range(2)]
    given = pairs, bins, (row * width).int()
    count_by_loops(compiled_count_rows(pairs.unit.numpy().dtype, *[np.dtype(counters)] * 2), *given, *found[0])
    count_by_search(*given, *found[1])
    return found


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize(("top", "bottom"), [(0.6, 0.2), (0.02, -0.03), (1.001, -1.001), (0.999, 0.99)])
def test_loops_and_search_give_equal_counts(name, top, bottom):
    by_loops, by_search = by_both(SETS[name], LABELS, Bins(top, bottom, (top - bottom) / 64, 4))
    assert all(map(torch.equal, by_loops, by_search))
    if bottom < -1:  # each negative pair, for both its classes and once pooled
        negatives = PairDistances(SETS[name], LABELS).total_negative_pairs
        assert [int(each.sum()) for each in by_loops] == [2 * negatives, negatives]


@pytest.mark.parametrize(("dtype", "counters"), [(torch.float64, np.int32), (torch.float32, np.int64)])
@pytest.mark.parametrize("block_rows", [7, 100])
def test_other_types_and_narrow_blocks(dtype, counters, block_rows):
    x, y = torch.randn(160, 5, dtype=dtype), torch.randint(0, 12, (160,))
    by_loops, by_search = by_both(x, y, Bins(0.5, 0.1, 0.01, 3), counters, block_rows)
    assert all(map(torch.equal, by_loops, by_search)) and all(found.sum() > 0 for found in by_loops)
    pairs = PairDistances(x.double(), y)
    negative = (pairs.index[:, None] != pairs.index).triu()
    cosines = (pairs.unit @ pairs.unit.T)[negative]
    bins = (1 + (0.5 - cosines[cosines >= 0.1]) / 0.01).clamp_min(0).long()
    counts = by_loops[1].view(-1, 2**3).sum(1)
    if dtype == torch.float64:
        assert torch.equal(counts, bins.bincount(minlength=41))
    assert (counts - bins.bincount(minlength=41)).abs().sum() <= 2


@pytest.mark.parametrize("bottom", [1.0, 0.5, 0.25, -1.0])
def test_similar_negative_pairs_are_found_once_in_any_share(bottom):
    pairs = PairDistances(torch.randn(700, 16).sign(), LABELS, block_rows=100)  # with exact cosines, tied at the bottom
    finder = SimilarPairFinder(pairs, bottom, torch.arange(700, dtype=torch.int32))
    cosines = pairs.unit @ pairs.unit.T
    is_similar = (cosines >= bottom) & (pairs.index[:, None] != pairs.index)
    expected = is_similar.triu().nonzero()
    for find in (finder._find_on_host, finder._find_on_device):
        found = SimilarPairs(*(torch.cat(part) for part in zip(*map(find, pairs.blocks()), strict=True)))
        rows, columns = found[1].long(), found[2].long()
        order = (rows * 700 + columns).argsort()
        assert torch.equal(torch.stack([rows, columns], dim=1)[order], expected)
        assert_close(found[0], cosines[rows, columns])


@pytest.mark.parametrize("labels", [[0, 1], [0, 0], [0, 0, 0, 1, 1]])
def test_tiny_sets(labels):
    assert all(map(torch.equal, *by_both(torch.randn(len(labels), 3), torch.tensor(labels), Bins(1.1, -1.1, 0.1, 3))))


def test_large_sets_use_compiled_loops_with_the_same_opis(monkeypatch):
    y = torch.arange(5000) // 5
    x = torch.randn(1000, 16)[y] + torch.rand(1000, 1)[y] * torch.randn(5000, 16)
    used = []

    def note(name):
        original = getattr(counting, name)
        monkeypatch.setattr(counting, name, lambda *given: used.append(name) or original(*given))

    note("count_by_search")
    note("count_by_loops")
    found = [opis(x, y)]
    for name, value in (("_WORTH_LOADING", 5001), ("_WORTH_LOADING", 5000), ("compiled_count_rows", lambda *_: None)):
        monkeypatch.setattr(counting, name, value)
        found.append(opis(x, y))
    assert used == ["count_by_search", "count_by_search", "count_by_loops", "count_by_search"]
    assert all(torch.equal(found[0], other) for other in found)
