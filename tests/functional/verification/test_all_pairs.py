import math

import pytest
import torch
from torch import Tensor

from pml_ext.functional import (
    auc_bounds,
    equal_error_rate,
    labelled_pairs,
    labelled_pairs_roc,
    operating_point,
    roc_auc,
    roc_curve,
    tar_at_far,
    tar_bounds,
)
from pml_ext.functional.pairwise.pair_distances import PairDistances
from pml_ext.functional.verification import all_pairs
from pml_ext.functional.verification.all_pairs import Kept, Range, count_scores, roc_of_all_pairs
from tests.functional.operating_points.test_counting import LABELS, SETS
from tests.oracles import verification as oracle

FARS = (0.5, 0.1, 1e-2, 1e-3, 1e-4)


def a_set(count: int = 60, noise: float = 1.0) -> tuple[Tensor, Tensor]:
    labels = torch.randint(0, 12, (count,))
    return torch.randn(12, 6)[labels] + noise * torch.randn(count, 6), labels


def all_at_once(x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    scores, same = zip(*labelled_pairs(x, labels), strict=True)
    return torch.cat(scores), torch.cat(same)


@pytest.mark.parametrize("block_rows", [7, 30, 1024])
def test_pairs_equal_the_loops(block_rows: int) -> None:
    x, labels = a_set()
    found = [torch.cat(part) for part in zip(*labelled_pairs(x.double(), labels, block_rows=block_rows), strict=True)]
    expected = [
        (oracle.cosine(x[i].tolist(), x[j].tolist()), bool(labels[i] == labels[j]))
        for i in range(60)
        for j in range(i + 1, 60)
    ]
    scores, same = zip(*sorted(expected), strict=True)
    order = found[0].argsort()
    torch.testing.assert_close(found[0][order], torch.tensor(scores, dtype=torch.float64))
    assert found[1][order].tolist() == list(same)


# Noise of 1e-4 puts all genuine pairs into a few bins.
@pytest.mark.parametrize(
    ("noise", "dtype"), [(1.0, torch.float32), (1e-2, torch.float32), (1.0, torch.float64), (1e-4, torch.float64)]
)
@pytest.mark.parametrize("expected_from", [0, 2000])  # one pass where the sample's ranges hold, or two
def test_rates_equal_those_of_all_scores(noise: float, dtype: torch.dtype, expected_from: int) -> None:
    x, labels = a_set(1100, noise)
    x, labels = x.to(dtype), torch.where(torch.rand(1100) < 0.9, labels, torch.randint(0, 12, (1100,)))
    scores, same = all_at_once(x, labels)
    roc, exact = roc_of_all_pairs(x, labels, FARS, expected_from=expected_from), roc_curve(scores, same)
    for far in FARS:
        found = operating_point(roc, far)
        assert found.tar == tar_at_far(scores, same, far)
        assert (scores >= found.threshold)[same].double().mean() == found.tar
        assert (scores >= found.threshold)[~same].double().mean() == found.far <= far
    assert equal_error_rate(roc).far == equal_error_rate(exact).far
    lower, upper = auc_bounds(roc)
    assert lower <= roc_auc(exact) <= upper
    assert bool((roc.thresholds.diff() < 0).all() and (roc.false_accepts.diff() >= 0).all())


def test_one_pass_gives_what_two_give(monkeypatch: pytest.MonkeyPatch) -> None:
    x, labels = a_set(1100)
    offsets = torch.rand(1100)  # scores below −1, too
    passes = []

    def counted(*args, **options):
        passes.append(args)
        return count_scores(*args, **options)

    monkeypatch.setattr(all_pairs, "count_scores", counted)
    for given in (None, offsets):
        for found, other in zip(
            roc_of_all_pairs(x, labels, FARS, given, expected_from=0),
            roc_of_all_pairs(x, labels, FARS, given, expected_from=10**9),
            strict=True,
        ):
            assert torch.equal(found, other)
    # where more are kept than allowed, the second pass finds them
    assert len(roc_of_all_pairs(x, labels, FARS, expected_from=0, kept_at_most=30).thresholds) == len(
        roc_of_all_pairs(x, labels, FARS).thresholds
    )
    assert len(passes) == 2 * (1 + 2) + 2 + 2


def test_collapsed_embeddings() -> None:
    labels = torch.arange(40) // 4
    roc = labelled_pairs_roc(torch.ones(40, 8), labels, fars=FARS)
    assert operating_point(roc, 0.5).tar == 0
    assert equal_error_rate(roc).far == roc_auc(roc) == 0.5


def test_sets_without_pairs_of_a_kind() -> None:
    x = torch.randn(8, 3)
    assert labelled_pairs_roc(x, torch.zeros(8).long(), fars=FARS).impostors == 0
    assert labelled_pairs_roc(x, torch.arange(8), fars=FARS).genuine == 0
    assert labelled_pairs_roc(x[:1], torch.zeros(1).long()).thresholds.tolist() == [torch.inf]


def test_errors() -> None:
    x, labels = a_set()
    with pytest.raises(ValueError, match="labels must have shape"):
        labelled_pairs_roc(x, labels[1:])
    with pytest.raises(ValueError, match=r"far must be in \(0, 1\]"):
        labelled_pairs_roc(x, labels, fars=(0.0,))
    x[3, 1] = torch.nan
    with pytest.raises(ValueError, match="embeddings must be finite"):
        labelled_pairs_roc(x, labels)


def test_full_bins_are_not_resolved() -> None:
    x, labels = a_set(1100, 1e-4)
    scores, same = all_at_once(x, labels)
    roc = roc_of_all_pairs(x, labels, FARS, kept_at_most=2)
    assert len(roc.thresholds) < len(labelled_pairs_roc(x, labels, fars=FARS).thresholds)
    for far in FARS:
        lower, upper = tar_bounds(roc, far)
        assert operating_point(roc, far).tar == lower <= tar_at_far(scores, same, far) <= upper


@pytest.mark.parametrize("block_rows", [0, -1, 2.5, float("nan")])
def test_block_rows_below_one_are_errors(block_rows: float) -> None:
    with pytest.raises(ValueError, match="block_rows must be"):
        next(labelled_pairs(*a_set(), block_rows=block_rows))


@pytest.mark.parametrize(("samples", "dim"), [(300, 24), (300, 48), (600, 100), (1200, 12), (2500, 48)])
def test_scores_of_binary_embeddings_are_tied_though_rounding_parts_them(samples: int, dim: int) -> None:
    """Inner products of signs are exact. AUC was off by up to 1.5e-3, the equal error rate by 1e-3, TAR by 2e-2."""
    labels = torch.arange(samples) // 6
    x = torch.where(torch.randn(samples // 6 + 1, dim)[labels] + 1.5 * torch.randn(samples, dim) > 0, 1.0, -1.0)
    one, other = torch.triu_indices(samples, samples, 1)
    exact = roc_curve((x @ x.T)[one, other], labels[one] == labels[other])
    for embeddings in (x, x.double()):
        found = labelled_pairs_roc(embeddings, labels, fars=(1e-2, 1e-3))
        assert float(roc_auc(found)) == pytest.approx(float(roc_auc(exact)), abs=1e-12)
        assert float(equal_error_rate(found).far) == pytest.approx(float(equal_error_rate(exact).far), abs=1e-12)
        for far in (1e-2, 1e-3):
            assert operating_point(found, far)[1:] == operating_point(exact, far)[1:]


FINE = 2.0**-19  # the width of a bin
RANGES: dict[str, list[Range]] = {
    "none": [],
    "all": [(-math.inf, math.inf)],
    "one bin": [(0.0, FINE)],
    "several": [(-0.3, -0.2), (0.1, 0.11), (0.5, math.inf)],
}


def counted(pairs: PairDistances, ranges: list[Range], most: int = 2**24) -> tuple[Tensor, Kept | None]:
    histogram, kept = count_scores(pairs, ranges, most=most)
    return histogram.counts, kept


@pytest.fixture
def loops(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Sets of any size are counted by loops."""
    pytest.importorskip("numba")
    monkeypatch.setattr(all_pairs, "_WORTH_LOADING", 0)
    monkeypatch.setattr(all_pairs, "count_by_search", lambda *_: pytest.fail("searched"))
    return monkeypatch


@pytest.mark.parametrize("ranges", RANGES)
@pytest.mark.parametrize("name", SETS)
def test_every_pair_is_counted_once(name: str, ranges: str) -> None:
    """Against one matrix of all scores."""
    pairs = PairDistances(SETS[name].double(), LABELS, block_rows=100)
    counts, kept = counted(pairs, RANGES[ranges])
    assert counts.sum(1).tolist() == [pairs.total_negative_pairs, pairs.total_positive_pairs]
    scores = (pairs.unit @ pairs.unit.T)[(upper := torch.ones(700, 700).triu(1).bool())]
    same = (pairs.index[:, None] == pairs.index)[upper]
    inside = torch.zeros_like(same)
    for low, high in RANGES[ranges]:
        inside |= (scores >= low) & (scores < high)
    assert kept is not None
    order, other = scores[inside].argsort(), kept[0].argsort()
    if ranges != "one bin":  # whose edges a rounding of the product crosses
        torch.testing.assert_close(kept[0][other], scores[inside][order], rtol=0, atol=1e-12)
        assert int(kept[1].sum()) == int(same[inside].sum())


@pytest.mark.parametrize("ranges", RANGES)
@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("block_rows", [None, 37])
def test_loops_find_what_search_finds(
    name: str, ranges: str, dtype: torch.dtype, block_rows: int | None, loops: pytest.MonkeyPatch
) -> None:
    pairs = PairDistances(SETS[name].to(dtype), LABELS, block_rows=block_rows, offsets=torch.linspace(0, 1, 700))
    found, kept = counted(pairs, RANGES[ranges])
    loops.undo()
    expected, kept_by_search = counted(pairs, RANGES[ranges])
    assert torch.equal(found, expected)
    assert kept is not None and kept_by_search is not None
    assert all(torch.equal(*columns) for columns in zip(kept, kept_by_search, strict=True))


def test_too_many_are_not_kept(loops: pytest.MonkeyPatch) -> None:
    pairs = PairDistances(SETS["random"], LABELS)
    every = pairs.total_negative_pairs + pairs.total_positive_pairs
    for _ in range(2):  # by loops, then by search
        assert [counted(pairs, RANGES["all"], most)[1] is None for most in (every, every - 1)] == [False, True]
        loops.undo()


def test_the_curve_is_the_same(loops: pytest.MonkeyPatch) -> None:
    x = torch.randn(40, 16)[LABELS] + torch.randn(700, 16)
    by_loops = labelled_pairs_roc(x, LABELS, fars=(0.1, 1e-3))
    loops.undo()
    for found, expected in zip(by_loops, labelled_pairs_roc(x, LABELS, fars=(0.1, 1e-3)), strict=True):
        assert torch.equal(found, expected)
