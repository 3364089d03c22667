"""How numbers are written for people."""

import json
import math
import re
from pathlib import Path

import pytest

from pml_ext.runner.evaluation.results import as_text, read_results, results_table, write_metrics


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("precision_at_1", 0.67034, "67.03 %"),
        ("opis", 0.0018124, "1.812e-03"),
        ("opis", float("nan"), "nan"),
        ("spectral_variance", 0.44371, "0.4437"),
    ],
)
def test_four_significant_digits(name: str, value: float, text: str) -> None:
    assert as_text(name, value) == text


def test_a_table_for_each_kind_of_set_with_the_main_metrics_first_and_baselines_above() -> None:
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


def test_metrics_come_back_from_a_file_that_is_json(tmp_path: Path) -> None:
    results = {"A": {"opis": math.nan, "mAP": 0.25}, "B": {"auc": 1.0, "eer_threshold": -math.inf}}
    write_metrics(tmp_path / "m.json", results, weights="w.ckpt", baselines={"raw": {"A": {"opis": math.nan}}})

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    content = json.loads((tmp_path / "m.json").read_text(), parse_constant=refuse)
    assert content["results"]["A"] == {"opis": None, "mAP": 0.25} and content["weights"] == "w.ckpt"
    assert content["baselines"]["raw"]["A"]["opis"] is None
    found = read_results(tmp_path / "m.json")
    assert math.isnan(found["A"].pop("opis")) and found == {
        "A": {"mAP": 0.25},
        "B": {"auc": 1.0, "eer_threshold": -math.inf},
    }
