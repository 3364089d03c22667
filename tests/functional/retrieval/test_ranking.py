"""Ranks under the gallery protocol against loops."""

import math

import pytest
import torch
from pytest import approx
from torch.nn.functional import cosine_similarity
from torch.testing import assert_close

from pml_ext.functional import cumulative_matches, rank_matches, rank_matches_from_distances
from pml_ext.functional.retrieval.cohort import sides_of_distance
from tests.oracles import metrics as oracle


def a_protocol():
    """Identities with junk (−1), distractors (0), and one query (identity 99) that has no match."""
    labels = torch.randint(1, 6, (23,))
    labels[3] = 99
    return {
        "query_labels": labels,
        "gallery_labels": torch.randint(-1, 6, (60,)),
        "query_cameras": torch.randint(0, 3, (23,)),
        "gallery_cameras": torch.randint(0, 3, (60,)),
    }


def features(dtype=torch.float32):
    return {"query": torch.randn(23, 5, dtype=dtype), "gallery": torch.randn(60, 5, dtype=dtype)}


def assert_equals_loops(found, expected):
    for q, row in enumerate(expected):
        if row is None:
            assert found.matches[q] == 0 and all(math.isnan(field[q]) for field in found[1:])
        else:
            assert [float(field[q]) for field in found] == approx(row, rel=1e-12)


def assert_equal(found, expected):
    assert all(
        torch.equal(one.nan_to_num(-1), other.nan_to_num(-1)) for one, other in zip(found, expected, strict=True)
    )


@pytest.mark.parametrize("cameras", [True, False])
@pytest.mark.parametrize("block", [1, 3, 20, None])
@pytest.mark.parametrize("ties", [True, False])
def test_equals_the_loops(cameras, block, ties, device):
    protocol = {name: values for name, values in a_protocol().items() if cameras or "labels" in name}
    distances = torch.randint(0, 8, (23, 60)).double() if ties else torch.rand(23, 60).double()
    given = distances.to(device, copy=True)
    blocks = given if block is None else given.split(block)
    found = rank_matches_from_distances(blocks, **{name: values.to(device) for name, values in protocol.items()})
    assert torch.equal(distances, given.cpu())
    assert_equals_loops(found, oracle.ranking(distances.tolist(), *(v.tolist() for v in protocol.values())))


@pytest.mark.parametrize("entries", [1, 2000, 2**20])
def test_wide_galleries_equal_the_loops(entries, blocks_of):
    blocks_of(entries)
    # Wide enough that some queries have only near matches and others do not.
    query, gallery = torch.randn(6, 8).double(), torch.randn(900, 8).double()
    labels = torch.arange(6), torch.randint(-1, 40, (900,))
    near = labels[1] == 1
    gallery[near] = query[1] + 0.1 * torch.randn(int(near.sum()), 8).double()
    distances = torch.cdist(query, gallery)
    expected = oracle.ranking(distances.tolist(), *(ids.tolist() for ids in labels))
    assert_equals_loops(rank_matches_from_distances(distances.split([1, 0, 4, 1]), *labels), expected)
    assert_equals_loops(rank_matches(query, labels[0], gallery, labels[1], metric="euclidean"), expected)


@pytest.mark.parametrize("entries", [1, 500, 2**20])
def test_features_are_ranked_by_cosine(entries, blocks_of):
    blocks_of(entries)
    protocol, given = a_protocol(), features()
    distances = 1 - cosine_similarity(given["query"][:, None].double(), given["gallery"].double(), dim=2)
    expected = oracle.ranking(distances.tolist(), *(v.tolist() for v in protocol.values()))
    assert_equals_loops(rank_matches(**given, **protocol), expected)


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
@pytest.mark.parametrize(("farther", "rank"), [(0.0, 2), (3e-7, 2), (3e-6, 1)])
def test_cosines_within_a_millionth_tie(metric, farther, rank):
    """A non-match that is farther by rounding only ranks before the match."""
    angles = torch.tensor([0, 1, 1 + farther], dtype=torch.float64)
    x, labels = torch.stack([angles.cos(), angles.sin()], dim=1), torch.tensor([7, 7, 5])
    found = rank_matches(x[:1], labels[:1], x[1:], labels[1:], metric=metric)
    assert found.first_match_rank == rank


@pytest.mark.parametrize("lowest_label", [-1, 0])
def test_a_query_does_not_find_itself(lowest_label):
    x, labels = torch.randn(40, 4).double(), torch.randint(lowest_label, 5, (40,))
    distances = torch.cdist(x, x)[:30]
    found = rank_matches_from_distances(distances, labels[:30], labels, gallery_includes_query=True)
    expected = oracle.ranking(distances.tolist(), labels[:30].tolist(), labels.tolist(), includes_query=True)
    assert_equals_loops(found, expected)


def test_distances_of_16_bits_or_huge_are_ranked_exactly():
    # 3,000 non-matches are closer: float16 would count 2,048 of them.
    labels = torch.tensor([1]), torch.cat([torch.zeros(3000), torch.ones(1)]).long()
    distances = torch.cat([torch.zeros(1, 3000), torch.ones(1, 1)], dim=1).half()
    assert rank_matches_from_distances(distances, *labels).first_match_rank == 3001
    huge = torch.full((1, 3001), 1e38)
    huge[0, -1] = 0
    assert rank_matches_from_distances(huge, *labels).first_match_rank == 1


def test_a_gallery_of_junk_only():
    found = rank_matches(torch.randn(2, 5), torch.tensor([7, -1]), torch.randn(3, 5), torch.tensor([-1, -1, -1]))
    assert found.matches.tolist() == [0, 0] and all(field.isnan().all() for field in found[1:])
    assert cumulative_matches(found).isnan().all()


def test_cumulative_matches():
    found = rank_matches(**features(), **a_protocol())
    first = found.first_match_rank[found.matches > 0]
    assert len(first) < 23
    assert cumulative_matches(found).tolist() == approx([float((first <= k).double().mean()) for k in (1, 5, 10)])
    for ranks, message in (((0, 1), "at least 1; got 0"), ((), "at least one"), ((2.5,), "a whole number")):
        with pytest.raises(ValueError, match=f"ranks must (be|have) {message}"):
            cumulative_matches(found, ranks)
    few = rank_matches_from_distances(torch.tensor([[1.0, 2.0]]), torch.tensor([1]), torch.tensor([0, 1]))
    assert cumulative_matches(few, (1, 2, 50)).tolist() == [0, 1, 1]  # ranks beyond the gallery


@pytest.mark.parametrize(
    ("dtype", "scale"), [(torch.float64, 2.0**530), (torch.float64, 2.0**-1030), (torch.float32, 2.0**66)]
)
@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_feature_scale_does_not_matter(dtype, scale, metric):
    protocol = a_protocol()
    query, gallery = torch.randint(-9, 9, (23, 6)).to(dtype) + 0.5, torch.randint(-9, 9, (60, 6)).to(dtype) + 0.25
    found, expected = (
        rank_matches(query * times, gallery=gallery * times, metric=metric, **protocol) for times in (scale, 1)
    )
    assert_equal(found, expected)


def test_euclidean_distances_are_precise_far_from_the_origin_and_integer_types_may_differ():
    protocol, given = a_protocol(), features()
    expected = rank_matches(**given, metric="euclidean", **protocol)
    protocol |= {"query_labels": protocol["query_labels"].int(), "query_cameras": protocol["query_cameras"].byte()}
    assert_equal(rank_matches(**given, metric="euclidean", **protocol), expected)
    far = {name: x + 512 for name, x in given.items()}
    found = rank_matches(**far, metric="euclidean", **protocol).average_precision
    assert_close(found, expected.average_precision, equal_nan=True, rtol=0.01, atol=0)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("column", [0, 17, 899])
@pytest.mark.parametrize("query", [0, 1, 2])
def test_non_finite_distances_are_errors(value, column, query):
    # Query 0 finds its match near, query 1 far, query 2 has none.
    distances, labels = torch.rand(3, 900) + 1, torch.zeros(900, dtype=torch.int64)
    distances[0, 5], distances[1, 6] = 0, 3
    labels[5], labels[6] = 1, 2
    distances[query, column] = value
    with pytest.raises(ValueError, match="distances must be finite; got NaN or infinity in 1 of 3 rows"):
        rank_matches_from_distances(distances, torch.tensor([1, 2, 3]), labels)


BLOCKS, X, Y = torch.rand(23, 60).split(10), torch.ones(60, 5), torch.ones(60, dtype=torch.int64)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"gallery_cameras": None}, "must be given together"),
        (
            {"gallery": X[:9], "gallery_labels": Y[:9], "gallery_cameras": Y[:9], "gallery_includes_query": True},
            "gallery must start with the 23 queries",
        ),
        ({"gallery": torch.ones(60, 4)}, "query's 5 columns; got 4"),
        ({"within": 0}, "within must be at least 1; got 0"),
        ({"metric": "l1"}, "metric must be one of 'cosine', 'euclidean'; got 'l1'"),
        ({"distances": BLOCKS[:2]}, "must have 23 rows in all, one per query; got 20"),
        ({"distances": [*BLOCKS, BLOCKS[0]]}, "must have 23 rows in all, one per query; got 33 or more"),
        ({"distances": [BLOCKS[0][:, 1:]]}, r"must have 60 columns, one per gallery item; got shape \(10, 59\)"),
        ({"distances": None}, r"distances must be a torch\.Tensor or blocks of them; got NoneType"),
    ],
)
def test_errors(wrong, message):
    function = rank_matches_from_distances if "distances" in wrong else rank_matches
    given = a_protocol() | ({} if "distances" in wrong else features())
    with pytest.raises((ValueError, TypeError), match=message):
        function(**(given | wrong))


def test_distances_rank_by_cosine_less_the_offset_of_the_gallery():
    query, gallery = (torch.nn.functional.normalize(torch.randn(n, 3, dtype=torch.float64)) for n in (5, 7))
    offsets = torch.randn(7, dtype=torch.float64)
    squares = torch.cdist(*sides_of_distance(query, gallery, offsets)).square()
    assert_close(squares, 2 - 2 * (query @ gallery.T - offsets + offsets.min()))
