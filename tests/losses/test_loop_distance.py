import pytest
import torch
from pytorch_metric_learning.distances import CosineSimilarity, DotProductSimilarity, LpDistance
from torch.nn.functional import normalize
from torch.testing import assert_close

from pml_ext.losses import loop_matrix


@pytest.mark.parametrize("pairing", ["consecutive", "all"])
def test_every_distance_gives_the_same_matrix_in_its_own_measure(pairing):
    x, labels = torch.randn(16, 6, dtype=torch.float64), torch.arange(16) // 4
    cosines, is_negative = loop_matrix(CosineSimilarity(), x, labels, pairing=pairing, geometry="arc")
    assert torch.equal(is_negative, labels[:, None] != labels)
    own = normalize(x, dim=1) @ normalize(x, dim=1).T
    assert_close(cosines[~is_negative], own[~is_negative], rtol=0, atol=1e-12)
    assert (cosines[is_negative] >= own[is_negative] - 1e-12).all()
    for distance in (DotProductSimilarity(), LpDistance(), LpDistance(power=2)):
        found, _ = loop_matrix(distance, x, labels, pairing=pairing, geometry="arc")
        if not distance.is_inverted:
            found = 1 - found.pow(2 / distance.power) / 2
        assert_close(found, cosines, rtol=0, atol=1e-7)
