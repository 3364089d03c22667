"""The runs of whole networks: grid and page, checked for structure, never for a desired result."""

from pathlib import Path

import numpy as np
import pytest

from pml_ext.runner.config.load import load_config

FOLDER = Path(__file__).parents[1] / "examples" / "evidence"


@pytest.fixture(autouse=True)
def modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))


def test_methods_have_equal_trials_and_configs_accept_them() -> None:
    from whole import config_of, words
    from whole_grid import METHODS, SETS, TRIAL_SCHEDULE, WHOLE_SCHEDULE

    for method, points in METHODS.items():
        assert len({repr(point) for point in points}) == len(METHODS["triplet"])
        for set_name in SETS:
            for schedule in (TRIAL_SCHEDULE, WHOLE_SCHEDULE):
                cfg = load_config(config_of(set_name, method), words(schedule[set_name] | points[0]))
                assert points[0]["SOLVER.BASE_LR"] == cfg.SOLVER.BASE_LR


def test_compared_methods_are_run_here_and_by_the_heads() -> None:
    import methods
    from whole_grid import ADDED, COMPARISONS, METHODS

    for base, method, _ in COMPARISONS:
        assert {base.name, method.name} <= METHODS.keys() | ADDED.keys()
        assert {base.head, method.head.removesuffix("@added")} <= methods.METHODS.keys()


def test_runs_are_identified_by_their_full_config() -> None:
    from store import TEST
    from whole import made

    run = made("glyphs", TEST, "triplet", {"SOLVER.BASE_LR": 0.01}, 0)
    others = [
        made("glyphs", TEST, "triplet", {"SOLVER.BASE_LR": 0.02}, 0),
        made("glyphs", TEST, "triplet", {"SOLVER.BASE_LR": 0.01}, 1),
        made("glyphs", TEST, "triplet_tcm", {"SOLVER.BASE_LR": 0.01}, 0),
    ]
    assert len({run.key, *(other.key for other in others)}) == 4
    # Output paths, metrics and other losses do not change the network.
    for more in ({"TEST.REPORT": False}, {"MODEL.LOSSES.MS.BASE": 0.1}):
        assert made("glyphs", TEST, "triplet", {"SOLVER.BASE_LR": 0.01} | more, 0).fingerprint == run.fingerprint


def test_validation_classes_are_not_trained_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import torch
    import whole

    from pml_ext.runner.data.datasets import ImageSet, OpenSet
    from pml_ext.runner.data.datasets.table import table_set

    pictures = [torch.full((1, 4, 4), i, dtype=torch.uint8) for i in range(30)]
    identities = np.arange(30) // 3 + 100
    images = ImageSet(pictures, identities, np.arange(30) % 3, [str(i) for i in range(30)])
    monkeypatch.setattr(whole, "loaded", lambda name: OpenSet(images, images))
    monkeypatch.setattr(whole, "CACHE", tmp_path)
    found = table_set(whole.validation_table("glyphs"), grey=True)
    trained, tested = set(found.train.identities.tolist()), set(found.query.identities.tolist())
    assert (len(trained), len(tested)) == (7, 3)
    assert not trained & tested
    values = sorted(int(picture[0, 0, 0]) for part in (found.train, found.query) for picture in part.images)
    assert values == list(range(30))


def test_the_page_is_written_from_stored_runs(tmp_path: Path) -> None:
    from store import TEST, Run, Store
    from whole_grid import METHODS, WHOLE_SCHEDULE
    from whole_report import write_report

    random = np.random.default_rng(0)
    whole, heads = Store(tmp_path / "whole"), Store(tmp_path / "heads")
    for seed in range(3):
        values = random.random((3, 20))
        for number, method in enumerate(("triplet", "triplet_tcm")):
            run = Run("glyphs", TEST, method, WHOLE_SCHEDULE["glyphs"] | METHODS[method][0], seed, "x")
            moved = values * 0.8**number
            whole.keep_by_class(run, moved)
            r1, map_at_r, opis = moved.mean(axis=1).tolist()
            whole.add(run, {"r1": r1, "map_at_r": map_at_r, "opis": opis, "epsilon_opis": opis})
    write_report(tmp_path, Store(tmp_path / "whole"), heads)
    page = (tmp_path / "WHOLE_NETWORKS.md").read_text()
    assert "| triplet | triplet_tcm | OPIS ↓ |" in page
    row = next(line for line in page.splitlines() if line.startswith("| triplet | triplet_tcm | OPIS"))
    assert "-20.00 % [-20.00, -20.00] | holds | – |" in row
    assert "| smoothap" not in page


def test_normalised_scores_of_whole_networks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    import whole_normalization
    from image_sets import Pictures
    from normalization_tables import whole_networks
    from normalized_runs import NormalizedRuns
    from store import TEST, Run

    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(120) % 30
    crowded = torch.randn(30, 8, generator=generator) + torch.linspace(0, 3, 30)[:, None] * torch.eye(1, 8)
    images = crowded[labels] + 0.5 * torch.randn(120, 8, generator=generator)
    pictures = [Pictures(torch.empty(0), labels, None)]
    monkeypatch.setattr(whole_normalization, "RESULTS", tmp_path)
    monkeypatch.setattr(
        whole_normalization, "trained", lambda run: ([torch.nn.functional.normalize(images + run.seed)], pictures, 1)
    )
    monkeypatch.setattr(whole_normalization, "best_point", lambda *_: {})
    whole_normalization.choose("glyphs", "triplet")
    for seed in (0, 1):
        whole_normalization.run_test(Run("glyphs", TEST, "triplet", {}, seed, "x"))
    kept = NormalizedRuns(tmp_path, "glyphs")
    kept.pack()
    (row,) = (line for line in whole_networks(tmp_path, ["glyphs", "omniglot"]) if line.startswith("| glyphs"))
    metrics = [line["metrics"] for line in kept.lines() if line["seed"] is not None]
    opis = [np.mean([of[kind]["opis"] for of in metrics]) for kind in ("plain", "gallery")]
    assert row.startswith("| glyphs | triplet | 2 | k = ")
    assert f"| {1000 * opis[0]:.2f} | {100 * (opis[1] / opis[0] - 1):+.1f} [" in row
    assert whole_networks(tmp_path, ["omniglot"]) == []


def test_configs_have_the_validated_settings() -> None:
    from store import Store
    from whole import RESULTS, best_point, config_of, trials
    from whole_grid import METHODS, SETS

    # Its learning rate was also compared at the config's own size (SCHEDULES), which takes precedence.
    elsewhere = [("smoothap_tcm", "SOLVER.BASE_LR")]
    store = Store(RESULTS)
    tried = [name for name in SETS if any(result["set"] == name for result in store.found.values())]
    assert "glyphs" in tried
    for set_name in tried:
        for method in METHODS:
            # Otherwise the trials used a different config.
            assert all(store.get(run) for run in trials(set_name, method, store)), (
                f"{set_name}, {method}: run whole.py again"
            )
            found = load_config(config_of(set_name, method), [])
            for key, value in best_point(set_name, method, store).items():
                # Omniglot's configs keep their schedule and learning rate; the trials used another.
                other_schedule = set_name == "omniglot" and key == "SOLVER.BASE_LR"
                if other_schedule or (set_name == "glyphs" and (method, key) in elsewhere):
                    continue
                node = found
                for part in key.split("."):
                    node = node[part]
                assert node == value, f"{config_of(set_name, method)}: {key}"
