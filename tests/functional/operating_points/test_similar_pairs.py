"""The search finds the same pairs as two loops."""

import pytest
import torch

from pml_ext.functional import PairDistances
from pml_ext.functional.operating_points.similar_pairs import SimilarPairFinder


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
