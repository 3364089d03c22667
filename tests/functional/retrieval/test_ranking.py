"""Ranks under the gallery protocol against loops and PML."""

import math

import pytest
import torch
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from torch.nn.functional import cosine_similarity

from pml_ext.functional import cumulative_matches, rank_matches, rank_matches_from_distances
from pml_ext.functional.retrieval import ranking
from pml_ext.functional.retrieval.ranking import count_up_to, rank_by_both_metrics, rankings_within
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
            assert [float(field[q]) for field in found] == pytest.approx(row, rel=1e-12)


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


def test_wide_galleries_equal_the_loops():
    # Wide enough that some queries have only near matches and others do not.
    query, gallery = torch.randn(6, 8).double(), torch.randn(900, 8).double()
    labels = torch.arange(6), torch.randint(-1, 40, (900,))
    near = labels[1] == 1
    gallery[near] = query[1] + 0.1 * torch.randn(int(near.sum()), 8).double()
    distances = torch.cdist(query, gallery)
    expected = oracle.ranking(distances.tolist(), *(ids.tolist() for ids in labels))
    assert_equals_loops(rank_matches_from_distances(distances.split([1, 0, 4, 1]), *labels), expected)
    assert_equals_loops(rank_matches(query, labels[0], gallery, labels[1], metric="euclidean"), expected)


def test_features_are_ranked_by_cosine():
    protocol, given = a_protocol(), features()
    distances = 1 - cosine_similarity(given["query"][:, None].double(), given["gallery"].double(), dim=2)
    expected = oracle.ranking(distances.tolist(), *(v.tolist() for v in protocol.values()))
    assert_equals_loops(rank_matches(**given, **protocol), expected)
    found = rank_matches(given["query"] * 1e-20, gallery=given["gallery"] * 1e18, **protocol)
    assert_equals_loops(found, expected)


@pytest.mark.parametrize("lowest_label", [-1, 0])
def test_a_query_does_not_find_itself(lowest_label):
    x, labels = torch.randn(40, 4).double(), torch.randint(lowest_label, 5, (40,))
    distances = torch.cdist(x, x)[:30]
    found = rank_matches_from_distances(distances, labels[:30], labels, gallery_includes_query=True)
    expected = oracle.ranking(distances.tolist(), labels[:30].tolist(), labels.tolist(), includes_query=True)
    assert_equals_loops(found, expected)


@pytest.mark.parametrize("labels", [[1, 1, 2, 2, 2], [2, 2, 2, 1, 1], [2, 1, 2, 1, 2]])
def test_ties_are_pessimistic(labels):
    """All gallery rows are equal: two matches rank after three non-matches, in any order."""
    found = rank_matches(torch.ones(1, 2), torch.tensor([1]), torch.ones(5, 2), torch.tensor(labels))
    expected = [2, 4, (1 / 4 + 2 / 5) / 2, 2 / 5, 0, 0]
    assert [float(field) for field in found] == pytest.approx(expected)


def test_within_limits_the_precisions():
    distances = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    found = rank_matches_from_distances(distances, torch.tensor([1]), torch.tensor([1, 0, 1, 1]), within=2)
    assert [float(field) for field in found] == pytest.approx([3, 1, 1 / 3, 3 / 4, 1 / 3, 1 / 2])


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
    first = [f for f in found.first_match_rank.tolist() if not math.isnan(f)]
    assert len(first) < 23
    expected = [sum(f <= k for f in first) / len(first) for k in (1, 5, 10)]
    assert cumulative_matches(found).tolist() == pytest.approx(expected)
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
    protocol["query_labels"], protocol["query_cameras"] = (
        protocol["query_labels"].int(),
        protocol["query_cameras"].byte(),
    )
    assert_equal(rank_matches(**given, metric="euclidean", **protocol), expected)
    far = {name: x + 512 for name, x in given.items()}
    found = rank_matches(**far, metric="euclidean", **protocol).average_precision
    torch.testing.assert_close(found, expected.average_precision, equal_nan=True, rtol=0.01, atol=0)


@pytest.mark.parametrize("k", [1, 3, 25, "max_bin_count", None])
@pytest.mark.parametrize("together", [True, False])
def test_the_neighbour_metrics_of_pytorch_metric_learning(k, together):
    labels, gallery_labels = torch.randint(0, 6, (30,)), (torch.rand(90) ** 2 * 6).long()
    labels[3] = 99
    centres = torch.randn(100, 8)
    query, gallery = centres[labels] + torch.randn(30, 8), centres[gallery_labels] + torch.randn(90, 8)
    if together:
        gallery, gallery_labels = torch.cat([query, gallery]), torch.cat([labels, gallery_labels])
    calculator = AccuracyCalculator(exclude=("NMI", "AMI"), k=k)
    given = query, labels, gallery, gallery_labels
    expected = calculator.get_accuracy(*given, ref_includes_query=together)
    most = int((labels[:, None] == gallery_labels).sum(dim=1).max()) - together
    limit = most if k == "max_bin_count" else k
    found = rank_matches(*given, gallery_includes_query=together, within=limit, metric="euclidean")
    first = found.first_match_rank[found.matches > 0]
    values = {
        "precision_at_1": (first == 1).double(),
        "r_precision": found.r_precision,
        "mean_average_precision_at_r": found.average_precision_at_r,
        "mean_average_precision": found.average_precision,
        "mean_reciprocal_rank": torch.where(first <= (limit or math.inf), 1 / first, 0.0),
    }
    assert expected == pytest.approx({name: each.nanmean().item() for name, each in values.items()}, rel=1e-6)


def test_several_limits_from_one_pass():
    protocol, given = a_protocol(), features()
    cameras, labels = ((protocol[f"query_{kind}"], protocol[f"gallery_{kind}"]) for kind in ("cameras", "labels"))
    found = rankings_within(
        [None, 4, 1], given["query"], labels[0], given["gallery"], labels[1], cameras, False, "cosine"
    )
    for one, within in zip(found, (None, 4, 1), strict=True):
        assert_equal(one, rank_matches(**given, within=within, **protocol))


@pytest.mark.parametrize("includes_query", [True, False])
@pytest.mark.parametrize("within", [None, 4])
def test_both_metrics_from_one_product(includes_query, within):
    labels, gallery_labels = torch.randint(-1, 6, (30,)), torch.randint(-1, 6, (90,))
    query, gallery = torch.randn(30, 8).double(), torch.randn(90, 8).double()
    if includes_query:
        gallery, gallery_labels = torch.cat([query, gallery]), torch.cat([labels, gallery_labels])
    given = (query, labels, gallery, gallery_labels)
    found = rank_by_both_metrics(*given, gallery_includes_query=includes_query, within=within)
    for one, limit, metric in zip(found, (None, within), ("cosine", "euclidean"), strict=True):
        assert_equal(one, rank_matches(*given, gallery_includes_query=includes_query, within=limit, metric=metric))


@pytest.mark.parametrize(("few", "compared"), [(0, 0), (6, 0), (1000, 0), (6, 2), (6, 6)])
@pytest.mark.parametrize("ties", [True, False])
@pytest.mark.parametrize("width", [1, 40, 700])
def test_every_strategy_counts_like_the_loops(few, compared, ties, width, monkeypatch):
    monkeypatch.setattr(ranking, "_FEW", few)
    monkeypatch.setattr(ranking, "_COMPARED", compared)
    rows = torch.randint(0, 6, (9, width)).float() if ties else torch.rand(9, width)
    limits = (torch.randint(0, 6, (9, 5)).float() if ties else torch.rand(9, 5)).sort(dim=1).values
    used, given = torch.tensor([5, 0, 1, 2, 3, 4, 5, 5, 1]), rows.clone()
    found = count_up_to(rows, limits, used).tolist()
    assert torch.equal(rows, given)
    for row, row_limits, count, asked in zip(rows.tolist(), limits.tolist(), found, used.tolist(), strict=True):
        assert count[:asked] == [sum(value <= limit for value in row) for limit in row_limits[:asked]]
    for bad in (torch.nan, torch.inf, -torch.inf):
        rows[2, width // 2] = bad
        with pytest.raises(ValueError, match="distances must be finite; got NaN or infinity in 1 of 9 rows"):
            count_up_to(rows, limits, used)


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


BLOCKS = torch.rand(23, 60).split(10)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"gallery_cameras": None}, "must be given together"),
        ({"gallery": torch.ones(60, 4)}, "query's 5 columns; got 4"),
        ({"gallery_labels": torch.ones(59)}, "gallery_labels must have shape"),
        ({"gallery": torch.full((60, 5), torch.inf)}, "gallery must be finite; got NaN or infinity in 60 of 60 rows"),
        ({"within": 0}, "within must be at least 1; got 0"),
        ({"within": 2.5}, "within must be a whole number; got"),
        ({"metric": "l1"}, "metric must be one of 'cosine', 'euclidean'; got 'l1'"),
        ({"distances": BLOCKS[:2]}, "must have 23 rows in all, one per query; got 20"),
        ({"distances": [*BLOCKS, BLOCKS[0]]}, "must have 23 rows in all, one per query; got 33 or more"),
        ({"distances": [BLOCKS[0][:, 1:]]}, r"must have 60 columns, one per gallery item; got shape \(10, 59\)"),
        ({"distances": [BLOCKS[0].cfloat()]}, r"distances must be real numbers; got torch\.complex64"),
        ({"distances": BLOCKS[0].numpy()}, "blocks of them; got ndarray"),
        ({"distances": None}, r"distances must be a torch\.Tensor or blocks of them; got NoneType"),
    ],
)
def test_errors(wrong, message):
    function = rank_matches_from_distances if "distances" in wrong else rank_matches
    given = a_protocol() | ({} if "distances" in wrong else features())
    with pytest.raises((ValueError, TypeError), match=message):
        function(**(given | wrong))


def test_errors_of_ranks_and_order():
    given, protocol = features(), a_protocol()
    with pytest.raises(ValueError, match="gallery must start with the 60 queries"):
        labels = protocol["gallery_labels"], protocol["query_labels"]
        rank_matches(given["gallery"], labels[0], given["query"], labels[1], gallery_includes_query=True)
    found = rank_matches(**given, **protocol)
    messages = {(0, 1): "must be at least 1; got 0", (): "must have at least one", (2.5,): "must be a whole number"}
    for ranks, message in messages.items():
        with pytest.raises(ValueError, match=f"ranks {message}"):
            cumulative_matches(found, ranks)
