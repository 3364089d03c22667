import pytest
import torch
from torch import Tensor

from pml_ext._ops.normalize import unit_rows
from pml_ext.functional import (
    PairDistances,
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
from pml_ext.functional.pairwise.pair_blocks import PairBlocks, listed_cosines, sides_of_distance
from pml_ext.functional.pairwise.pair_distances import SampledPairDistances
from tests.oracles import verification as oracle
from tests.oracles.identification import cosine


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


@pytest.mark.parametrize("entries", [1, 30, None])
def test_equals_the_loops_in_blocks_of_any_size(entries: int | None) -> None:
    x, y = torch.randn(9, 4).double(), torch.randn(6, 4).double()
    rows, others = torch.randint(0, 9, (30,)), torch.randint(0, 6, (30,))
    expected = [oracle.cosine(x[i].tolist(), y[j].tolist()) for i, j in zip(rows, others, strict=True)]
    found = listed_cosines(unit_rows(x), unit_rows(y), rows, others, entries=entries)
    assert found.tolist() == pytest.approx(expected, rel=1e-12)
    assert listed_cosines(x, y, rows[:0], others[:0]).shape == (0,)


def offset_set(count: int, classes: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % classes
    centres = torch.randn(classes, 8, generator=generator, dtype=torch.float64)
    embeddings = centres[labels] + torch.randn(count, 8, generator=generator, dtype=torch.float64)
    return embeddings, labels, 0.4 * torch.rand(count, generator=generator, dtype=torch.float64)


def scores_by_loops(embeddings: Tensor, offsets: Tensor) -> Tensor:
    rows, off = embeddings.tolist(), offsets.tolist()
    scores = [[cosine(a, b) - p - q for b, q in zip(rows, off, strict=True)] for a, p in zip(rows, off, strict=True)]
    return torch.tensor(scores, dtype=torch.float64)


def test_pairs_count_scores_less_both_offsets() -> None:
    embeddings, labels, offsets = offset_set(40, 5)
    offsets[3] = 1.5  # its scores lie below −1, and count as −1
    scores = scores_by_loops(embeddings, offsets)
    distances = (2 - 2 * scores.clamp(-1, 1)).sqrt()
    at = torch.tensor([0.8, 1.2, 1.6, 1.99, 2.0], dtype=torch.float64)
    pairs = PairDistances(embeddings, labels, offsets=offsets, block_rows=16)
    positives, negatives = pairs.accepted(at)
    others = ~torch.eye(40, dtype=torch.bool)
    for label in range(5):
        mine = labels == label
        for column, threshold in enumerate(at):
            within = (distances <= threshold) & others
            assert positives[label, column] == int(within[mine][:, mine].sum()) // 2
            assert negatives[label, column] == int(within[mine][:, ~mine].sum())
    different = distances[(labels[:, None] != labels).triu()].sort().values
    assert torch.allclose(pairs.negative_distances_at([1, 100, 300]), different[[0, 99, 299]], atol=1e-12)
    sampled = SampledPairDistances(embeddings, labels, negatives_per_positive=50, seed=0, offsets=offsets)
    drawn = sampled.negative_distances_at(list(range(1, sampled.total_negative_pairs + 1)))
    assert bool(((drawn[:, None] - different).abs().min(dim=1).values < 1e-12).all())
    assert drawn.mean() == pytest.approx(float(different.mean()), abs=0.02)


def test_opis_and_the_roc_take_offsets() -> None:
    embeddings, labels, offsets = offset_set(60, 6)
    scores = scores_by_loops(embeddings, offsets)
    upper = torch.ones(60, 60, dtype=torch.bool).triu(1)
    same = labels[:, None] == labels
    found = labelled_pairs_roc(embeddings, labels, fars=(0.01,), offsets=offsets)
    expected = tar_at_far(scores[upper], same[upper], 0.01)
    assert float(operating_point(found, 0.01).tar) == pytest.approx(float(expected), abs=1e-12)
    value = float(opis(embeddings, labels, offsets=offsets))
    assert value == pytest.approx(
        opis_sensitivity(embeddings, labels, far_ranges=[(0.01, 0.1)], offsets=offsets)[0].opis
    )
    assert value != pytest.approx(float(opis(embeddings, labels)), rel=1e-3)
    # A constant offset moves every score alike: the rates stay.
    plain, shifted = (
        operating_point(labelled_pairs_roc(embeddings, labels, fars=(0.01,), offsets=of), 0.01)
        for of in (None, torch.full((60,), 0.1))
    )
    assert float(shifted.tar) == float(plain.tar)
    assert float(shifted.threshold) == pytest.approx(float(plain.threshold) - 0.2, abs=1e-6)


def test_opis_in_bins_equals_opis_of_exact_counts() -> None:
    embeddings, labels, offsets = offset_set(3000, 60)
    pairs = PairDistances(embeddings.float(), labels, offsets=offsets.float())
    exact = utility_curves(embeddings.float(), labels, exact=True, offsets=offsets.float())
    binned = calibrated_curves(pairs, far_ranges=[(1e-2, 1e-1)], grid=100, exact_up_to=0)[0]
    assert float(opis_of_curves(binned)) == pytest.approx(float(opis_of_curves(exact)), rel=1e-4)


def test_a_gallery_is_ranked_by_distance_of_one_column_more() -> None:
    embeddings, labels, offsets = offset_set(50, 5)
    unit = torch.nn.functional.normalize(embeddings)
    query, gallery = sides_of_distance(unit[:20], unit, offsets)
    found = rank_matches(query, labels[:20], gallery, labels, gallery_includes_query=True, metric="euclidean")
    expected = rank_matches_from_distances(
        offsets - unit[:20] @ unit.T, labels[:20], labels, gallery_includes_query=True
    )
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    assert not torch.equal(
        found.average_precision,
        rank_matches(unit[:20], labels[:20], unit, labels, gallery_includes_query=True).average_precision,
    )


def test_offsets_that_do_not_fit_are_errors() -> None:
    embeddings, labels, offsets = offset_set(10, 2)
    with pytest.raises(ValueError, match=r"offsets must have shape \(10,\), one per embedding; got \(9,\)"):
        PairDistances(embeddings, labels, offsets=offsets[:9])
    with pytest.raises(ValueError, match="offsets must be finite"):
        labelled_pairs_roc(embeddings, labels, offsets=offsets / 0)
