"""Tables and files of results, baselines beside them, and the metric that a run goes by."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from pml_ext.metrics.headings import (
    ALL_PAIRS,
    STANDARD_METRICS,
    STANDARD_RANKS,
    as_text,
    named_metrics,
)
from pml_ext.runner.config.defaults import get_cfg
from pml_ext.runner.evaluation.results import conclusions, read_metrics, results_table, write_metrics
from pml_ext.runner.evaluation.run_metrics import raw_pixels
from pml_ext.runner.evaluation.selected_metrics import columns_of_first, columns_of_queries


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("precision_at_1", 0.67034, "67.03 %"),
        ("opis", 0.0018124, "1.812e-03"),
        ("opis", float("nan"), "nan"),
        ("spectral_variance", 0.44371, "0.4437"),
    ],
)
def test_four_significant_digits(name, value, text):
    assert as_text(name, value) == text


def test_a_table_for_each_kind_of_set_with_the_main_metrics_first_and_baselines_above():
    rates = {"tar_at_far_1e-1": 0.9, "threshold_at_far_1e-1": 0.5, "tar_at_far_1e-2": 0.8}
    searched = {"NMI": 0.5, "precision_at_1": 0.5, "cmc_rank_10": 1.0, "opis": 1e-3, "spectral_variance": 1, "own": 2}
    results = {
        "LFW": {**rates, "auc": 0.9, "eer": 0.2, "genuine": 6, "accuracy": 0.7, "accuracy_std": 0.1},
        "Set": searched, "Other": {**searched, "precision_at_1": 0.25},
    }  # fmt: skip
    lines = results_table(results, {"metrics": Path("metrics.json")}, {"raw pixels": results}).splitlines()
    of_pairs = ["accuracy", "↑", "±", "std", "AUC", "↑", "EER", "↓", "TAR@1e-1", "↑", "TAR@1e-2", "↑"]
    assert lines[0].split() == of_pairs
    assert lines[5].split() == ["NMI", "↑", "R@1", "↑", "R@10", "↑", "OPIS", "↓", "SV", "↓", "own", "↑"]
    names = ["LFW, raw pixels", "LFW", "Set, raw pixels", "Set", "Other, raw pixels", "Other"]
    assert [re.split("  +", line)[0] for line in (*lines[2:4], *lines[7:11])] == names
    assert lines[10].split()[3:5] == ["25.00", "%"]


def test_a_comparison_with_baselines_is_said_in_words():
    trained = {"A": {"precision_at_1": 0.5, "opis": 0.01}, "B": {"precision_at_1": 0.5, "opis": 0.01}}
    raw = {"A": {"precision_at_1": 0.25, "opis": 0.02}, "B": {"precision_at_1": 0.5, "opis": math.nan}}
    assert conclusions(trained, {"raw pixels": raw}, "opis") == [
        "A: the trained model is better than raw pixels (OPIS 1.000e-02, not 2.000e-02; R@1 50.00 %, not 25.00 %)."
    ]  # B is equal in R@1, and nothing can be said of nan
    assert conclusions(trained, {"measured with other metrics": {"A": {}, "B": {}}}, "opis") == []
    untrained = {"A": {"precision_at_1": 0.75, "opis": 0.01}, "B": {"precision_at_1": 0.4, "opis": 0.001}}
    advice = " Train longer or from pretrained weights, and check the labels and SOLVER.BASE_LR."
    assert conclusions(trained, {"untrained": untrained}, "opis") == [
        f"A: the trained model is worse than untrained (R@1 50.00 %, not 75.00 %).{advice}",
        "B: the trained model is worse than untrained (OPIS 1.000e-02, not 1.000e-03), but better than untrained "
        f"(R@1 50.00 %, not 40.00 %).{advice}",
    ]


def test_metrics_come_back_from_a_file_that_is_json(tmp_path):
    results = {"A": {"opis": math.nan, "mAP": 0.25}, "B": {"auc": 1.0, "eer_threshold": -math.inf}}
    write_metrics(tmp_path / "m.json", results, weights="w.ckpt", baselines={"raw": {"A": {"opis": math.nan}}})

    def refuse(constant):
        raise AssertionError(constant)

    content = json.loads((tmp_path / "m.json").read_text(), parse_constant=refuse)
    assert content["results"]["A"] == {"opis": None, "mAP": 0.25} and content["weights"] == "w.ckpt"
    assert content["baselines"]["raw"]["A"]["opis"] is None
    found, notes = read_metrics(tmp_path / "m.json")
    assert notes == []
    assert math.isnan(found["A"].pop("opis")) and found == {
        "A": {"mAP": 0.25},
        "B": {"auc": 1.0, "eer_threshold": -math.inf},
    }


def test_raw_pixels_are_the_image_as_a_unit_vector_of_at_most_32_by_32():
    images = torch.randn(2, 3, 5, 4)
    for row, image in zip(raw_pixels(images), images, strict=True):
        np.testing.assert_allclose(row, image.numpy().ravel() / np.linalg.norm(image.numpy()), rtol=1e-5)
    assert torch.equal(raw_pixels(torch.zeros(1, 1, 2, 2)), torch.zeros(1, 4)), "a blank image is not nan"
    images = torch.randn(1, 2, 64, 16)
    halves = (images[:, :, 0::2] + images[:, :, 1::2]) / 2
    expected = (halves / halves.norm()).flatten(1)
    torch.testing.assert_close(raw_pixels(images), expected)


@pytest.mark.parametrize(
    ("name", "metric"), [("Market1501", "NMI"), ("LFW", "accuracy"), ("IJBC", "eer"), ("file:people.csv", "NMI")]
)
def test_the_main_metric_is_that_of_the_first_test_set(name, metric):
    cfg = get_cfg()
    cfg.TEST.METRICS, cfg.DATASETS.TESTS = ("NMI", "cmc"), (name, "Digits")
    assert columns_of_first(cfg.DATASETS, cfg.TEST)[0] == metric
    cfg.DATASETS.ALIASES = (f"{name}=file:people.csv",)
    assert columns_of_first(cfg.DATASETS, cfg.TEST)[0] == "NMI"


def test_a_config_that_says_nothing_has_the_standard_columns():
    test = get_cfg().TEST
    assert columns_of_queries(test) == named_metrics(STANDARD_METRICS, STANDARD_RANKS)
    assert columns_of_queries(test)[:3] == ["precision_at_1", "cmc_rank_5", "cmc_rank_10"]
    test.ROC.ENABLED = True
    assert columns_of_queries(test)[-len(ALL_PAIRS) :] == list(ALL_PAIRS)
