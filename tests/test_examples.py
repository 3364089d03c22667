"""Every example runs as a user would run it, and prints what it should."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))
SMOOTH_AP = next(path for path in EXAMPLES if path.stem == "smooth_ap_of_any_batch")
TRAINING = [path for path in EXAMPLES if path != SMOOTH_AP]
NEEDS = {"swap_in_hydra_target": ("hydra",), "swap_in_lightning": ("lightning",)}


def printed_by(path: Path) -> str:
    assert len(path.read_text().splitlines()) < 60
    environment = os.environ | {"PYTHONPATH": str(path.parents[1]), "OMP_NUM_THREADS": "1"}
    result = subprocess.run([sys.executable, str(path)], env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize("path", TRAINING, ids=lambda path: path.stem)
def test_training_helps(path: Path) -> None:
    pytest.importorskip("sklearn")
    if missing := [name for name in NEEDS.get(path.stem, ()) if importlib.util.find_spec(name) is None]:
        pytest.skip(f"needs {', '.join(missing)}")
    shown = printed_by(path)
    before, *after = (float(number) for number in re.findall(r"\d\.\d{3}", shown))
    assert before < 0.5
    assert after and all(value > 0.6 for value in after), shown


def test_smooth_ap_is_the_exact_one_in_any_batch() -> None:
    rows = re.findall(r"(\d+) × (\d+) +(\S+) +(\S+) +(\S+)$", printed_by(SMOOTH_AP), re.M)
    assert len(rows) == 4
    for classes, samples, exact, ours, theirs in rows:
        assert float(ours) == pytest.approx(float(exact), abs=1e-3)
        assert (abs(float(theirs) - float(exact)) < 1e-3) == (classes == samples)
