from collections import UserList
from typing import Any

import pytest
import torch

from pml_ext.metrics import AccuracyCalculator
from tests.metrics.calculators import CPU, KNN, OTHERS, PER_QUERY, a_set, calculator


def test_nothing_is_clustered_for_f1_alone_unless_it_is_named() -> None:
    x, y, _ = a_set()

    def never(*arguments: Any) -> None:
        raise AssertionError("clustered")

    options = {"device": CPU, "kmeans_func": never}
    without = AccuracyCalculator(**options, exclude=("NMI", "AMI"))
    assert "f1" not in without.get_curr_metrics()
    assert set(without.get_accuracy(x, y)) == {*KNN, *PER_QUERY, *OTHERS} - {"f1"}
    assert "f1" not in AccuracyCalculator(**options).get_accuracy(x, y, exclude=("NMI", "AMI"))
    for named in (
        lambda: without.get_accuracy(x, y, include=("f1",)),
        lambda: AccuracyCalculator(**options, include=("f1", "r_precision")).get_accuracy(x, y),
        lambda: AccuracyCalculator(**options, exclude=("NMI",)).get_accuracy(x, y),
    ):
        with pytest.raises(AssertionError, match="clustered"):
            named()
    assert "f1" in calculator(exclude=("NMI",)).get_accuracy(x, y)


def test_small_classes_are_clustered_without_faisss_advice(capfd: pytest.CaptureFixture[str]) -> None:
    AccuracyCalculator(device=CPU, include=("NMI",)).get_accuracy(torch.randn(120, 8), torch.arange(120) % 20)
    assert capfd.readouterr() == ("", "")


def test_clusters_as_an_array_and_names_in_any_sequence() -> None:
    """scikit-learn returns arrays; Hydra's lists are sequences of their own."""
    x, y, _ = a_set()
    clusters = torch.arange(len(x)) % 3
    names = UserList(["NMI", "AMI", "f1"])
    options = {"device": CPU, "include": names}
    expected = AccuracyCalculator(**options, kmeans_func=lambda *_: clusters).get_accuracy(x, y)
    found = AccuracyCalculator(**options, kmeans_func=lambda *_: clusters.numpy()).get_accuracy(x, y, include=names)
    assert found == expected and set(found) == set(names)
