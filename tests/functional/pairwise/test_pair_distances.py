"""All pairs in blocks, counts and order statistics of their distances, and sampled pairs, against loops."""

import pytest
import torch
from torch.nn.functional import normalize

from pml_ext._ops.normalize import unit_rows
from pml_ext.functional import (
    PairDistances,
    epsilon_opis,
    labelled_pairs_roc,
    operating_point,
    opis,
    opis_of_curves,
    opis_sensitivity,
    rank_matches,
    rank_matches_from_distances,
    tar_at_far,
    utility_curves,
)
from pml_ext.functional.operating_points.calibration import calibrated_curves
from pml_ext.functional.pairwise import pair_distances
from pml_ext.functional.pairwise.pair_blocks import PairBlocks, listed_cosines, sides_of_distance
from pml_ext.functional.pairwise.pair_distances import SampledPairDistances, count_accepted
from tests.oracles import metrics as oracle
from tests.oracles import verification

F64 = torch.float64


def a_set(count=50):
    return torch.randn(count, 4, dtype=F64), torch.randint(0, 5, (count,))


@pytest.mark.parametrize("block_rows", [1, 7, 16, 1000])
def test_each_pair_is_in_one_block(block_rows):
    pairs = PairBlocks(*a_set(), block_rows=block_rows)
    negative, positive = torch.zeros(2, 50, 50, dtype=torch.int64)
    entries = 0
    for block in pairs.blocks():
        torch.testing.assert_close(block.cosines, pairs.unit[block.rows] @ pairs.unit[block.columns].T)
        assert max(block.cosines.shape) <= block_rows
        entries += block.cosines.numel()
        negative[block.rows, block.columns] += pairs._negative(block)
        if block.mixed:
            flat, row, column = pairs._positive_places(block)
            assert torch.equal(flat, row * block.cosines.shape[1] + column)
            positive[row + block.rows.start, column + block.columns.start] += 1
        else:
            assert pairs._negative(block).all()
    same = pairs.index[:, None] == pairs.index
    assert torch.equal(negative.bool(), (~same).triu()) and negative.max() == 1
    assert torch.equal(positive.bool(), same.triu(1)) and positive.max() == 1
    assert entries <= 0.7 * 50 * 50 or block_rows > 50  # little more than the upper triangle


@pytest.mark.parametrize("entries", [1, 30, 2**18])
def test_listed_cosines_equal_the_loops(entries, blocks_of):
    blocks_of(entries)
    x, y = torch.randn(9, 4, dtype=F64), torch.randn(6, 4, dtype=F64)
    rows, others = torch.randint(0, 9, (30,)), torch.randint(0, 6, (30,))
    expected = [verification.cosine(x[i].tolist(), y[j].tolist()) for i, j in zip(rows, others, strict=True)]
    assert listed_cosines(unit_rows(x), unit_rows(y), rows, others).tolist() == pytest.approx(expected, rel=1e-12)
    assert listed_cosines(x, y, rows[:0], others[:0]).shape == (0,)


@pytest.mark.parametrize("block_rows", [1, 7, 16, 1000])
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


@pytest.mark.parametrize("block_rows", [7, 1000])
def test_order_statistics_of_the_negative_distances(block_rows):
    """Kept and partitioned, or found in bins and collected in a second pass."""
    x, y = a_set()
    x[10:20] = x[0]  # ties
    ordered = sorted(d for d, a, b in oracle.all_pairs(x.numpy(), y.tolist()) if a != b)
    ranks = [1, 2, 50, 50, len(ordered) // 2, len(ordered)]
    pairs = PairDistances(x, y, block_rows=block_rows)
    kept = pairs.negative_distances_at(ranks)
    assert kept.tolist() == pytest.approx([ordered[k - 1] for k in ranks], abs=3e-8)
    pairs._most_kept = 0
    assert torch.equal(pairs.negative_distances_at(ranks), kept)
    for wrong in ([0], [pairs.total_negative_pairs + 1], [1.5], []):
        with pytest.raises(ValueError, match=f"ranks must be from 1 to {pairs.total_negative_pairs}"):
            pairs.negative_distances_at(wrong)


def test_equal_values_are_merged(monkeypatch):
    # All negative distances fall into one bin, far more than fit at once.
    monkeypatch.setattr(pair_distances, "ENTRIES_ON_A_DEVICE", 10)
    y = torch.arange(40) % 4
    pairs = PairDistances(torch.eye(4, dtype=F64)[y], y, block_rows=8)
    pairs._most_kept = 0
    assert pairs.negative_distances_at([1, 300, 600]).tolist() == pytest.approx([2**0.5] * 3)
    values, counts = pairs._values_in(torch.tensor([int(2**0.5 * 2**15)]))
    assert (values.tolist(), counts.tolist()) == (pytest.approx([2**0.5]), [600])


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


@pytest.mark.parametrize("thresholds", [[], [0.5, 0.1], [0.1, float("nan"), 0.5], [float("nan")], [[0.1, 0.2]]])
def test_unsorted_thresholds_are_errors(thresholds):
    pairs = PairDistances(*a_set())
    for count in (pairs.accepted, lambda limits: count_accepted(pairs, limits)):
        with pytest.raises(ValueError, match="thresholds must be an ascending, non-empty"):
            count(torch.tensor(thresholds))


X, Y = torch.randn(10, 3), torch.arange(10) % 2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        *((lambda rows=rows: PairDistances(X, Y, block_rows=rows), "block_rows must be") for rows in (0, 2.5)),
        (lambda: PairDistances(X.to("meta"), Y), "embeddings must be a dense tensor"),
        (lambda: PairDistances(X.to_sparse(), Y), "embeddings must be a dense tensor"),
        (lambda: PairDistances(X.to(torch.float8_e4m3fn), Y), "embeddings must have 16 bits or more"),
        (lambda: PairDistances(X.cfloat(), Y), r"embeddings must be of floating type; got torch\.complex64"),
        (lambda: PairDistances(X, Y, offsets=X[:9, 0]), r"offsets must have shape \(10,\), one per embedding; got"),
        (lambda: labelled_pairs_roc(X, Y, offsets=X[:, 0] / 0), "offsets must be finite"),
        (lambda: opis(X, Y, negatives_per_positive=0), "negatives_per_positive must be at least 1"),
        (lambda: opis(X, 0 * Y, negatives_per_positive=2), "OPIS needs at least 2 classes"),
        (lambda: opis(X, Y, negatives_per_positive=10**9), "asks for 20000000000 pairs; the limit is"),
    ],
)
def test_errors(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def sampled_set():
    labels = torch.randint(0, 4, (60,))
    return torch.randn(5, 4, dtype=F64)[labels] + torch.randn(60, 4, dtype=F64), labels


def test_all_positives_and_the_requested_number_of_negatives():
    x, y = sampled_set()
    every, some = PairDistances(x, y), SampledPairDistances(x, y, negatives_per_positive=3, seed=0)
    thresholds = torch.tensor([0.3, 1.0, 2.0], dtype=F64)
    positives, negatives = some.accepted(thresholds)
    assert torch.equal(every.accepted(thresholds)[0], positives)
    assert torch.equal(some.negative_pairs, 3 * every.positive_pairs)
    assert torch.equal(negatives[:, -1], some.negative_pairs)
    assert some.total_negative_pairs == int(some.negative_pairs.sum())


def test_every_negative_pair_and_no_other_can_be_drawn():
    # One point a class: a positive pair is at 0, a negative pair between classes i and j has its own distance.
    y, centres = torch.arange(4).repeat_interleave(6), torch.randn(4, 3, dtype=F64)
    pairs = SampledPairDistances(centres[y], y, negatives_per_positive=20, seed=1)
    distances = (normalize(centres)[:, None] - normalize(centres)).norm(dim=2)
    for c in range(4):
        gap, nearest = (pairs._negatives[pairs._class == c][:, None] - distances[c]).abs().min(dim=1)
        assert gap.max() < 1e-7 and set(nearest.tolist()) == set(range(4)) - {c}


def test_sampled_rates_approximate_those_of_all_pairs_and_the_seed_determines_the_draw():
    x, y = sampled_set()
    thresholds = torch.linspace(0, 2, 9, dtype=F64)
    expected = utility_curves(x, y, thresholds=thresholds)
    found = utility_curves(x, y, thresholds=thresholds, negatives_per_positive=200)
    assert torch.equal(found.tpr, expected.tpr) and (found.tnr != expected.tnr).any()
    torch.testing.assert_close(found.tnr, expected.tnr, atol=0.02, rtol=0)
    for metric in (opis, epsilon_opis):
        first, again, other = (metric(x, y, negatives_per_positive=10, seed=seed) for seed in (1, 1, 2))
        assert first == again != other


def offset_set(count, classes):
    labels = torch.arange(count) % classes
    embeddings = torch.randn(classes, 8, dtype=F64)[labels] + torch.randn(count, 8, dtype=F64)
    return embeddings, labels, 0.4 * torch.rand(count, dtype=F64)


def scores_less_offsets(embeddings, offsets):
    cosines = normalize(embeddings) @ normalize(embeddings).T
    return cosines - offsets[:, None] - offsets


def test_pairs_count_scores_less_both_offsets():
    embeddings, labels, offsets = offset_set(40, 5)
    offsets[3] = 1.5  # its scores lie below −1, and count as −1
    distances = (2 - 2 * scores_less_offsets(embeddings, offsets).clamp(-1, 1)).sqrt()
    at = torch.tensor([0.8, 1.2, 1.6, 1.99, 2.0], dtype=F64)
    pairs = PairDistances(embeddings, labels, offsets=offsets, block_rows=16)
    positives, negatives = pairs.accepted(at)
    within = (distances[..., None] <= at) & ~torch.eye(40, dtype=torch.bool)[..., None]
    for label in range(5):
        mine = labels == label
        assert torch.equal(positives[label], within[mine][:, mine].sum((0, 1)) // 2)
        assert torch.equal(negatives[label], within[mine][:, ~mine].sum((0, 1)))
    different = distances[(labels[:, None] != labels).triu()].sort().values
    torch.testing.assert_close(pairs.negative_distances_at([1, 100, 300]), different[[0, 99, 299]])
    sampled = SampledPairDistances(embeddings, labels, negatives_per_positive=50, seed=0, offsets=offsets)
    drawn = sampled.negative_distances_at(range(1, sampled.total_negative_pairs + 1))
    assert (drawn[:, None] - different).abs().min(dim=1).values.max() < 1e-12
    assert drawn.mean() == pytest.approx(float(different.mean()), abs=0.02)


def test_opis_and_the_roc_take_offsets():
    embeddings, labels, offsets = offset_set(60, 6)
    upper = torch.triu_indices(60, 60, 1).unbind()
    scores, same = scores_less_offsets(embeddings, offsets)[upper], labels[upper[0]] == labels[upper[1]]
    points = [
        operating_point(labelled_pairs_roc(embeddings, labels, fars=(0.01,), offsets=of), 0.01)
        for of in (offsets, None, torch.full((60,), 0.1))
    ]
    assert float(points[0].tar) == pytest.approx(float(tar_at_far(scores, same, 0.01)), abs=1e-12)
    # A constant offset moves every score alike: the rates stay.
    assert points[2].tar == points[1].tar
    assert float(points[2].threshold) == pytest.approx(float(points[1].threshold) - 0.2, abs=1e-6)
    value = float(opis(embeddings, labels, offsets=offsets))
    (row,) = opis_sensitivity(embeddings, labels, far_ranges=[(0.01, 0.1)], offsets=offsets)
    assert row.opis == pytest.approx(value) != pytest.approx(float(opis(embeddings, labels)), rel=1e-3)


def test_opis_in_bins_takes_offsets():
    embeddings, labels, offsets = (part if part.dtype == torch.int64 else part.float() for part in offset_set(3000, 60))
    exact = utility_curves(embeddings, labels, exact=True, offsets=offsets)
    pairs = PairDistances(embeddings, labels, offsets=offsets)
    (binned,) = calibrated_curves(pairs, far_ranges=[(1e-2, 1e-1)], grid=100, exact_up_to=0)
    assert float(opis_of_curves(binned)) == pytest.approx(float(opis_of_curves(exact)), rel=1e-4)


def test_a_gallery_is_ranked_by_distance_of_one_column_more():
    embeddings, labels, offsets = offset_set(50, 5)
    unit = normalize(embeddings)
    own = {"gallery_includes_query": True}
    query, gallery = sides_of_distance(unit[:20], unit, offsets)
    found = rank_matches(query, labels[:20], gallery, labels, metric="euclidean", **own)
    expected = rank_matches_from_distances(offsets - unit[:20] @ unit.T, labels[:20], labels, **own)
    assert all(map(torch.equal, found, expected))
    plain = rank_matches(unit[:20], labels[:20], unit, labels, **own)
    assert not torch.equal(found.average_precision, plain.average_precision)
