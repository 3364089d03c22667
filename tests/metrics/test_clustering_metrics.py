from typing import Any

import pytest

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
