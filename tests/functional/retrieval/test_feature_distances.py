import pytest
import torch
from torch.nn.functional import normalize
from torch.testing import assert_close

from pml_ext.functional.retrieval.feature_distances import have_unit_rows, prepare_features


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_a_set_compared_with_itself_is_copied_once(metric):
    x = torch.randn(9, 4)
    rows, columns = prepare_features(x, x, metric)
    assert rows is columns
    for expected in prepare_features(x.clone(), x, metric):
        assert_close(rows, expected)


def test_unit_rows_are_detected():
    x = torch.randn(50, 64)
    unit = normalize(x)
    assert have_unit_rows(unit) and have_unit_rows(unit.double())
    assert not have_unit_rows(x) and not have_unit_rows(unit.half()) and not have_unit_rows(unit * 1.00001)
