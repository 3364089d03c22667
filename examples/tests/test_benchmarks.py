"""The benchmarks run; their results are not tested."""

import csv
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import pytorch_metric_learning.losses

from tests.pretend_device import POSSIBLE

pytestmark = pytest.mark.skipif(not hasattr(pytorch_metric_learning.losses, "SmoothAPLoss"), reason="beside PML 2.9")
SCRIPT = Path(__file__).parents[2] / "examples" / "benchmarks" / "losses.py"


def output_of(script, *words):
    command = [sys.executable, str(SCRIPT.with_name(script)), *words]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_table_replaces_its_older_values(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(SCRIPT.parent)
    from measure import show_table

    results = tmp_path / "results.csv"
    results.write_text("section,row,column,value\nSearch,a,time,2 s\nLosses,16,time,old\nLosses,64,time,1 ms\n")
    show_table("Losses", ("time", "memory"), [("16", ("3 ms", "1 MB"))], results)
    expected = "Search,a,time,2 s\nLosses,16,time,3 ms\nLosses,64,time,1 ms\nLosses,16,memory,1 MB\n"
    assert results.read_text() == f"section,row,column,value\n{expected}"


def test_the_page_shows_every_time_of_the_gpu():
    page = SCRIPT.with_name("RESULTS.md").read_text(encoding="utf-8")
    table = page.partition("## On a GPU\n")[2].partition("\n## ")[0]
    shown = [float(number.replace(",", "")) for number in re.findall(r"([\d.,]+) ms", table)]
    with SCRIPT.with_name("results.csv").open(encoding="utf-8", newline="") as file:
        measured = [row for row in csv.reader(file) if row[0].endswith("NVIDIA H200") and row[2] == "time"]
    assert measured
    for case, method, _, time in measured:
        milliseconds = float(time.removesuffix(" ms"))
        assert any(abs(number - milliseconds) <= 0.01 * milliseconds for number in shown), f"{case}: {method}"


LIMITS = {
    "CITLoss": 60,
    "CITLoss, gamma 0.5": 160,
    "TCMLoss": 50,
    "SmoothAPLoss": 140,
    "PairWeightingLoss": 70,
    "LoOp(ContrastiveLoss)": 200,
    "RecallAtKSurrogateLoss": 120,
}


@pytest.mark.skipif(not POSSIBLE, reason="torch 2.8 has no devices in Python")
def test_the_operators_of_a_device_do_not_grow_with_the_batch():
    table = output_of("operators.py", "--device-blocks", "--losses", *LIMITS)
    rows = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("|")][2:]
    assert [name for name, *_ in rows] == list(LIMITS)
    for name, small, middle, large, _ in rows:
        assert small == middle == large, name
        assert int(large) <= LIMITS[name], name


@pytest.mark.parametrize(
    ("script", "words", "shown"),
    [
        ("losses.py", "--quick --sizes 16 32 --dim 8 --cases TCM --limit-gb 1e-4", "|skipped: about 0 GB|"),
        ("classifier.py", "--classes 300 --dim 8 --batch 4 --budget 0.01 --ranks 2", "|PartialFC, rate 0.1, 2|"),
        ("large_batch.py", "--sizes 16 --chunks 8 --side 16 --budget 0.1", "|16, undivided|"),
        ("metrics.py", "--quick --cases OPIS", "|1,000, opis"),
        ("calls.py", "--losses CITLoss", "| CITLoss | "),
        ("operators.py", "--sizes 16 --dim 8 --losses CITLoss", "|CITLoss|"),
        ("search.py", "--rows 2000 --dim 8", "|2,000 × 8|"),
        ("pipeline.py", "--images 2 --seconds 0.01", "|decode only|"),
    ],
)
def test_the_script_runs(script, words, shown, tmp_path):
    folder = ["--folder", str(tmp_path)] if script == "search.py" else []
    assert shown in output_of(script, *words.split(), *folder)
