"""All pairs in blocks, counts and order statistics of their distances, against loops."""

import pytest
import torch
from pytest import approx
from torch.nn.functional import normalize
from torch.testing import assert_close

from pml_ext.functional import (
    PairDistances,
    labelled_pairs_roc,
)
from pml_ext.functional.pairwise import pair_distances
from pml_ext.functional.pairwise.pair_distances import count_accepted
from tests.oracles import metrics as oracle
from tests.refusals import refusals

F64 = torch.float64


def a_set(count=50):
    return torch.randn(count, 4, dtype=F64), torch.randint(0, 5, (count,))


@pytest.mark.parametrize("block_rows", [1, 7, 16, 10**9])
def test_counts_equal_the_loops_for_any_blocks(block_rows, device):
    x, y = a_set()
    pairs = PairDistances(x.to(device), y.to(device), block_rows=block_rows)
    loops = oracle.all_pairs(x.numpy(), y.tolist())
    thresholds = torch.tensor([0.1, 0.7, 0.7, 1.2, 1.9, 2], dtype=F64)
    positives, negatives = pairs.accepted(thresholds)
    for c in range(5):
        inside = [d for d, a, b in loops if a == b == c]
        across = [d for d, a, b in loops if (a == c) != (b == c)]
        assert positives[c].tolist() == [sum(d <= t for d in inside) for t in thresholds.tolist()]
        assert negatives[c].tolist() == [sum(d <= t for d in across) for t in thresholds.tolist()]
        assert (pairs.positive_pairs[c], pairs.negative_pairs[c]) == (len(inside), len(across))
    alone, none = pairs.accepted(thresholds, positives_only=True)
    assert torch.equal(alone, positives) and not none.any()
    together = count_accepted(pairs, thresholds)
    assert torch.equal(together[0], positives.sum(dim=0)) and torch.equal(2 * together[1], negatives.sum(dim=0))
    assert together[1][-1] == pairs.total_negative_pairs
    computed = sum(block.cosines.numel() for block in pairs.blocks())
    assert computed <= 0.7 * 50 * 50 or block_rows > 10  # little more than the upper triangle


@pytest.mark.parametrize("block_rows", [7, 1000])
def test_with_cameras_only_positive_pairs_across_cameras_count(block_rows):
    x, y = a_set()
    cameras = torch.arange(50) % 3
    pairs, every_pair = PairDistances(x, y, block_rows=block_rows, cameras=cameras), PairDistances(x, y)
    at = torch.tensor([0.7, 1.2, 2], dtype=F64)
    positives, negatives = pairs.accepted(at)
    for c in range(5):
        mine = (y == c).nonzero().flatten().tolist()
        across = [(i, j) for i in mine for j in mine if i < j and cameras[i] != cameras[j]]
        distances = [float((normalize(x[i], dim=0) - normalize(x[j], dim=0)).norm()) for i, j in across]
        assert positives[c].tolist() == [sum(d <= t for d in distances) for t in at.tolist()]
        assert pairs.positive_pairs[c] == len(across)
    assert torch.equal(negatives, every_pair.accepted(at)[1])


@pytest.mark.parametrize("block_rows", [7, 1000])
def test_order_statistics_of_the_negative_distances(block_rows):
    x, y = a_set()
    x[10:20] = x[0]  # ties
    ordered = sorted(d for d, a, b in oracle.all_pairs(x.numpy(), y.tolist()) if a != b)
    ranks = [1, 2, 50, 50, len(ordered) // 2, len(ordered)]
    pairs = PairDistances(x, y, block_rows=block_rows)
    found = pairs.negative_distances_at(ranks)
    assert found.tolist() == approx([ordered[k - 1] for k in ranks], abs=3e-8)
    for wrong in ([0], [pairs.total_negative_pairs + 1], [1.5], []):
        with pytest.raises(ValueError, match=f"ranks must be from 1 to {pairs.total_negative_pairs}"):
            pairs.negative_distances_at(wrong)


def test_equal_values_are_merged(monkeypatch):
    # All negative distances fall into one bin, far more than fit at once.
    monkeypatch.setattr(pair_distances, "ENTRIES_ON_A_DEVICE", 10)
    y = torch.arange(40) % 4
    pairs = PairDistances(torch.eye(4, dtype=F64)[y], y, block_rows=8)
    assert pairs.negative_distances_at([1, 300, 600]).tolist() == approx([2**0.5] * 3)


def test_pairs_at_the_last_threshold_are_accepted():
    accepted = PairDistances(torch.eye(4, dtype=F64), torch.arange(4) // 2).accepted(
        torch.tensor([1, 2**0.5], dtype=F64)
    )
    assert [counts.tolist() for counts in accepted] == [[[0, 1]] * 2, [[0, 4]] * 2]


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_copies_have_distance_zero(dtype):
    x, y = torch.randn(200, 64).to(dtype), torch.randint(0, 6, (200,))
    x[100:] = x[:100]  # copies under other labels: a negative pair each
    y[100:] += 1000
    pairs = PairDistances(x, y)
    *zeros, next_one = pairs.negative_distances_at([1, 100, 101])
    assert zeros == [0, 0] and next_one > 0.01
    assert pairs.accepted(torch.zeros(1, dtype=dtype))[1].sum() == 200  # for both of their classes


def test_autocast_and_tf32_do_not_affect_distances():
    x, y = a_set()
    expected = PairDistances(x.float(), y).negative_distances_at([1, 100])
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = PairDistances(x.float(), y).negative_distances_at([1, 100])
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)
    assert torch.equal(found, expected)


X, Y = torch.randn(10, 3), torch.arange(10) % 2


REFUSED = [
    *((lambda rows=rows: PairDistances(X, Y, block_rows=rows), "block_rows must be") for rows in (0, 2.5)),
    (lambda: PairDistances(X.to_sparse(), Y), "embeddings must be a dense tensor"),
    (lambda: PairDistances(X.to(torch.float8_e4m3fn), Y), "embeddings must have 16 bits or more"),
    (lambda: PairDistances(X, Y, offsets=X[:9, 0]), r"offsets must have shape \(10,\), one per embedding; got"),
    (lambda: labelled_pairs_roc(X, Y, offsets=X[:, 0] / 0), "offsets must be finite"),
    *(
        (lambda at=at, count=count: count(PairDistances(X, Y), torch.tensor(at)), "thresholds must be an ascending")
        for at in ([], [0.5, 0.1], [0.1, float("nan"), 0.5])
        for count in (PairDistances.accepted, count_accepted)
    ),
]
test_errors = refusals(REFUSED)


def offset_set(count, classes):
    labels = torch.arange(count) % classes
    embeddings = torch.randn(classes, 8, dtype=F64)[labels] + torch.randn(count, 8, dtype=F64)
    return embeddings, labels, 0.4 * torch.rand(count, dtype=F64)


def test_pairs_count_scores_less_both_offsets():
    embeddings, labels, offsets = offset_set(40, 5)
    offsets[3] = 1.5  # its scores lie below −1, and count as −1
    unit = normalize(embeddings)
    distances = (2 - 2 * (unit @ unit.T - offsets[:, None] - offsets).clamp(-1, 1)).sqrt()
    at = torch.tensor([0.8, 1.2, 1.6, 1.99, 2.0], dtype=F64)
    pairs = PairDistances(embeddings, labels, offsets=offsets, block_rows=16)
    positives, negatives = pairs.accepted(at)
    within = (distances[..., None] <= at) & ~torch.eye(40, dtype=torch.bool)[..., None]
    for label in range(5):
        mine = labels == label
        assert torch.equal(positives[label], within[mine][:, mine].sum((0, 1)) // 2)
        assert torch.equal(negatives[label], within[mine][:, ~mine].sum((0, 1)))
    different = distances[(labels[:, None] != labels).triu()].sort().values
    assert_close(pairs.negative_distances_at([1, 100, 300]), different[[0, 99, 299]])
