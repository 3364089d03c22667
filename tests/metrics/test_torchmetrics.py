"""OPIS and StreamingVerification as torchmetrics uses a Metric; test_opis.py has two processes."""

import copy
import pickle

import pytest
from torchmetrics import Metric

from pml_ext.metrics import OPIS, StreamingVerification
from tests.metrics.test_opis import a_set, scored_pairs

METRICS = {
    "OPIS": (OPIS, a_set, "opis"),
    "StreamingVerification": (lambda: StreamingVerification(fars=(0.1,)), scored_pairs, "tar_at_far_1e-1"),
}


def numbers(found):
    return {name: value for name, value in found.items() if isinstance(value, (int, float))}


@pytest.mark.parametrize("name", METRICS)
def test_a_metric_collects_forgets_moves_and_travels(name, recwarn):
    make, data, key = METRICS[name]
    x, y = data()
    metric, expected = make(), make()
    assert isinstance(metric, Metric)
    expected.update(x, y)
    batch = make()
    batch.update(x[:60], y[:60])
    assert metric(x[:60], y[:60])[key] == batch.compute()[key], "forward gives the batch's own value"
    metric(x[60:], y[60:])
    for twin in (metric, copy.deepcopy(metric), pickle.loads(pickle.dumps(metric)), metric.clone().to("cpu").double()):
        assert numbers(twin.compute()) == numbers(expected.compute())
    if hasattr(metric, "merge_state"):  # not in torchmetrics 1.5
        metric.merge_state(batch)
        assert metric.compute()[key] != expected.compute()[key]
    metric.reset()
    given = x.clone(), y.clone()
    metric.update(*given)
    for part in given:
        part.zero_()
    assert numbers(metric.compute()) == numbers(expected.compute())
    assert not recwarn.list
