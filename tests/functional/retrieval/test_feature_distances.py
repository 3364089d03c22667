import pytest
import torch
from torch.nn.functional import cosine_similarity, normalize

from pml_ext.functional.retrieval.feature_distances import (
    both_distance_blocks,
    distance_blocks,
    have_unit_rows,
    is_spread_around_origin,
    prepare_features,
)


@pytest.mark.parametrize("entries", [1, 50, 2**20])
@pytest.mark.parametrize("scale", [1.0, 2.0**600, 2.0**-600])
def test_blocks_contain_the_distances(entries, scale, blocks_of, device):
    blocks_of(entries)
    query, gallery = torch.randn(7, 4).double(), torch.randn(12, 4).double() * torch.rand(12, 1)
    query[2] = gallery[5] = 0
    cosine, squares = 1 - cosine_similarity(query[:, None], gallery, dim=2), torch.cdist(query, gallery).square()
    scaled = [scale * x.to(device) for x in (query, gallery)]
    blocks = distance_blocks(*prepare_features(*scaled, "cosine"), "cosine")
    torch.testing.assert_close(torch.cat([block.clone() for block in blocks]).cpu(), cosine)
    blocks = distance_blocks(*prepare_features(*scaled, "euclidean"), "euclidean")
    found = torch.cat([block.clone() for block in blocks]).cpu()
    torch.testing.assert_close(found * (squares.max() / found.max()), squares)
    both = [(one.clone(), other.clone()) for one, other in both_distance_blocks(*scaled)]
    one, other = (torch.cat(part).cpu() for part in zip(*both, strict=True))
    torch.testing.assert_close(one, cosine)
    assert torch.equal(other.argsort(dim=1), squares.argsort(dim=1))


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_a_set_compared_with_itself_is_copied_once(metric):
    x = torch.randn(9, 4)
    rows, columns = prepare_features(x, x, metric)
    assert rows is columns
    for expected in prepare_features(x.clone(), x, metric):
        torch.testing.assert_close(rows, expected)


def test_unit_rows_and_features_far_from_the_origin_are_detected():
    x = torch.randn(50, 64)
    unit = normalize(x)
    assert have_unit_rows(unit) and have_unit_rows(unit.double())
    assert not have_unit_rows(x) and not have_unit_rows(unit.half()) and not have_unit_rows(unit * 1.00001)
    assert all(is_spread_around_origin(y) for y in (x, x + 0.5, x * 1e30))
    assert not is_spread_around_origin(x + 10) and not is_spread_around_origin((x + 10) * 1e30)
    at_the_limit = torch.tensor([[3.0, 1.0], [3.0, -1.0]])  # the mean's square is 0.9 of the mean square
    assert is_spread_around_origin(at_the_limit) and not is_spread_around_origin(at_the_limit + 0.01)
