import pytest
import torch

from pml_ext._ops.normalize import unit_rows
from pml_ext.functional.pairwise.listed import listed_cosines
from tests.oracles import verification as oracle


@pytest.mark.parametrize("entries", [1, 30, None])
def test_equals_the_loops_in_blocks_of_any_size(entries: int | None) -> None:
    x, y = torch.randn(9, 4).double(), torch.randn(6, 4).double()
    rows, others = torch.randint(0, 9, (30,)), torch.randint(0, 6, (30,))
    expected = [oracle.cosine(x[i].tolist(), y[j].tolist()) for i, j in zip(rows, others, strict=True)]
    found = listed_cosines(unit_rows(x), unit_rows(y), rows, others, entries=entries)
    assert found.tolist() == pytest.approx(expected, rel=1e-12)
    assert listed_cosines(x, y, rows[:0], others[:0]).shape == (0,)
