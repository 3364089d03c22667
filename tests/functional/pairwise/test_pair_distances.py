import pytest
import torch

from pml_ext.functional import PairDistances, epsilon_opis, opis, utility_curves
from pml_ext.functional.pairwise.pair_distances import SampledPairDistances, count_accepted
from tests.oracles import metrics as oracle


def a_set(count: int = 50) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(count, 4, dtype=torch.float64), torch.randint(0, 5, (count,))


@pytest.mark.parametrize("block_rows", [1, 7, 16, 1000])
def test_counts_do_not_depend_on_the_blocks(block_rows: int) -> None:
    x, y = a_set()
    pairs = PairDistances(x, y, block_rows=block_rows)
    loops = oracle.all_pairs(x.numpy(), y.tolist())
    thresholds = torch.tensor([0.1, 0.7, 1.2, 1.9], dtype=torch.float64)
    positives, negatives = pairs.accepted(thresholds)
    for c in range(5):
        inside = [d for d, a, b in loops if a == b == c]
        across = [d for d, a, b in loops if (a == c) != (b == c)]
        assert positives[c].tolist() == [sum(d <= t for d in inside) for t in thresholds.tolist()]
        assert negatives[c].tolist() == [sum(d <= t for d in across) for t in thresholds.tolist()]
        assert (pairs.positive_pairs[c], pairs.negative_pairs[c]) == (len(inside), len(across))
    torch.testing.assert_close(pairs.accepted(thresholds, positives_only=True)[0], positives)
    assert pairs.accepted(thresholds, positives_only=True)[1].sum() == 0


@pytest.mark.parametrize("block_rows", [7, 1000])
@pytest.mark.parametrize("kept", [0, 2**23])
def test_order_statistics_of_the_negative_distances(block_rows: int, kept: int) -> None:
    x, y = a_set()
    x[10:20] = x[0]  # ties
    ordered = sorted(d for d, a, b in oracle.all_pairs(x.numpy(), y.tolist()) if a != b)
    ranks = [1, 2, 50, len(ordered) // 2, len(ordered)]
    pairs = PairDistances(x, y, block_rows=block_rows)
    pairs._most_kept = kept
    found = pairs.negative_distances_at(ranks)
    assert found.tolist() == pytest.approx([ordered[k - 1] for k in ranks], abs=3e-8)


def test_both_ways_to_an_order_statistic_give_the_same_value() -> None:
    x, y = a_set(300)
    pairs, ranks = PairDistances(x.float(), y, block_rows=64), [1, 7, 7, 20_000, 300]
    kept = pairs.negative_distances_at(ranks)
    assert torch.equal(kept, pairs.negative_distances_at(ranks))
    pairs._most_kept = 0
    assert torch.equal(kept, pairs.negative_distances_at(ranks))


def test_equal_values_are_merged() -> None:
    # All negative distances fall into one bin, far more than fit at once.
    y = torch.arange(40) % 4
    pairs = PairDistances(torch.eye(4, dtype=torch.float64)[y], y, block_rows=8)
    pairs._most_kept = 0
    assert pairs.negative_distances_at([1, 300, 600]).tolist() == pytest.approx([2**0.5] * 3)
    values, counts = pairs._values_in(torch.tensor([int(2**0.5 * 2**15)]), at_once=10)
    assert (values.tolist(), counts.tolist()) == (pytest.approx([2**0.5]), [600])


@pytest.mark.parametrize("block_rows", [7, 1000])
def test_counts_of_all_classes_together(block_rows: int) -> None:
    x, y = a_set()
    pairs = PairDistances(x, y, block_rows=block_rows)
    thresholds = torch.tensor([0.1, 0.7, 0.7, 1.2, 1.9], dtype=torch.float64)
    positives, negatives = pairs.accepted(thresholds)
    found = count_accepted(pairs, thresholds)
    assert torch.equal(found[0], positives.sum(dim=0))
    assert torch.equal(2 * found[1], negatives.sum(dim=0))
    assert count_accepted(pairs, torch.tensor([2.0]))[1] == pairs.total_negative_pairs


def test_autocast_and_tf32_do_not_affect_distances() -> None:
    x, y = a_set()
    x = x.float()
    expected = PairDistances(x, y).negative_distances_at([1, 100])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(PairDistances(x, y).negative_distances_at([1, 100]), expected, rtol=0, atol=0)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        found = PairDistances(x, y).negative_distances_at([1, 100])
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_ranks_out_of_range_are_errors() -> None:
    x, y = a_set()
    pairs = PairDistances(x, y)
    for rank in (0, pairs.total_negative_pairs + 1):
        with pytest.raises(ValueError, match=f"ranks must be from 1 to {pairs.total_negative_pairs}"):
            pairs.negative_distances_at([rank])


@pytest.mark.parametrize("thresholds", [[], [0.5, 0.1], [0.1, float("nan"), 0.5], [float("nan")], [[0.1, 0.2]]])
def test_unsorted_thresholds_are_errors(thresholds: list) -> None:
    pairs = PairDistances(*a_set())
    for count in (pairs.accepted, lambda limits: count_accepted(pairs, limits)):
        with pytest.raises(ValueError, match="thresholds must be an ascending, non-empty"):
            count(torch.tensor(thresholds))


def test_meta_tensors_are_errors() -> None:
    x, y = a_set()
    for bad in (x.to("meta"), x.to_sparse(), x.to(torch.float8_e4m3fn)):
        with pytest.raises(ValueError, match=r"embeddings must (be a dense tensor|have 16 bits or more)"):
            PairDistances(bad, y)
    with pytest.raises(ValueError, match=r"embeddings must be of floating type; got torch\.complex64"):
        PairDistances(x.cfloat(), y)
    with pytest.raises(ValueError, match="ranks must be from 1 to"):
        PairDistances(x, y).negative_distances_at([1.5])


def sampled_set() -> tuple[torch.Tensor, torch.Tensor]:
    labels = torch.randint(0, 4, (60,))
    return torch.randn(5, 4).double()[labels] + torch.randn(60, 4).double(), labels


def test_all_positives_and_the_requested_number_of_negatives() -> None:
    x, y = sampled_set()
    every, some = PairDistances(x, y), SampledPairDistances(x, y, negatives_per_positive=3, seed=0)
    thresholds = torch.tensor([0.3, 1.0, 2.0]).double()
    assert torch.equal(every.accepted(thresholds)[0], some.accepted(thresholds)[0])
    assert torch.equal(some.negative_pairs, 3 * every.positive_pairs)
    assert torch.equal(some.accepted(thresholds)[1][:, -1], some.negative_pairs)
    assert some.total_negative_pairs == int(some.negative_pairs.sum())


def test_every_negative_pair_and_no_other_can_be_drawn() -> None:
    # One-hot classes: a positive pair is at 0, a negative pair between classes i and j has its own distance.
    y = torch.arange(4).repeat_interleave(6)
    centres = torch.randn(4, 3).double()
    pairs = SampledPairDistances(centres[y], y, negatives_per_positive=20, seed=1)
    unit = torch.nn.functional.normalize(centres)
    distances = (unit[:, None] - unit).norm(dim=2)
    for c in range(4):
        drawn = pairs._negatives[pairs._class == c]
        gap, nearest = (drawn[:, None] - distances[c]).abs().min(dim=1)
        assert gap.max() < 1e-7
        assert set(nearest.tolist()) == set(range(4)) - {c}


def test_rates_approximate_those_of_all_pairs() -> None:
    x, y = sampled_set()
    thresholds = torch.linspace(0, 2, 9).double()
    expected = utility_curves(x, y, thresholds=thresholds)
    found = utility_curves(x, y, thresholds=thresholds, negatives_per_positive=200)
    assert torch.equal(found.tpr, expected.tpr)
    torch.testing.assert_close(found.tnr, expected.tnr, atol=0.02, rtol=0)
    assert (found.tnr != expected.tnr).any()


def test_the_seed_determines_the_draw() -> None:
    x, y = sampled_set()
    for metric in (opis, epsilon_opis):
        first = metric(x, y, negatives_per_positive=10, seed=1)
        assert metric(x, y, negatives_per_positive=10, seed=1) == first
        assert metric(x, y, negatives_per_positive=10, seed=2) != first


def test_errors() -> None:
    x, y = sampled_set()
    with pytest.raises(ValueError, match="negatives_per_positive must be at least 1"):
        opis(x, y, negatives_per_positive=0)
    with pytest.raises(ValueError, match="OPIS needs at least 2 classes"):
        opis(x, torch.zeros_like(y), negatives_per_positive=2)
