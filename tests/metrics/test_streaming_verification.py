import copy
import math
import pickle
import threading
import time
from typing import Any

import pytest
import torch
from torch import Tensor

from pml_ext.metrics import StreamingVerification, VerificationEvaluator


def test_streamed_scores_are_within_their_bounds() -> None:
    same = torch.rand(100_000) < 0.2
    scores = 0.2 * torch.randn(100_000) + 0.4 * same
    fars = (1e-1, 1e-3, 1e-5)
    exact = VerificationEvaluator(fars, folds=None).of_scores(scores, same)
    halves = [StreamingVerification(fars), StreamingVerification(fars)]
    for half, part, kinds in zip(halves, scores.split(50_000), same.split(50_000), strict=True):
        for some, alike in zip(part.split(999), kinds.split(999), strict=True):
            half.update(some, alike)
    halves[0].merge(halves[1])
    found, bounds = halves[0].compute(), halves[0].bounds()
    assert set(found) == set(exact)
    for name, (lower, upper) in bounds.items():
        if not math.isnan(exact[name]):
            assert lower - 1e-12 <= exact[name] <= upper + 1e-12 < lower + 1e-3
            assert found[name] == lower if name.startswith("tar") else lower - 1e-12 <= found[name] <= upper + 1e-12
    assert math.isnan(found["tar_at_far_1e-5"]) and math.isnan(bounds["tar_at_far_1e-5"][0])
    threshold = torch.tensor(found["threshold_at_far_1e-3"], dtype=torch.float64)
    assert (scores >= threshold)[~same].double().mean() <= 1e-3
    assert (scores >= threshold)[same].double().mean().item() == pytest.approx(found["tar_at_far_1e-3"])
    halves[0].reset()
    with pytest.warns(UserWarning, match="are nan: there is no genuine pair and no impostor pair"):
        halves[0].bounds()


def test_threads_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow count of one thread is over before that of another begins, so that none is lost."""
    metric, other = StreamingVerification(), StreamingVerification()
    scores, same = torch.tensor([0.5, 0.1]), torch.tensor([True, False])

    def slow(scores: Tensor, same: Tensor) -> None:
        before = metric.histogram.counts.clone()
        time.sleep(0.002)
        metric.histogram.counts = before + torch.tensor([[1], [0]])

    def run(*works: Any) -> None:
        threads = [threading.Thread(target=work) for work in works]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
            assert not thread.is_alive()

    other.update(scores, same)
    run(*[lambda: [metric.update(scores, same) for _ in range(50)] and None] * 4)
    assert metric.compute()["genuine"] == metric.compute()["impostors"] == 200
    run(*[lambda: [metric.merge(other) for _ in range(50)], lambda: [other.merge(metric) for _ in range(2)]])
    monkeypatch.setattr(metric.histogram, "update", slow)
    metric.histogram.counts.zero_()
    run(*[lambda: [metric.update(scores, same) for _ in range(5)] and None] * 4)
    assert int(metric.histogram.counts[0, 0]) == 20


def test_copies_and_pickles_count_on_their_own() -> None:
    metric = StreamingVerification()
    metric.update(torch.tensor([0.5, 0.1]), torch.tensor([True, False]))
    for twin in (copy.deepcopy(metric), pickle.loads(pickle.dumps(metric))):
        assert twin.compute() == pytest.approx(metric.compute(), nan_ok=True)
        twin.update(torch.tensor([0.5]), torch.tensor([True]))
        assert (twin.compute()["genuine"], metric.compute()["genuine"]) == (2, 1)
