"""The benchmarks run; their results are not tested."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import pytorch_metric_learning.losses

pytestmark = pytest.mark.skipif(not hasattr(pytorch_metric_learning.losses, "SmoothAPLoss"), reason="beside PML 2.9")
SCRIPT = Path(__file__).parents[1] / "examples" / "benchmarks" / "losses.py"


def output_of(script: str, *words: str) -> str:
    command = [sys.executable, str(SCRIPT.with_name(script)), *words]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_tables_and_results(tmp_path: Path) -> None:
    words = ["--quick", "--sizes", "16", "32", "--dim", "8", "--cases", "TCM", "--limit-gb", "1e-4"]
    shown = output_of("losses.py", *words, "--out", str(tmp_path))
    assert "| 32 × 8 × 4 | PML ThresholdConsistentMarginLoss | – | – | skipped: about 0 GB |" in shown
    results = json.loads((tmp_path / "results.json").read_text())
    assert {(row["size"][0], row["method"]) for row in results["rows"]} >= {(16, "TCMLoss"), (32, "TCMLoss")}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "words", "shown"),
    [
        ("large_batch.py", "--sizes 16 --chunks 8 --side 16 --budget 0.1", "| 16 | undivided | "),
        ("metrics.py", "--quick --cases OPIS", "opis(exact=True)"),
        ("ranks.py", "--size 32 --dim 8 --rounds 1 --losses CITLoss", "| CITLoss | "),
        ("search.py", "--rows 2000 --dim 8", "recall of 10 1,"),
        ("startup.py", "--rows 60000 --identities 6000 --lines 2000", " met |"),
        ("pipeline.py", "--images 2 --seconds 0.01 --rounds 1", "| "),
    ],
)
def test_the_script_runs(script: str, words: str, shown: str, tmp_path: Path) -> None:
    if script == "startup.py" and not Path("/proc/self/smaps_rollup").exists():
        pytest.skip("memory is measured on Linux")
    folder = {"metrics.py": ["--out", str(tmp_path)], "search.py": ["--folder", str(tmp_path)]}
    assert shown in output_of(script, *words.split(), *folder.get(script, []))


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
