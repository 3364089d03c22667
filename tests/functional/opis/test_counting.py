"""Counts of negative pairs by bin, against all cosines at once."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from pml_ext.functional import PairDistances
from pml_ext.functional.opis.counting import Bins, SimilarPairFinder, SimilarPairs, count_pairs

MADE = torch.Generator().manual_seed(0)
LABELS = torch.randint(0, 40, (700,), generator=MADE)
SETS = {
    "random": torch.randn(700, 8, generator=MADE),
    "tied": torch.randn(700, 8, generator=MADE).sign(),
    "concentrated": torch.randn(40, 256, generator=MADE)[LABELS] + torch.randn(700, 256, generator=MADE),
    "one point": torch.ones(700, 8),
}


def counted(x, y, bins, counters=np.int32, block_rows=None):
    """The counters by class, one row for each, and pooled by bin."""
    pairs = PairDistances(x, y, block_rows=block_rows)
    width = 1 + round((bins.top - bins.bottom) / bins.width)
    row = pairs.index.clamp_max(len(pairs.classes) // 2)  # the last row collects several classes
    sizes = (int(row.max()) + 1) * width, width << bins.log_parts
    by_class, pooled = (torch.from_numpy(np.zeros(size, counters)) for size in sizes)
    count_pairs(pairs, bins, (row * width).int(), by_class, pooled)
    return by_class.view(-1, width), pooled.view(width, -1).sum(1)


def at_once(x, y, bins):
    """The same counters, from a matrix of all cosines."""
    pairs = PairDistances(x, y)
    width = 1 + round((bins.top - bins.bottom) / bins.width)
    row = pairs.index.clamp_max(len(pairs.classes) // 2)
    cosines = pairs.unit @ pairs.unit.T
    one, other = ((pairs.index[:, None] != pairs.index).triu() & (cosines >= bins.bottom)).nonzero(as_tuple=True)
    bin_ = (1 + (bins.top - cosines[one, other]) / bins.width).clamp(0, width - 1).long()
    by_class = torch.zeros(int(row.max()) + 1, width, dtype=torch.long)
    for samples in (one, other):
        by_class.index_put_((row[samples], bin_), torch.tensor(1), accumulate=True)
    return by_class, bin_.bincount(minlength=width)


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize(("top", "bottom"), [(0.6, 0.2), (0.02, -0.03), (1.001, -1.001), (0.999, 0.99)])
def test_counts_equal_those_of_all_cosines(name, top, bottom):
    x = SETS[name].double()
    bins = Bins(top, bottom, (top - bottom) / 64, 4)
    found, expected = counted(x, LABELS, bins), at_once(x, LABELS, bins)
    for one, other in zip(found, expected, strict=True):
        # Rounding may move a pair at the edge of a bin.
        assert (one - other).abs().sum() <= 4 and one.sum() == other.sum()
    if bottom < -1:  # each negative pair, for both its classes and once pooled
        negatives = PairDistances(x, LABELS).total_negative_pairs
        assert [int(each.sum()) for each in found] == [2 * negatives, negatives]


@pytest.mark.parametrize(("dtype", "counters"), [(torch.float64, np.int32), (torch.float32, np.int64)])
@pytest.mark.parametrize("block_rows", [7, 100])
def test_other_types_and_narrow_blocks(dtype, counters, block_rows):
    x, y, bins = torch.randn(160, 5, dtype=dtype), torch.randint(0, 12, (160,)), Bins(0.5, 0.1, 0.01, 3)
    for one, other in zip(counted(x, y, bins, counters, block_rows), at_once(x.double(), y, bins), strict=True):
        assert one.sum() > 0 and (one - other).abs().sum() <= (4 if dtype == torch.float32 else 0)


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
    x, bins = torch.randn(len(labels), 3, dtype=torch.float64), Bins(1.1, -1.1, 0.1, 3)
    assert all(
        map(torch.equal, counted(x, torch.tensor(labels), bins, np.int64), at_once(x, torch.tensor(labels), bins))
    )
