import pytest
import torch

from pml_ext.functional.pairwise.pair_blocks import PairBlocks


def a_set(count: int = 50) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(count, 4, dtype=torch.float64), torch.randint(0, 5, (count,))


@pytest.mark.parametrize("block_rows", [1, 7, 1000])
def test_each_pair_is_in_one_block(block_rows: int) -> None:
    x, y = a_set()
    pairs = PairBlocks(x, y, block_rows=block_rows)
    negative, positive = torch.zeros(2, 50, 50, dtype=torch.int64)
    for block in pairs.blocks():
        torch.testing.assert_close(block.cosines, pairs.unit[block.rows] @ pairs.unit[block.columns].T)
        negative[block.rows, block.columns] += pairs._negative(block)
        if block.mixed:
            flat, row, column = pairs._positive_places(block)
            assert torch.equal(flat, row * block.cosines.shape[1] + column)
            positive[row + block.rows.start, column + block.columns.start] += 1
        else:
            assert pairs._negative(block).all()
    same = pairs.index[:, None] == pairs.index
    assert torch.equal(negative.bool(), ~same.triu() & same.new_ones(50, 50).triu()) and negative.max() == 1
    assert torch.equal(positive.bool(), same.triu(1)) and positive.max() == 1


def test_blocks_respect_block_rows() -> None:
    x, y = a_set(100)
    pairs = PairBlocks(x, y, block_rows=16)
    shapes = [tuple(block.cosines.shape) for block in pairs.blocks()]
    assert max(map(max, shapes)) == 16
    seen = sum(d[0] * d[1] for d in shapes)
    assert seen < 100 * 100 * 0.6  # the upper triangle only


@pytest.mark.parametrize("block_rows", [0, -1, 2.5, float("nan")])
def test_block_rows_below_one_are_errors(block_rows: float) -> None:
    with pytest.raises(ValueError, match="block_rows must be"):
        PairBlocks(*a_set(), block_rows=block_rows)
