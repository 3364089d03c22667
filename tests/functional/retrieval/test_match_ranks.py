import pytest
import torch

from pml_ext.functional.retrieval.match_ranks import count_up_to


@pytest.mark.parametrize(("few", "compared"), [(0, 0), (6, 0), (1000, 0), (6, 2), (6, 6)])
@pytest.mark.parametrize("ties", [True, False])
@pytest.mark.parametrize("width", [1, 40, 700])
def test_equals_the_loops_for_every_strategy(few: int, compared: int, ties: bool, width: int) -> None:
    rows = torch.randint(0, 6, (9, width)).float() if ties else torch.rand(9, width)
    limits = (torch.randint(0, 6, (9, 5)).float() if ties else torch.rand(9, 5)).sort(dim=1).values
    used = torch.tensor([5, 0, 1, 2, 3, 4, 5, 5, 1])
    given = rows.clone()
    found = count_up_to(rows, limits, used, few=few, compared=compared).tolist()
    assert torch.equal(rows, given)
    for row, row_limits, count, asked in zip(rows.tolist(), limits.tolist(), found, used.tolist(), strict=True):
        assert count[:asked] == [sum(value <= limit for value in row) for limit in row_limits[:asked]]


@pytest.mark.parametrize(("few", "compared"), [(0, 0), (1000, 0), (6, 6)])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_non_finite_entries_are_errors(few: int, compared: int, bad: float) -> None:
    rows = torch.rand(3, 50)
    rows[1, 20] = bad
    with pytest.raises(ValueError, match="distances must be finite; got NaN or infinity in 1 of 3 rows"):
        count_up_to(rows, torch.full((3, 1), 0.1), torch.ones(3).long(), few=few, compared=compared)
