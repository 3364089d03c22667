"""The fine-tuned networks: equal trials, runs and page, checked for structure with a small stand-in network."""

import csv
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

FOLDER = Path(__file__).parents[2] / "examples" / "evidence"


@pytest.fixture(autouse=True)
def modules(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))


def test_all_sides_have_the_same_rates_and_heads():
    import fine_tuned

    keys = ("backbone_rate", "head", "head_rate")
    shared = {
        side: [tuple(point[key] for key in keys) for point in fine_tuned.trials(side)] for side in fine_tuned.SIDES
    }
    assert all(points == shared["softmax"] for points in shared.values())
    assert len(shared["softmax"]) == 6
    both = Counter((head, rate) for _, head, rate in shared["softmax"])
    assert both.keys() == {("neck", 1e-3), ("neck", 1e-2), ("linear", 1e-3), ("linear", 1e-2)}


def test_the_losses_of_all_sides_have_a_gradient():
    import fine_tuned
    from terms import fingerprint

    for side in fine_tuned.SIDES:
        value, gradient = map(float, fingerprint(side, fine_tuned.trials(side)[0]).split())
        assert np.isfinite(value) and gradient > 0, side


def test_only_the_cross_entropy_reads_the_features_after_the_neck():
    import fine_tuned
    from terms import Sizes, of_method

    torch.manual_seed(0)
    settings = {"triplet.margin": 0.5, "triplet.weight": 2.0}
    loss = of_method("softmax + triplet", settings, Sizes(4, 6, 0))
    before, after, labels = torch.randn(16, 6), torch.randn(16, 6), torch.arange(16) // 4
    classifier, triplet = loss.terms
    expected = classifier(after, labels) + 2 * triplet(before, labels)
    assert fine_tuned.value_of(loss, (before, after), labels).item() == pytest.approx(expected.item())


class _Small(nn.Module):
    """Features of a grey value and its square, in the place of the ImageNet network."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1280)

    def forward(self, pixels):
        grey = pixels.mean(dim=(1, 2, 3))
        return self.layer(torch.stack([grey, grey.square()], dim=1))


def _grey_images(classes, start):
    from pml_ext.runner.data.datasets import ImageSet

    identities = np.arange(classes * 6) // 6 + start
    images = [
        torch.full((1, 8, 8), 6 * int(number) + row % 6, dtype=torch.uint8) for row, number in enumerate(identities)
    ]
    return ImageSet(
        images, identities, np.zeros(len(identities), dtype=np.int64), [str(number) for number in identities]
    )


@pytest.fixture
def small(monkeypatch, tmp_path):
    """The script on grey images of 20 training and 10 test classes, with few steps."""
    import fine_tuned

    from pml_ext.runner.data.datasets import OpenSet

    (tmp_path / "results").mkdir()
    data = OpenSet(_grey_images(20, 0), _grey_images(10, 30))
    for name, value in {
        "imagenet_network": _Small, "images_of": lambda name: data, "STEPS": (1, 2), "SEEDS": (0, 1),
        "HERE": tmp_path, "RESULTS": tmp_path / "results" / "fine_tuned",
    }.items():  # fmt: skip
        monkeypatch.setattr(fine_tuned, name, value)
    fine_tuned.decoded.cache_clear()
    fine_tuned.data_of.cache_clear()
    yield fine_tuned
    fine_tuned.decoded.cache_clear()
    fine_tuned.data_of.cache_clear()


def test_a_side_is_tuned_on_validation_classes_and_tested_at_its_best_settings(small, monkeypatch):
    monkeypatch.setattr("sys.argv", ["fine_tuned.py", "--sets", "omniglot", "--sides", "softmax", "softmax + tcm"])
    monkeypatch.setattr(small, "frozen", _beatable(small.frozen))
    small.main()
    store = small.Store(small.RESULTS)
    for side in ("softmax", "softmax + tcm"):
        of_side = [result for result in store.found.values() if result["method"] == side]
        tried = [result for result in of_side if result["stage"] == "validation"]
        tests = [result for result in of_side if result["stage"] == "test"]
        best = max(tried, key=lambda result: result["metrics"]["map_at_r"])
        assert 6 <= len(tried) <= 12
        assert [result["settings"] for result in tests] == [best["settings"]] * 2
    page = (small.HERE / "WHOLE_NETWORKS.md").read_text(encoding="utf-8")
    assert page.count("|cross-entropy|") == 2 and page.count("|+ `TCMLoss`|") == 2  # the set's table, and the heads'
    assert "- **TCM** next to the cross-entropy " in page and "- **MS** has not been tested yet." in page
    with (small.HERE / "results" / "fine_tuned.csv").open(encoding="utf-8") as file:
        compared = {(row["base"], row["method"]) for row in csv.DictReader(file) if row["base"]}
    assert compared == {("frozen", "softmax"), ("softmax", "softmax + tcm")}

    kept = set(store.found)
    monkeypatch.setattr(small, "train", None)  # a second run trains nothing
    small.main()
    assert set(small.Store(small.RESULTS).found) == kept


def test_more_steps_are_tried_and_choose_nothing(small, monkeypatch):
    from fine_tuned_section import BEYOND

    monkeypatch.setattr("sys.argv", ["fine_tuned.py", "--sets", "omniglot", "--sides", "softmax", "--beyond"])
    monkeypatch.setattr(small, "frozen", _beatable(small.frozen))
    monkeypatch.setattr(small, "BEYOND_STEPS", 3)
    small.main()
    found = list(small.Store(small.RESULTS).found.values())
    (beyond,) = [result for result in found if result["stage"] == BEYOND]
    tests = [result for result in found if result["stage"] == "test" and result["method"] == "softmax"]
    assert len(tests) == 2 and all(result["settings"]["steps"] <= 2 for result in tests)
    assert beyond["settings"] == {**tests[0]["settings"], "steps": 3}
    gain = beyond["metrics"]["map_at_r"]
    trials = [of for of in found if (of["method"], of["stage"]) == ("softmax", "validation")]
    gain -= max(of["metrics"]["map_at_r"] for of in trials)
    page = (small.HERE / "WHOLE_NETWORKS.md").read_text(encoding="utf-8")
    assert f"changed by cross-entropy {100 * gain:+.1f} points." in page


def _beatable(frozen):
    def measured(set_name, stage, store):
        frozen(set_name, stage, store)
        return 0.0

    return measured


def test_a_side_that_never_beats_the_frozen_network_is_not_tested(small, monkeypatch):
    monkeypatch.setattr(small, "frozen", lambda set_name, stage, store: 1.0)
    store = small.Store(small.RESULTS)
    small.run_side("omniglot", "triplet", store)
    assert {result["stage"] for result in store.found.values()} == {"validation"}


def test_validation_classes_are_not_trained_on(small):
    data = small.data_of("omniglot", "validation")
    trained = set(data.train.identities.tolist())
    assert (len(trained), len(data.judged[0].labels.unique())) == (14, 6)
    held_out = {int(image[0, 0, 0]) // 6 for image in data.judged[0].images.images}
    assert not trained & held_out


def test_batch_norms_keep_their_statistics(monkeypatch):
    import fine_tuned

    def layers():
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.LazyLinear(1280))

    monkeypatch.setattr(fine_tuned, "imagenet_network", layers)
    network = fine_tuned.Network("neck", is_classifier=True).train()
    _, after = network(torch.randn(8, 3, 6, 6) + 2)
    after.square().sum().backward()
    norm = network.backbone[1]
    assert norm.running_mean.abs().sum() == 0 and norm.weight.grad is not None
    assert network.neck.running_mean.abs().sum() > 0


def test_a_trial_ends_when_it_falls(small):
    small.STEPS = (1, 2, 3)
    assert not small.has_ended([0.5])
    assert not small.has_ended([0.5, 0.6])
    assert small.has_ended([0.5, 0.4])
    assert small.has_ended([0.5, 0.6, 0.7])
