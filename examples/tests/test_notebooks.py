"""Every notebook runs from top to bottom and ends with a figure, like its stored copy."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
# All lines run here, with smaller settings; the stored outputs are from full runs.
SHORTER = {
    "choose_a_threshold": ("steps=150", "steps=10"),
    "swap_one_loss": ("steps=150", "steps=10"),
    "from_yaml_to_ranked_results": (
        '"TEST.BASELINES", "False"',
        '"TEST.BASELINES", "False", "TEST.REPORT", "False", "MODEL.BACKBONE.FEAT_DIM", "8"',
    ),
}
_RUN = """
import sys, nbformat, nbclient
notebook = nbformat.read(sys.argv[1], 4)
nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": sys.argv[3]}}).execute()
nbformat.write(notebook, sys.argv[2])
"""


def last_output(notebook):
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return code[-1]["outputs"][-1]


def shortened(notebook, words, instead):
    """The notebook with some words replaced."""
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert any(words in line for cell in code for line in cell["source"]), words
    for cell in code:
        cell["source"] = [line.replace(words, instead) if words else line for line in cell["source"]]
        cell["outputs"] = []
    return notebook


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs_and_ends_with_a_figure(path, tmp_path):
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    stored = json.loads(path.read_text(encoding="utf-8"))
    assert "image/png" in last_output(stored)["data"], f"run {path.name} and store it with its outputs"
    shorter, result = tmp_path / "shorter.ipynb", tmp_path / "run.ipynb"
    shorter.write_text(json.dumps(shortened(stored, *SHORTER.get(path.stem, ("", "")))), encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)}
    environment.pop("MPLBACKEND", None)  # the kernel's backend embeds figures in outputs
    command = [sys.executable, "-c", _RUN, str(shorter), str(result), str(path.parent)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "image/png" in last_output(json.loads(result.read_text(encoding="utf-8")))["data"]
