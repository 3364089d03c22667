"""How numbers are written for people."""

import json
import math
from pathlib import Path

import pytest

from pml_ext.runner.evaluation.results import as_text, read_results, results_table, write_metrics


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("precision_at_1", 0.67034, "67.03 %"),
        ("precision_at_1", 1.0, "100.0 %"),
        ("mean_average_precision_at_r", 0.09706, "9.706 %"),
        ("opis", 0.0018124, "1.812e-03"),
        ("opis", float("nan"), "nan"),
        ("spectral_variance", 0.44371, "0.4437"),
        ("cmc_rank_10", 0.5, "50.00 %"),
    ],
)
def test_four_significant_digits(name: str, value: float, text: str) -> None:
    assert as_text(name, value) == text


def test_a_table_for_each_kind_of_set_with_the_main_metrics_first() -> None:
    rates = {"tar_at_far_1e-1": 0.9, "threshold_at_far_1e-1": 0.5, "tar_at_far_1e-2": 0.8}
    results = {
        "LFW": {**rates, "auc": 0.9, "eer": 0.2, "genuine": 6, "accuracy": 0.7, "accuracy_std": 0.1},
        "Set": {
            "NMI": 0.5,
            "precision_at_1": 0.5,
            "cmc_rank_10": 1.0,
            "opis": 1e-3,
            "spectral_variance": 0.5,
            "own": 2,
        },
        "Other": {
            "NMI": 0.5,
            "precision_at_1": 0.25,
            "cmc_rank_10": 1.0,
            "opis": 0.0,
            "spectral_variance": 1,
            "own": 3,
        },
    }
    lines = results_table(results, {"metrics": Path("metrics.json")}).splitlines()
    of_pairs = ["accuracy", "↑", "±", "std", "AUC", "↑", "EER", "↓", "TAR@1e-1", "↑", "TAR@1e-2", "↑"]
    assert lines[0].split() == of_pairs
    assert lines[4].split() == ["NMI", "↑", "R@1", "↑", "R@10", "↑", "OPIS", "↓", "SV", "↓", "own", "↑"]
    assert [line.split()[0] for line in (lines[2], *lines[6:8])] == ["LFW", "Set", "Other"]


def test_baselines_are_rows_above_the_trained_model() -> None:
    baselines = {"raw pixels": {"Set": {"precision_at_1": 0.25}}, "untrained": {"Set": {"precision_at_1": 0.5}}}
    table = results_table({"Set": {"precision_at_1": 0.75}}, {"metrics": Path("metrics.json")}, baselines)
    assert [line.split() for line in table.splitlines()[2:5]] == [
        ["raw", "pixels", "25.00", "%"], ["untrained", "50.00", "%"], ["trained", "75.00", "%"],
    ]  # fmt: skip


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
    before = (tmp_path / "m.json").read_bytes()
    with pytest.raises(TypeError):
        write_metrics(tmp_path / "m.json", results, weights=object())
    assert (tmp_path / "m.json").read_bytes() == before
