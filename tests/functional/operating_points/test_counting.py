"""Compiled loops and search give equal counters and equal OPIS."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from pml_ext.functional import PairDistances, opis
from pml_ext.functional.operating_points import counting
from pml_ext.functional.operating_points.counting import (
    Bins,
    SimilarPairFinder,
    compiled_count_rows,
    count_by_loops,
    count_by_search,
    count_pairs,
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


def counted(
    x: Tensor, y: Tensor, bins: Bins, counters: type[np.integer], *, by_loops: bool, block_rows: int | None = None
) -> tuple[Tensor, Tensor]:
    pairs = PairDistances(x, y, block_rows=block_rows)
    width = 1 + round((bins.top - bins.bottom) / bins.width)
    row = pairs.index.clamp_max(len(pairs.classes) // 2)  # the last row collects several classes
    by_class = torch.from_numpy(np.zeros((int(row.max()) + 1) * width, counters))
    pooled = torch.from_numpy(np.zeros(width << bins.log_parts, counters))
    arguments = pairs, bins, (row * width).int(), by_class, pooled
    if by_loops:
        count_rows = compiled_count_rows(pairs.unit.numpy().dtype, np.dtype(counters), np.dtype(counters))
        assert count_rows is not None
        count_by_loops(count_rows, *arguments)
    else:
        count_by_search(*arguments)
    return by_class, pooled


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize(("top", "bottom"), [(0.6, 0.2), (0.02, -0.03), (1.001, -1.001), (0.999, 0.99)])
def test_loops_and_search_give_equal_counts(name: str, top: float, bottom: float) -> None:
    bins = Bins(top, bottom, (top - bottom) / 64, 4)
    by_loops, by_search = (counted(SETS[name], LABELS, bins, np.int32, by_loops=way) for way in (True, False))
    for found, expected in zip(by_loops, by_search, strict=True):
        assert torch.equal(found, expected)
    if bottom < -1:  # each negative pair, for both its classes and once pooled
        negatives = PairDistances(SETS[name], LABELS).total_negative_pairs
        assert [int(each.sum()) for each in by_loops] == [2 * negatives, negatives]


@pytest.mark.parametrize(("dtype", "counters"), [(torch.float64, np.int32), (torch.float32, np.int64)])
@pytest.mark.parametrize("block_rows", [7, 100])
def test_other_types_and_narrow_blocks(dtype: torch.dtype, counters: type[np.integer], block_rows: int) -> None:
    x, y = torch.randn(160, 5, dtype=dtype), torch.randint(0, 12, (160,))
    of = dict(bins=Bins(0.5, 0.1, 0.01, 3), counters=counters, block_rows=block_rows)
    for found, expected in zip(counted(x, y, by_loops=True, **of), counted(x, y, by_loops=False, **of), strict=True):
        assert found.sum() > 0
        assert torch.equal(found, expected)


@pytest.mark.parametrize("labels", [[0, 1], [0, 0], [0, 0, 0, 1, 1]])
def test_tiny_sets(labels: list[int]) -> None:
    x, y, bins = torch.randn(len(labels), 3), torch.tensor(labels), Bins(1.1, -1.1, 0.1, 3)
    for found, expected in zip(*(counted(x, y, bins, np.int32, by_loops=way) for way in (True, False)), strict=True):
        assert torch.equal(found, expected)


def test_large_sets_use_compiled_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = normalize(torch.randn(300, 4)), torch.arange(300) // 3
    pairs, bins = PairDistances(x, y), Bins(0.9, 0.5, 0.01, 3)
    used: list[str] = []
    monkeypatch.setattr(counting, "count_by_loops", lambda *_: used.append("loops"))
    monkeypatch.setattr(counting, "count_by_search", lambda *_: used.append("search"))
    counters = pairs, bins, pairs.index.int(), torch.zeros(100, dtype=torch.int32), torch.zeros(328, dtype=torch.int32)
    count_pairs(*counters)
    monkeypatch.setattr(counting, "_WORTH_LOADING", 300)
    count_pairs(*counters)
    monkeypatch.setattr(counting, "compiled_count_rows", lambda *_: None)
    count_pairs(*counters)
    assert used == ["search", "loops", "search"]


def test_opis_is_the_same_with_loops_and_search(monkeypatch: pytest.MonkeyPatch) -> None:
    y = torch.arange(5000) // 5
    x = torch.randn(1000, 16)[y] + torch.rand(1000, 1)[y] * torch.randn(5000, 16)
    by_search = opis(x, y)
    monkeypatch.setattr(counting, "count_by_search", lambda *_: pytest.fail("searched"))
    monkeypatch.setattr(counting, "_WORTH_LOADING", 5000)
    assert torch.equal(opis(x, y), by_search)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.05, 0.09, 0.3, 1.0])
@pytest.mark.parametrize("block_rows", [7, 40, 100])
def test_every_similar_negative_pair_is_found_once(share: float, block_rows: int) -> None:
    x, y = torch.randn(90, 5, dtype=torch.float64), torch.randint(0, 12, (90,))
    pairs = PairDistances(x, y, block_rows=block_rows)
    products, sorted_labels = (pairs.unit @ pairs.unit.T).tolist(), y.sort().values.tolist()
    loops = {
        (i, j): products[i][j] for i in range(90) for j in range(i + 1, 90) if sorted_labels[i] != sorted_labels[j]
    }
    bottom = 2.0 if share == 0 else sorted(loops.values(), reverse=True)[int(share * len(loops)) - 1] - 1e-9
    finder = SimilarPairFinder(pairs, bottom, torch.arange(90, dtype=torch.int32))
    found: list[tuple[tuple[int, int], float]] = []
    for block in pairs.blocks():
        cosines, rows, columns = finder.find(block)
        found += zip(zip(rows.tolist(), columns.tolist(), strict=True), cosines.tolist(), strict=True)
    expected = {places: cosine for places, cosine in loops.items() if cosine >= bottom}
    assert len(found) == len(expected) == int(share * len(loops))
    assert dict(found) == pytest.approx(expected, abs=1e-12)
