"""The runs of whole networks: grid and page, checked for structure, never for a desired result."""

from pathlib import Path

import numpy as np
import pytest

from pml_ext.runner.config.load import load_config

FOLDER = Path(__file__).parents[2] / "examples" / "evidence"


@pytest.fixture(autouse=True)
def modules(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))


def test_methods_have_equal_trials_and_configs_accept_them():
    from whole import config_of, words
    from whole_grid import IDENTITY, METHODS, NO_NECK, SETS, TRIAL_SCHEDULE, WHOLE_SCHEDULE

    for method, points in (METHODS | IDENTITY | NO_NECK).items():
        assert len({repr(point) for point in points}) == (6 if method in METHODS else 4)
        for set_name in SETS:
            for schedule in (TRIAL_SCHEDULE, WHOLE_SCHEDULE):
                cfg = load_config(config_of(set_name, method), words(schedule[set_name] | points[0]))
                assert points[0]["SOLVER.BASE_LR"] == cfg.SOLVER.BASE_LR
                assert (method in IDENTITY) == cfg.MODEL.HEADS.WITH_BNNECK or method in METHODS


@pytest.mark.parametrize("set_name", ["glyphs", "omniglot"])
def test_both_sides_of_each_comparison_differ_in_the_claimed_part_only(set_name):
    from whole import changed_keys
    from whole_grid import ADDED, ADDED_MARGINS, COMPARISONS, IDENTITY, METHODS, NO_NECK, TERM

    for base, method, part, _ in COMPARISONS:
        points = {name: (METHODS | IDENTITY | NO_NECK).get(name, ADDED_MARGINS) for name in (base, method)}
        tuned = {key for name in points for point in points[name] for key in point} - {"MODEL.LOSSES.NAME"}
        one, other = (changed_keys(set_name, name, points[name][0]) for name in (base, method))
        differing = {key for key in one.keys() | other.keys() if one.get(key) != other.get(key)}
        assert [key for key in differing - tuned if not key.startswith(part.keys)] == [], (base, method)
        if part == TERM:
            assert method not in ADDED or ADDED[method].base == base
            assert other["MODEL.LOSSES.NAME"][:-1] == one.get("MODEL.LOSSES.NAME", ("CrossEntropyLoss",))


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
    """(S, 4, C) of each method."""
    from store import TEST, Run, Store

    store = Store(folder)
    for method, values in methods.items():
        for seed, of_seed in enumerate(values):
            run = Run(set_name, TEST, method, {"SOLVER.BASE_LR": 0.1}, seed, "x")
            store.keep_by_class(run, of_seed)
            store.add(
                run,
                dict(zip(("r1", "map_at_r", "opis", "tar"), of_seed.mean(axis=1).tolist(), strict=True)),
                cpu_seconds=60,
            )


def _page(folder):
    from store import Store
    from whole_report import write_report

    write_report(folder, Store(folder / "whole"))
    return (folder / "WHOLE_NETWORKS.md").read_text()


def test_the_page_is_written_from_stored_runs(tmp_path):
    values = np.random.default_rng(0).random((3, 4, 20))
    methods = {"triplet": values, "triplet_tcm": 0.8 * values, "ce": values, "ce_tcm": values + 0.1}
    methods |= {"ce_no_neck": values, "ce_cit_no_neck": values - 0.1}
    _store_tests(tmp_path / "whole", "glyphs", methods)
    page = _page(tmp_path)
    rows = (tmp_path / "results" / "whole_networks.csv").read_text()
    assert "whole networks,glyphs,triplet_tcm,opis,%,-20,-20,-20,triplet," in rows
    assert f"|glyphs|cross-entropy|{100 * values[:, 0].mean():.1f}|" in page
    assert "||+ TCM|**+10.0 ±0.0**|**+10.0 ±0.0**|" in page
    assert "||+ CIT|**-10.0 ±0.0**|" in page.partition("Without the neck")[2]
    assert "smoothap" not in page


def test_the_page_keeps_the_section_on_fine_tuned_networks(tmp_path):
    from fine_tuned_section import START

    section = f"{START}\n## Fine-tuned\n<!-- end -->\n"
    (tmp_path / "WHOLE_NETWORKS.md").write_text(f"# Old\n\n{section}\n## Old section\n")
    _store_tests(tmp_path / "whole", "glyphs", {"ce": np.random.default_rng(0).random((3, 4, 20))})
    page = _page(tmp_path)
    assert section in page and "Old section" not in page


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


def test_configs_of_the_first_run_are_those_of_its_runs():
    """So that the command prints a row of the table."""
    from store import Store
    from whole import CONFIGS, REID_SET, RESULTS, best_point, changed_keys, keys_of
    from whole_grid import SETS, STOCK, WHOLE_SCHEDULE

    store = Store(RESULTS)
    for method in STOCK:
        chosen = WHOLE_SCHEDULE[REID_SET] | best_point(REID_SET, method, store)
        config = CONFIGS / SETS[REID_SET].folder / f"{method}.yml"
        assert keys_of(config, {}) == changed_keys(REID_SET, method, chosen), config


def test_tcm_of_weight_1_is_contrastive_on_cosines():
    """As WHOLE_NETWORKS.md says."""
    import torch
    from pytorch_metric_learning.distances import CosineSimilarity
    from whole_grid import IDENTITY

    from pml_ext.losses import ContrastiveLoss, TCMLoss

    points, labels = torch.randn(24, 8, dtype=torch.float64).requires_grad_(), torch.arange(24) // 4
    for point in IDENTITY["ce_tcm"]:
        plus, minus = point["MODEL.LOSSES.TCM.MARGIN_PLUS"], point["MODEL.LOSSES.TCM.MARGIN_MINUS"]
        contrastive = ContrastiveLoss(pos_margin=plus, neg_margin=minus, distance=CosineSimilarity())
        found = []
        for loss in (TCMLoss(margin_plus=plus, margin_minus=minus), contrastive):
            value = loss(points, labels)
            found.append(torch.cat([value.view(1), *torch.autograd.grad(value, points)[0]]))
        assert found[0][0] > 0 and torch.allclose(*found)


def test_the_first_run_has_the_seeds_of_all_configs(tmp_path):
    from store import TEST, Run, Store
    from tested import Tested
    from whole_grid import REID_SET, STOCK
    from whole_report import REID, reid_runs

    store = Store(tmp_path)
    for number, method in enumerate(STOCK):
        for seed in range(5 - number):
            metrics = dict.fromkeys(REID, 0.1 * number + 0.01 * seed)
            reid = {"trained": metrics, "untrained": dict.fromkeys(REID, 0.5)}
            store.add(Run(REID_SET, TEST, method, {}, seed, "x"), {"r1": 0.5}, reid=reid)
    found = reid_runs(Tested(store))
    assert list(found) == ["untrained", *STOCK]
    assert found["ce_tcm"]["precision_at_1"] == pytest.approx([0.2, 0.21])
    assert all(len(values) == 2 for by_metric in found.values() for values in by_metric.values())
