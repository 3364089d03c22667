"""The runs of whole networks: grid and page, checked for structure, never for a desired result."""

from pathlib import Path

import numpy as np
import pytest

from pml_ext.runner.config.load import load_config

FOLDER = Path(__file__).parents[1] / "examples" / "evidence"


@pytest.fixture(autouse=True)
def modules(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))


def test_methods_have_equal_trials_and_configs_accept_them():
    from whole import config_of, words
    from whole_grid import METHODS, SETS, TRIAL_SCHEDULE, WHOLE_SCHEDULE

    for method, points in METHODS.items():
        assert len({repr(point) for point in points}) == len(METHODS["triplet"])
        for set_name in SETS:
            for schedule in (TRIAL_SCHEDULE, WHOLE_SCHEDULE):
                cfg = load_config(config_of(set_name, method), words(schedule[set_name] | points[0]))
                assert points[0]["SOLVER.BASE_LR"] == cfg.SOLVER.BASE_LR


def test_compared_methods_are_run():
    from whole_grid import ADDED, COMPARISONS, METHODS

    for base, method, _ in COMPARISONS:
        assert {base, method} <= METHODS.keys() | ADDED.keys()


def test_runs_are_identified_by_their_full_config():
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


def test_validation_classes_are_not_trained_on(monkeypatch, tmp_path):
    import torch
    import whole

    from pml_ext.runner.data.datasets import ImageSet, OpenSet
    from pml_ext.runner.data.datasets.table import table_set

    pixels = [torch.full((1, 4, 4), i, dtype=torch.uint8) for i in range(30)]
    identities = np.arange(30) // 3 + 100
    images = ImageSet(pixels, identities, np.arange(30) % 3, [str(i) for i in range(30)])
    monkeypatch.setattr(whole, "loaded", lambda name: OpenSet(images, images))
    monkeypatch.setattr(whole, "CACHE", tmp_path)
    found = table_set(whole.validation_table("glyphs"), grey=True)
    trained, tested = set(found.train.identities.tolist()), set(found.query.identities.tolist())
    assert (len(trained), len(tested)) == (7, 3)
    assert not trained & tested
    values = sorted(int(image[0, 0, 0]) for part in (found.train, found.query) for image in part.images)
    assert values == list(range(30))


def _store_tests(folder, set_name, methods):
    """(S, 3, C) of each method."""
    from store import TEST, Run, Store

    store = Store(folder)
    for method, values in methods.items():
        for seed, of_seed in enumerate(values):
            run = Run(set_name, TEST, method, {"SOLVER.BASE_LR": 0.1}, seed, "x")
            store.keep_by_class(run, of_seed)
            r1, map_at_r, opis = of_seed.mean(axis=1).tolist()
            store.add(run, {"r1": r1, "map_at_r": map_at_r, "opis": opis, "epsilon_opis": opis})


def _page(folder):
    from store import Store
    from whole_report import write_report

    write_report(folder, Store(folder / "whole"))
    return (folder / "WHOLE_NETWORKS.md").read_text()


def test_the_page_is_written_from_stored_runs(tmp_path):
    values = np.random.default_rng(0).random((3, 3, 20))
    _store_tests(tmp_path / "whole", "glyphs", {"triplet": values, "triplet_tcm": 0.8 * values})
    page = _page(tmp_path)
    assert "|glyphs|triplet|triplet_tcm|OPIS|-20.0 % [-20.0, -20.0]|" in page
    assert "|smoothap" not in page
    assert "trained twice" not in page


def test_a_seed_that_was_trained_twice_has_the_mean_of_both_runs(tmp_path):
    values = np.random.default_rng(0).random((3, 3, 20))
    _store_tests(tmp_path / "whole", "glyphs", {"triplet": values, "triplet_tcm": 0.8 * values})
    _store_tests(tmp_path / "whole" / "repeats", "glyphs", {"triplet_tcm": 0.6 * values})
    page = _page(tmp_path)
    assert "|glyphs|triplet|triplet_tcm|OPIS|-30.0 % [-30.0, -30.0]|" in page
    assert "- `triplet_tcm` were trained twice with the same seeds" in page


def test_configs_have_the_validated_settings():
    from store import Store
    from whole import RESULTS, best_point, config_of, trials
    from whole_grid import METHODS, SETS

    # Its learning rate was chosen at the config's own size, which takes precedence.
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
