import math

import pytest
import torch
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from torch import Tensor

from pml_ext.functional import Ranking, cumulative_matches, rank_matches, rank_matches_from_distances
from pml_ext.functional.retrieval.ranking import count_up_to, rank_by_both_metrics, rankings_within
from tests.oracles import metrics as oracle


def a_protocol(queries: int = 23, gallery: int = 60) -> dict[str, Tensor]:
    """Identities with junk (−1), distractors (0), and one query (identity 99) that has no match."""
    labels = torch.randint(1, 6, (queries,))
    labels[3] = 99
    return {
        "query_labels": labels,
        "gallery_labels": torch.randint(-1, 6, (gallery,)),
        "query_cameras": torch.randint(0, 3, (queries,)),
        "gallery_cameras": torch.randint(0, 3, (gallery,)),
    }


def assert_equals_loops(found: Ranking, expected: list) -> None:
    for q, row in enumerate(expected):
        if row is None:
            assert found.matches[q] == 0
            assert all(math.isnan(field[q]) for field in found[1:])
        else:
            assert [float(field[q]) for field in found] == pytest.approx(row, rel=1e-12)


@pytest.mark.parametrize("cameras", [True, False])
@pytest.mark.parametrize("block", [1, 3, 20, 23])
@pytest.mark.parametrize("ties", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_equals_the_loops(cameras: bool, block: int, ties: bool, seed: int) -> None:
    torch.manual_seed(seed)
    protocol = a_protocol()
    if not cameras:
        protocol = {name: values for name, values in protocol.items() if "labels" in name}
    shape = (23, 60)
    distances = torch.randint(0, 8, shape).double() if ties else torch.rand(shape).double()
    given = distances.clone()
    found = rank_matches_from_distances(distances if block == 23 else distances.split(block), **protocol)
    assert torch.equal(distances, given)
    assert_equals_loops(found, oracle.ranking(distances.tolist(), *(v.tolist() for v in protocol.values())))


def test_wide_galleries_equal_the_loops() -> None:
    # Wide enough that some queries have only near matches and others do not.
    query, gallery = torch.randn(6, 8).double(), torch.randn(900, 8).double()
    labels, gallery_labels = torch.arange(6), torch.randint(-1, 40, (900,))
    gallery[gallery_labels == 1] = query[1] + 0.1 * torch.randn(int((gallery_labels == 1).sum()), 8).double()
    distances = torch.cdist(query, gallery)
    expected = oracle.ranking(distances.tolist(), labels.tolist(), gallery_labels.tolist())
    assert_equals_loops(rank_matches_from_distances(distances, labels, gallery_labels), expected)
    assert_equals_loops(rank_matches(query, labels, gallery, gallery_labels, metric="euclidean"), expected)
    assert_equals_loops(rank_matches_from_distances(distances.split([1, 0, 4, 1]), labels, gallery_labels), expected)


def test_euclidean_distances_are_precise_far_from_the_origin() -> None:
    protocol = a_protocol()
    query, gallery = torch.randn(23, 5), torch.randn(60, 5)
    expected = rank_matches(query.double(), gallery=gallery.double(), metric="euclidean", **protocol)
    found = rank_matches(query + 512, gallery=gallery + 512, metric="euclidean", **protocol)
    assert torch.equal(found.matches, expected.matches)
    torch.testing.assert_close(found.average_precision, expected.average_precision, equal_nan=True, rtol=0.01, atol=0)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("column", [0, 17, 899])
@pytest.mark.parametrize("query", [0, 1, 2])
def test_non_finite_distances_are_errors(value: float, column: int, query: int) -> None:
    # Query 0 finds its match near, query 1 far, query 2 has none.
    distances = torch.rand(3, 900) + 1
    distances[0, 5], distances[1, 6] = 0, 3
    labels, gallery_labels = torch.tensor([1, 2, 3]), torch.zeros(900, dtype=torch.int64)
    gallery_labels[5], gallery_labels[6] = 1, 2
    assert rank_matches_from_distances(distances, labels, gallery_labels).matches.tolist() == [1, 1, 0]
    distances[query, column] = value
    with pytest.raises(ValueError, match="distances must be finite; got NaN or infinity in 1 of 3 rows"):
        rank_matches_from_distances(distances, labels, gallery_labels)


def test_huge_distances_are_finite() -> None:
    distances = torch.full((1, 900), 1e38)
    distances[0, 3] = 0
    gallery = torch.zeros(900, dtype=torch.int64)
    gallery[3] = 1
    assert rank_matches_from_distances(distances, torch.tensor([1]), gallery).first_match_rank.item() == 1


def test_a_gallery_of_junk_only() -> None:
    found = rank_matches(torch.randn(2, 5), torch.tensor([7, -1]), torch.randn(3, 5), torch.tensor([-1, -1, -1]))
    assert found.matches.tolist() == [0, 0]
    assert all(field.isnan().all() for field in found[1:])


def test_half_precision_distances_are_counted_exactly() -> None:
    # 3,000 non-matches are closer: float16 would count 2,048 of them.
    distances = torch.cat([torch.zeros(1, 3000), torch.ones(1, 1)], dim=1).half()
    gallery = torch.cat([torch.zeros(3000), torch.ones(1)]).long()
    assert rank_matches_from_distances(distances, torch.tensor([1]), gallery).first_match_rank.item() == 3001


def test_features_are_ranked_by_cosine() -> None:
    protocol = a_protocol()
    query, gallery = torch.randn(23, 5), torch.randn(60, 5)
    distances = 1 - torch.nn.functional.cosine_similarity(query[:, None].double(), gallery.double(), dim=2)
    expected = oracle.ranking(distances.tolist(), *(v.tolist() for v in protocol.values()))
    assert_equals_loops(rank_matches(query, gallery=gallery, **protocol), expected)
    scaled = rank_matches(query * 1e-20, gallery=gallery * 1e18, **protocol)
    assert_equals_loops(scaled, expected)


@pytest.mark.parametrize("junk", [False, True])
def test_a_query_does_not_find_itself(junk: bool) -> None:
    x, labels = torch.randn(40, 4).double(), torch.randint(-1 if junk else 0, 5, (40,))
    distances = torch.cdist(x, x)
    found = rank_matches_from_distances(distances[:30], labels[:30], labels, gallery_includes_query=True)
    expected = oracle.ranking(distances[:30].tolist(), labels[:30].tolist(), labels.tolist(), includes_query=True)
    assert_equals_loops(found, expected)


def test_ties_are_pessimistic() -> None:
    # All gallery rows are equal: two matches rank after three non-matches, in any order.
    for labels in ([1, 1, 2, 2, 2], [2, 2, 2, 1, 1], [2, 1, 2, 1, 2]):
        found = rank_matches(torch.ones(1, 2), torch.tensor([1]), torch.ones(5, 2), torch.tensor(labels))
        assert found.first_match_rank.item() == 4
        assert found.average_precision.item() == pytest.approx((1 / 4 + 2 / 5) / 2)
        assert found.inverse_negative_penalty.item() == pytest.approx(2 / 5)


def test_within_limits_the_precisions() -> None:
    distances = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    query, gallery = torch.tensor([1]), torch.tensor([1, 0, 1, 1])
    found = rank_matches_from_distances(distances, query, gallery, within=2)
    assert found.average_precision.item() == pytest.approx(1 / 3)
    assert found.average_precision_at_r.item() == pytest.approx(1 / 3)
    assert found.r_precision.item() == pytest.approx(1 / 2)
    assert found.inverse_negative_penalty.item() == pytest.approx(3 / 4)


def test_integer_types_may_differ() -> None:
    protocol = a_protocol()
    query, gallery = torch.randn(23, 5), torch.randn(60, 5)
    expected = rank_matches(query, gallery=gallery, **protocol)
    narrow = protocol | {
        "query_labels": protocol["query_labels"].int(),
        "query_cameras": protocol["query_cameras"].byte(),
    }
    for a, b in zip(rank_matches(query, gallery=gallery, **narrow), expected, strict=True):
        torch.testing.assert_close(a, b, equal_nan=True, rtol=0, atol=0)


def test_cumulative_matches() -> None:
    protocol = a_protocol()
    found = rank_matches(torch.randn(23, 5), gallery=torch.randn(60, 5), **protocol)
    first = [f for f in found.first_match_rank.tolist() if not math.isnan(f)]
    assert len(first) < 23
    expected = [sum(f <= k for f in first) / len(first) for k in (1, 5, 10)]
    assert cumulative_matches(found).tolist() == pytest.approx(expected)
    lone = rank_matches(torch.randn(2, 5), torch.tensor([7, 8]), torch.randn(3, 5), torch.tensor([-1, -1, -1]))
    assert cumulative_matches(lone).isnan().all()
    few = rank_matches_from_distances(torch.tensor([[1.0, 2.0]]), torch.tensor([1]), torch.tensor([0, 1]))
    assert cumulative_matches(few, (1, 2, 50)).tolist() == [0, 1, 1]  # ranks beyond the gallery
    with pytest.raises(ValueError, match="ranks must be one or more ranks from 1"):
        cumulative_matches(found, (0, 1))


def test_errors() -> None:
    protocol = a_protocol()
    query, gallery = torch.randn(23, 5), torch.randn(60, 5)
    with pytest.raises(ValueError, match="must be given together"):
        rank_matches(query, gallery=gallery, **(protocol | {"gallery_cameras": None}))
    with pytest.raises(ValueError, match="query's 5 columns; got 4"):
        rank_matches(query, gallery=gallery[:, :4], **protocol)
    with pytest.raises(ValueError, match="gallery_labels must have shape"):
        rank_matches(query, gallery=gallery, **(protocol | {"gallery_labels": protocol["gallery_labels"][1:]}))
    with pytest.raises(ValueError, match="within must be a rank of 1 or more"):
        rank_matches(query, gallery=gallery, **protocol, within=0)
    with pytest.raises(ValueError, match="gallery must start with the 60 queries"):
        rank_matches(gallery, protocol["gallery_labels"], query, protocol["query_labels"], gallery_includes_query=True)
    with pytest.raises(ValueError, match="metric must be one of 'cosine', 'euclidean'; got 'l1'"):
        rank_matches(query, gallery=gallery, **protocol, metric="l1")
    blocks = torch.rand(23, 60).split(10)
    with pytest.raises(ValueError, match="must have 23 rows in all, one per query; got 20"):
        rank_matches_from_distances(blocks[:2], **protocol)
    with pytest.raises(ValueError, match="must have 23 rows in all, one per query; got 33 or more"):
        rank_matches_from_distances([*blocks, blocks[0]], **protocol)
    with pytest.raises(ValueError, match=r"must have 60 columns, one per gallery item; got shape \(10, 59\)"):
        rank_matches_from_distances([blocks[0][:, :59]], **protocol)
    with pytest.raises(TypeError, match="blocks of them; got ndarray"):
        rank_matches_from_distances(torch.rand(23, 60).numpy(), **protocol)
    gallery[7, 0] = torch.inf
    with pytest.raises(ValueError, match="gallery must be finite; got NaN or infinity in 1 of 60 rows"):
        rank_matches(query, gallery=gallery, **protocol)


@pytest.mark.parametrize("within", [float("nan"), 2.5, True])
def test_limits_must_be_ranks(within: float) -> None:
    protocol = a_protocol()
    with pytest.raises(ValueError, match="within must be a whole number; got"):
        rank_matches(torch.randn(23, 4), gallery=torch.randn(60, 4), within=within, **protocol)
    ranking = rank_matches(torch.randn(23, 4), gallery=torch.randn(60, 4), **protocol)
    with pytest.raises(ValueError, match="ranks must be a whole number; got"):
        cumulative_matches(ranking, (within,))


@pytest.mark.parametrize(("dtype", "scale"), [(torch.float64, 1e160), (torch.float64, 1e-310), (torch.float32, 1e20)])
@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_feature_scale_does_not_matter(dtype: torch.dtype, scale: float, metric: str) -> None:
    protocol = a_protocol()
    scale = 2.0 ** round(math.log2(scale))  # powers of two round nothing, except where numbers lose digits
    query, gallery = torch.randint(-9, 9, (23, 6)).to(dtype) + 0.5, torch.randint(-9, 9, (60, 6)).to(dtype) + 0.25
    expected = rank_matches(query, gallery=gallery, metric=metric, **protocol)
    found = rank_matches(query * scale, gallery=gallery * scale, metric=metric, **protocol)
    assert torch.equal(found.first_match_rank.nan_to_num(), expected.first_match_rank.nan_to_num())
    assert torch.equal(found.average_precision.nan_to_num(), expected.average_precision.nan_to_num())


def test_distances_must_be_real_numbers() -> None:
    labels, gallery_labels = torch.arange(4), torch.arange(6) % 4
    with pytest.raises(ValueError, match=r"distances must be real numbers; got torch\.complex64"):
        rank_matches_from_distances([torch.rand(4, 6).cfloat()], labels, gallery_labels)
    with pytest.raises(TypeError, match=r"distances must be a torch\.Tensor or blocks of them; got NoneType"):
        rank_matches_from_distances(None, labels, gallery_labels)


@pytest.mark.parametrize("k", [1, 3, 25, "max_bin_count", None])
@pytest.mark.parametrize("together", [True, False])
def test_the_neighbour_metrics_of_pytorch_metric_learning(k: int | str | None, together: bool) -> None:
    labels, gallery_labels = torch.randint(0, 6, (30,)), (torch.rand(90) ** 2 * 6).long()
    labels[3] = 99
    centres = torch.randn(100, 8)
    query, gallery = centres[labels] + torch.randn(30, 8), centres[gallery_labels] + torch.randn(90, 8)
    if together:
        gallery, gallery_labels = torch.cat([query, gallery]), torch.cat([labels, gallery_labels])
    calculator = AccuracyCalculator(exclude=("NMI", "AMI"), k=k)
    expected = calculator.get_accuracy(query, labels, gallery, gallery_labels, ref_includes_query=together)
    most = int((labels[:, None] == gallery_labels).sum(dim=1).max()) - together
    limit = most if k == "max_bin_count" else k
    found = rank_matches(
        query,
        labels,
        gallery,
        gallery_labels,
        gallery_includes_query=together,
        within=limit,
        metric="euclidean",
    )
    first = found.first_match_rank[found.matches > 0]
    values = {
        "precision_at_1": (first == 1).double(),
        "r_precision": found.r_precision,
        "mean_average_precision_at_r": found.average_precision_at_r,
        "mean_average_precision": found.average_precision,
        "mean_reciprocal_rank": torch.where(first <= (limit or math.inf), 1 / first, 0.0),
    }
    assert expected == pytest.approx({name: each.nanmean().item() for name, each in values.items()}, rel=1e-6)


def test_several_limits_from_one_pass() -> None:
    protocol = a_protocol()
    x, gallery = torch.randn(23, 5), torch.randn(60, 5)
    cameras = (protocol["query_cameras"], protocol["gallery_cameras"])
    labels = (protocol["query_labels"], protocol["gallery_labels"])
    found = rankings_within([None, 4, 1], x, labels[0], gallery, labels[1], cameras, False, "cosine")
    for ranking, within in zip(found, (None, 4, 1), strict=True):
        expected = rank_matches(x, gallery=gallery, within=within, **protocol)
        for one, other in zip(ranking, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("includes_query", [True, False])
@pytest.mark.parametrize("within", [None, 4])
def test_both_metrics_from_one_product(includes_query: bool, within: int | None) -> None:
    labels, gallery_labels = torch.randint(-1, 6, (30,)), torch.randint(-1, 6, (90,))
    query, gallery = torch.randn(30, 8).double(), torch.randn(90, 8).double()
    if includes_query:
        gallery, gallery_labels = torch.cat([query, gallery]), torch.cat([labels, gallery_labels])
    given = (query, labels, gallery, gallery_labels)
    found = rank_by_both_metrics(*given, gallery_includes_query=includes_query, within=within)
    for ranking, limit, metric in zip(found, (None, within), ("cosine", "euclidean"), strict=True):
        expected = rank_matches(*given, gallery_includes_query=includes_query, within=limit, metric=metric)
        for one, other in zip(ranking, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(("few", "compared"), [(0, 0), (6, 0), (1000, 0), (6, 2), (6, 6)])
@pytest.mark.parametrize("ties", [True, False])
@pytest.mark.parametrize("width", [1, 40, 700])
def test_equals_the_loops_for_every_strategy(few: int, compared: int, ties: bool, width: int) -> None:
    rows = torch.randint(0, 6, (9, width)).float() if ties else torch.rand(9, width)
    limits = (torch.randint(0, 6, (9, 5)).float() if ties else torch.rand(9, 5)).sort(dim=1).values
    used = torch.tensor([5, 0, 1, 2, 3, 4, 5, 5, 1])
    given = rows.clone()
    found = count_up_to(rows, limits, used, few=few, compared=compared).tolist()
    assert torch.equal(rows, given)
    for row, row_limits, count, asked in zip(rows.tolist(), limits.tolist(), found, used.tolist(), strict=True):
        assert count[:asked] == [sum(value <= limit for value in row) for limit in row_limits[:asked]]


@pytest.mark.parametrize(("few", "compared"), [(0, 0), (1000, 0), (6, 6)])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_non_finite_entries_are_errors(few: int, compared: int, bad: float) -> None:
    rows = torch.rand(3, 50)
    rows[1, 20] = bad
    with pytest.raises(ValueError, match="distances must be finite; got NaN or infinity in 1 of 3 rows"):
        count_up_to(rows, torch.full((3, 1), 0.1), torch.ones(3).long(), few=few, compared=compared)
