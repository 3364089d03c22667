from itertools import combinations
from typing import Any

import pytest
import torch

from pml_ext.functional import PairDistances
from pml_ext.metrics import ThresholdReport
from pml_ext.metrics.threshold.measure import most_wrong_pairs

LABELS = torch.randint(0, 5, (40,), generator=torch.Generator().manual_seed(2))
X = torch.randn(40, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("block_rows", [None, 7])
@pytest.mark.parametrize("count", [4, 1000])
def test_pairs_are_those_of_the_loops(block_rows: int | None, count: int) -> None:
    names = [f"n{i}" for i in range(5)]
    pairs = PairDistances(X, LABELS, block_rows=block_rows)
    found = most_wrong_pairs(pairs, LABELS, names, rows=None, paths=None, count=count)
    unit = X / X.norm(dim=1, keepdim=True)
    cosines: dict[bool, list[tuple[float, frozenset[int]]]] = {True: [], False: []}
    for i, j in combinations(range(40), 2):
        cosines[bool(LABELS[i] == LABELS[j])].append((float(unit[i] @ unit[j]), frozenset((i, j))))
    for same, shown in ((False, found.impostors), (True, found.genuine)):
        expected = sorted(cosines[same], reverse=not same, key=lambda pair: pair[0])[:count]
        assert len(shown) == len(expected)
        assert [pair.cosine for pair in shown] == pytest.approx([cosine for cosine, _ in expected])
        assert [{pair.one.row, pair.other.row} for pair in shown] == [set(rows) for _, rows in expected]
        for pair in shown:
            assert [s.label for s in (pair.one, pair.other)] == [names[LABELS[s.row]] for s in (pair.one, pair.other)]
            assert pair.one.path is None


def test_rows_paths_and_copies_are_named_as_given() -> None:
    x = torch.cat([X, X[:2]])
    labels, rows = torch.cat([LABELS, LABELS[:2]]), [1000 + i for i in range(42)]
    paths = [f"{i}.png" if i % 2 else None for i in range(42)]
    with pytest.warns(UserWarning, match="2 of 42 embeddings are copies"):
        found = ThresholdReport.from_embeddings(x, labels, far=0.1, splits=0, rows=rows, paths=paths)
    assert found.copied_rows == ((1040, 1000), (1041, 1001)) and found.copies == 2
    assert found.worst_pairs is not None
    for pair in (*found.worst_pairs.impostors, *found.worst_pairs.genuine):
        for sample in (pair.one, pair.other):
            assert sample.path == paths[sample.row - 1000]
    for name, given in (("rows", rows[:5]), ("paths", paths[:5])):
        with pytest.raises(ValueError, match=f"{name} must have 42 entries, one an embedding; got 5"):
            ThresholdReport.from_embeddings(x, labels, far=0.1, **{name: given})


def test_genuine_pairs_are_those_that_count(tmp_path: Any) -> None:
    cameras = torch.arange(40) % 2
    found = ThresholdReport.from_embeddings(X, LABELS, far=0.1, splits=0, cameras=cameras)
    assert found.worst_pairs is not None
    assert all(cameras[p.one.row] != cameras[p.other.row] for p in found.worst_pairs.genuine)
    assert any(cameras[p.one.row] == cameras[p.other.row] for p in found.worst_pairs.impostors)
    found.save(tmp_path / "r.json")
    assert ThresholdReport.load(tmp_path / "r.json").worst_pairs is None
