"""Every example runs as a user would run it, and training helps."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))
NEEDS = {"swap_in_hydra_target": ("hydra",), "swap_in_lightning": ("lightning",)}


def test_there_are_examples() -> None:
    assert EXAMPLES


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path: Path) -> None:
    pytest.importorskip("sklearn")
    if missing := [name for name in NEEDS.get(path.stem, ()) if importlib.util.find_spec(name) is None]:
        pytest.skip(f"needs {', '.join(missing)}")
    assert len(path.read_text().splitlines()) < 60
    environment = os.environ | {"PYTHONPATH": str(path.parents[1]), "OMP_NUM_THREADS": "1"}
    result = subprocess.run([sys.executable, str(path)], env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    before, *after = (float(number) for number in re.findall(r"\d\.\d{3}", result.stdout))
    assert before < 0.5
    assert after and all(value > 0.6 for value in after), result.stdout
