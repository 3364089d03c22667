"""The negative pairs of blocks against loops, and the sample that says which of them are wanted."""

import pytest
import torch

from pml_ext.functional import PairDistances
from pml_ext.functional.operating_points.bracket import calibration_bracket
from pml_ext.functional.pairwise.similar import SimilarPairFinder


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


def test_the_bracket_encloses_the_range() -> None:
    y = torch.arange(3000) // 10
    x = torch.randn(300, 16)[y] + torch.randn(3000, 16)
    pairs = PairDistances(x, y)
    ranks = [int(far * pairs.total_negative_pairs) for far in (1e-2, 1e-1)]
    d_min, d_max = pairs.negative_distances_at(ranks).tolist()
    bracket = calibration_bracket(pairs, (1e-2, 1e-1))
    assert bracket is not None
    assert bracket[0] > 1 - d_min**2 / 2 > 1 - d_max**2 / 2 > bracket[1]
    assert bracket[0] - bracket[1] < 3 * (d_max**2 - d_min**2) / 2


def test_a_sample_of_equal_distances_gives_none() -> None:
    y = torch.arange(2000) // 4
    assert calibration_bracket(PairDistances(torch.randn(2000, 16).sign(), y), (1e-2, 1e-1)) is None
