import pytest
import torch

from pml_ext.functional.retrieval.feature_distances import (
    both_distance_blocks,
    distance_blocks,
    have_unit_rows,
    is_spread_around_origin,
    prepare_features,
)


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
@pytest.mark.parametrize("entries", [1, 50, None])
def test_blocks_contain_the_distances(metric: str, entries: int | None) -> None:
    query, gallery = torch.randn(7, 4).double(), torch.randn(12, 4).double()
    blocks = distance_blocks(*prepare_features(query, gallery, metric), metric, entries=entries)
    found = torch.cat([block.clone() for block in blocks])
    if metric == "cosine":
        expected = 1 - torch.nn.functional.cosine_similarity(query[:, None], gallery, dim=2)
    else:
        expected = (query[:, None] - gallery).square().sum(dim=2)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_a_set_compared_with_itself_is_copied_once(metric: str) -> None:
    x = torch.randn(9, 4)
    rows, columns = prepare_features(x, x, metric)
    assert rows is columns
    expected = prepare_features(x.clone(), x, metric)
    torch.testing.assert_close(rows, expected[0])
    torch.testing.assert_close(columns, expected[1])


def test_unit_rows() -> None:
    x = torch.randn(50, 64)
    unit = torch.nn.functional.normalize(x)
    assert have_unit_rows(unit) and have_unit_rows(unit.double())
    assert not have_unit_rows(x) and not have_unit_rows(unit.half()) and not have_unit_rows(unit * 1.00001)


@pytest.mark.parametrize("entries", [1, 50, None])
@pytest.mark.parametrize("scale", [1.0, 2.0**600, 2.0**-600])
def test_one_product_gives_the_order_of_both_distances(entries: int | None, scale: float) -> None:
    query, gallery = torch.randn(7, 4).double(), torch.randn(12, 4).double() * torch.rand(12, 1)
    query[2] = 0
    gallery[5] = 0
    expected = torch.cdist(query, gallery)
    blocks = both_distance_blocks(query * scale, gallery * scale, entries=entries)
    cosine, euclidean = (torch.cat(part) for part in zip(*((a.clone(), b.clone()) for a, b in blocks), strict=True))
    torch.testing.assert_close(cosine, 1 - torch.nn.functional.cosine_similarity(query[:, None], gallery, dim=2))
    assert torch.equal(euclidean.argsort(dim=1), expected.argsort(dim=1))


def test_features_far_from_the_origin_are_detected() -> None:
    x = torch.randn(50, 8)
    assert is_spread_around_origin(x) and is_spread_around_origin(x + 0.5) and is_spread_around_origin(x * 1e30)
    assert not is_spread_around_origin(x + 10) and not is_spread_around_origin((x + 10) * 1e30)
