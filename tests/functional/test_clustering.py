import pytest
import torch
from sklearn.metrics import adjusted_mutual_info_score

from pml_ext.functional import clustering_f1
from pml_ext.functional.clustering import adjusted_mutual_information
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


def test_other_lengths_are_errors() -> None:
    with pytest.raises(ValueError, match="cluster_labels must have shape"):
        clustering_f1(torch.zeros(3).long(), torch.zeros(4).long())


@pytest.mark.parametrize(("classes", "clusters"), [(2, 2), (7, 7), (40, 9), (300, 30)])
def test_adjusted_mutual_information_equals_scikit_learn(classes: int, clusters: int) -> None:
    labels = torch.randint(0, classes, (300,))
    found = torch.where(torch.rand(300) < 0.5, labels * clusters // classes, torch.randint(0, clusters, (300,)))
    for a, b in ((found, labels), (labels, found), (torch.arange(300), labels), (found * 2**40, -labels)):
        expected = adjusted_mutual_info_score(b.numpy(), a.numpy())
        assert adjusted_mutual_information(a, b) == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_adjusted_mutual_information_of_0_by_0() -> None:
    one, each = torch.zeros(5).long(), torch.arange(5)
    assert adjusted_mutual_information(each, each) == adjusted_mutual_information(one, one) == 1
    assert adjusted_mutual_information(one, each) == adjusted_mutual_information(each, one) == 0
