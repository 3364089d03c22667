"""The bracket of cosines estimated from a sample."""

import torch

from pml_ext.functional import PairDistances
from pml_ext.functional.operating_points.bracket import calibration_bracket


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


def test_a_sample_of_one_class_gives_no_bracket() -> None:
    y = torch.zeros(2100, dtype=torch.int64)
    y[0] = 1
    assert calibration_bracket(PairDistances(torch.randn(2100, 4), y), (0.1, 0.1)) is None


def test_equal_distances_give_no_bracket() -> None:
    y = torch.arange(2000) // 4
    assert calibration_bracket(PairDistances(torch.randn(2000, 16).sign(), y), (1e-2, 1e-1)) is None
