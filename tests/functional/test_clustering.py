import pytest
import torch

from pml_ext.functional import clustering_f1
from tests.oracles import metrics as oracle


def test_equals_the_loops() -> None:
    clusters, labels = torch.randint(0, 5, (60,)), torch.randint(0, 4, (60,))
    expected = oracle.clustering_f1(clusters.tolist(), labels.tolist())
    assert clustering_f1(clusters, labels).item() == pytest.approx(expected, rel=1e-12)


def test_names_do_not_matter_and_equal_partitions_score_one() -> None:
    labels = torch.randint(0, 4, (60,))
    assert clustering_f1((3 - labels) * 2**40, labels).item() == 1.0
    assert clustering_f1(torch.arange(60), labels).item() == 0.0
    assert clustering_f1(torch.arange(60), torch.arange(60)).isnan()


def test_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="cluster_labels must have shape"):
        clustering_f1(torch.zeros(3).long(), torch.zeros(4).long())
