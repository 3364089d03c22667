"""How numbers are written for people."""

import json
import math
from pathlib import Path

import pytest

from pml_ext.runner.evaluation.results import as_text, heading, read_results, results_table, write_metrics


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


def test_an_arrow_says_which_way_is_better() -> None:
    assert [heading(name, "X") for name in ("precision_at_1", "opis", "eer", "accuracy_std")] == [
        "X ↑",
        "X ↓",
        "X ↓",
        "X",
    ]


def test_columns_stand_in_the_order_of_the_metrics() -> None:
    values = {"NMI": 0.5, "f1": 0.25, "precision_at_1": 0.75, "cmc_rank_10": 1.0, "spectral_variance": 0.5}
    header = results_table({"Set": values}, {"metrics": Path("m")}).splitlines()[0]
    assert header.split() == ["NMI", "↑", "F1", "↑", "R@1", "↑", "R@10", "↑", "SV", "↓"]


def test_baselines_are_rows_above_the_trained_model() -> None:
    files = {"metrics": Path("metrics.json")}
    baselines = {"raw pixels": {"Set": {"precision_at_1": 0.25}}, "untrained": {"Set": {"precision_at_1": 0.5}}}
    table = results_table({"Set": {"precision_at_1": 0.75}}, files, baselines)
    assert table.splitlines() == [
        "Set           R@1 ↑",
        "-------------------",
        "raw pixels  25.00 %",
        "untrained   50.00 %",
        "trained     75.00 %",
        "",
        "metrics  metrics.json",
    ]


def test_sets_of_one_kind_share_a_table() -> None:
    results = {"A": {"precision_at_1": 0.5}, "B": {"precision_at_1": 0.25}, "Pairs": {"accuracy": 0.9}}
    lines = results_table(results, {"metrics": Path("m")}).splitlines()
    assert [line.split()[0] for line in lines if line and line[0] != "-"] == [
        "R@1",
        "A",
        "B",
        "accuracy",
        "Pairs",
        "metrics",
    ]


def test_metrics_come_back_from_a_file_that_is_json(tmp_path: Path) -> None:
    results = {"A": {"opis": math.nan, "mAP": 0.25}, "B": {"auc": 1.0}}
    write_metrics(tmp_path / "m.json", results, weights="w.ckpt", baselines={"raw": {"A": {"opis": math.nan}}})

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    content = json.loads((tmp_path / "m.json").read_text(), parse_constant=refuse)
    assert content["results"]["A"] == {"opis": None, "mAP": 0.25} and content["weights"] == "w.ckpt"
    assert content["baselines"]["raw"]["A"]["opis"] is None
    found = read_results(tmp_path / "m.json")
    assert math.isnan(found["A"].pop("opis")) and found == {"A": {"mAP": 0.25}, "B": {"auc": 1.0}}
    before = (tmp_path / "m.json").read_bytes()
    with pytest.raises(TypeError):
        write_metrics(tmp_path / "m.json", results, weights=object())
    assert (tmp_path / "m.json").read_bytes() == before


def test_a_threshold_that_accepts_nothing_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "metrics.json"
    write_metrics(path, {"set": {"threshold_at_far_1e-3": math.inf, "eer_threshold": -math.inf}})
    assert '"Infinity"' in path.read_text() and "NaN" not in path.read_text()
    assert read_results(path) == {"set": {"threshold_at_far_1e-3": math.inf, "eer_threshold": -math.inf}}
