"""The benchmarks run; their results are not tested."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "examples" / "benchmarks" / "losses.py"


def test_tables_and_files(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    command = [sys.executable, str(SCRIPT), "--quick", "--sizes", "16", "32", "--dim", "8", "--cases", "TCM"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [*command, "--limit-gb", "1e-4", "--simulate-ranks", "8", "--out", str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "| 32 | PML ThresholdConsistentMarginLoss | – | – | skipped" in result.stdout
    assert "| TCMLoss / PML's at 64, time | 1 | – | not measured in this run |" in result.stdout
    assert "| TCM: TCMLoss | 32 samples |" in result.stdout
    results = json.loads((tmp_path / "results.json").read_text())
    rows = results["rows"]
    assert {goal["met"] for goal in results["goals"]} == {None}
    assert {(row["size"], row["method"]) for row in rows} >= {(16, "TCMLoss"), (32, "TCMLoss"), (32, "plain")}
    assert all(row["seconds"] > 0 for row in rows)
    assert (tmp_path / "growth.png").stat().st_size > 0


def test_chosen_methods_of_large_classes(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    words = ["--quick", "--sizes", "32", "--per-class", "16", "--dim", "8", "--cases", "CIT", "--out", str(tmp_path)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(SCRIPT), *words, "--methods"]
    result = subprocess.run(
        [*command, "CITLoss(gamma=0.5)"], env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    rows = json.loads((tmp_path / "results.json").read_text())["rows"]
    assert [row["method"] for row in rows] == ["two matrix products", "CITLoss(gamma=0.5)"]


def test_table_of_large_batches() -> None:
    pytest.importorskip("torchvision")
    command = [
        sys.executable,
        str(SCRIPT.with_name("large_batch.py")),
        "--sizes",
        "16",
        "--chunks",
        "8",
        "--side",
        "16",
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    result = subprocess.run([*command, "--budget", "0.1"], env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    rows = [line.split(" | ") for line in result.stdout.splitlines() if line.startswith("| 16 ")]
    assert [row[1] for row in rows] == ["undivided", "8"] and float(rows[0][3]) == 1
    assert "at 16: " in result.stdout


def test_tables_of_metrics(tmp_path: Path) -> None:
    command = [
        sys.executable,
        str(SCRIPT.with_name("metrics.py")),
        "--quick",
        "--cases",
        "OPIS",
        "--out",
        str(tmp_path),
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    rows = json.loads((tmp_path / "metrics.json").read_text())["rows"]
    assert [row["method"] for row in rows] == ["half matmul", "opis", "opis(exact=True)", "naive definition"]
    assert all(row["seconds"] > 0 and row["size"] == [1000] for row in rows)


def test_search_reports_the_recall_it_has(tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    pytest.importorskip("pyarrow")
    words = ["--rows", "2000", "--dim", "8", "--kind", "clustered", "--folder", str(tmp_path)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(SCRIPT.with_name("search.py")), *words]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["2,000", "write", "build", "query", "on", "all"]
    assert "recall of 10 1," in result.stdout


def test_startup_prints_its_goals() -> None:
    if not Path("/proc/self/smaps_rollup").exists():
        pytest.skip("memory is measured on Linux")
    command = [sys.executable, str(SCRIPT.with_name("startup.py")), "--rows", "60000", "--identities", "6000"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, "--lines", "2000"], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if line.startswith("| ")]
    assert len(rows) == 7 and all(row.split(" | ")[-1] in ("met |", "missed |") for row in rows[1:])


def test_table_of_optimizers(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.syspath_prepend(SCRIPT.parent)
    optimizer_steps = importlib.import_module("optimizer_steps")
    monkeypatch.setattr(optimizer_steps, "GOALS", {("test_resnet", "Adam"): 0})
    monkeypatch.setattr(sys, "argv", ["optimizer_steps.py", "--network", "test_resnet"])
    optimizer_steps.main()
    rows = capsys.readouterr().out.splitlines()[2:]
    assert [row.split(" | ")[0] for row in rows] == ["| Adam", "| AdamW", "| SGD"]
    assert "misses the goal of 0" in rows[0] and "misses" not in rows[1]


def test_table_of_classifiers(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.syspath_prepend(SCRIPT.parent)
    classifier = importlib.import_module("classifier")
    monkeypatch.setattr(classifier, "memory", lambda options, form, ranks: 10**6)
    words = ["--classes", "300", "--dim", "8", "--batch", "4", "--budget", "0.01"]
    monkeypatch.setattr(sys, "argv", ["classifier.py", *words])
    classifier.main()
    out = capsys.readouterr().out
    assert [line.split(" | ")[0] for line in out.splitlines() if " MB | " in line] == [
        "| dense", "| PartialFC", "| PartialFC, rate 0.1", "| PartialFC", "| PartialFC, rate 0.1"
    ]  # fmt: skip
    assert "missed: memory of PartialFC on 1 ranks: " in out


def test_table_of_the_input_pipeline() -> None:
    pytest.importorskip("torchvision")
    words = ["--pictures", "2", "--seconds", "0.01", "--rounds", "1"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(SCRIPT.with_name("pipeline.py")), *words]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    rows = [line.split(" | ") for line in result.stdout.splitlines() if line.startswith("| ")]
    assert [len(row) for row in rows] == [6] * 7 + [4] * 12
    assert {row[3].strip(" |") for row in rows[8:]} <= {"met", "missed"}
