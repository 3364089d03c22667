"""How losses, miners and metrics behave on a device, tested without one: see tests/pretend_device.py.

The numbers of waits in `CASES` are a budget: a step that makes the host wait for the device more often is a slower
step, and has to be allowed there. `python -m tests.pretend_report` prints where each of them is.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.pretend_device import needs_it
from tests.pretend_report import CASES

ROOT = Path(__file__).parents[1]
pytestmark = needs_it
ON_DEVICE, ON_HOST = "labels on the device", "labels on the host"


@pytest.fixture(scope="module")
def report():
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.pretend_report"]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_equal_the_cpu(report, name):
    for way, found in report["losses"][name].items():
        assert found["size"] > 0, way
        assert found["value"] <= 1e-6, way
        assert found["gradient"] <= 1e-5 * found["size"], way


@pytest.mark.parametrize("name", CASES)
def test_the_host_waits_no_more_than_allowed(report, name):
    for way, allowed in zip((ON_DEVICE, ON_HOST), CASES[name].waits, strict=True):
        found = report["losses"][name][way]["waits"]
        assert len(found) <= allowed, f"{way}: {len(found)} waits, {allowed} allowed: {'; '.join(found)}"
    if "large" in report["losses"][name]:
        assert len(report["losses"][name]["large"]["waits"]) <= CASES[name].waits[1]


@pytest.mark.parametrize(
    ("name", "most"), [("CITLoss", 60), ("CITLoss(gamma=0.5)", 160), ("TCMLoss", 50), ("PairWeightingLoss", 70)]
)
def test_as_many_operators_for_any_batch_and_at_most_four_matrices(report, name, most):
    """examples/tests/test_benchmarks.py counts those of the other losses, by night."""
    (operators, _), (of_large, matrices) = report["usage"][name]
    assert operators == of_large <= most
    assert matrices <= 4.2  # four (B, B) tensors, and tables of B rows


def test_a_training_step_of_the_runner(report):
    found = report["training step"]
    assert found["size"] > 0
    assert found["value"] <= 1e-6
    assert found["gradient"] <= 1e-5 * found["size"]
    # One each in SmoothAP and TCM, and one check that the loss is finite.
    assert len(found["waits"]) <= 3, found["waits"]


def test_the_device_detects_what_a_gpu_would(report):
    """Mixed devices raise, and synchronisations are counted; otherwise the budgets above would be meaningless."""
    expected = ["boolean index", "copy to the CPU", *2 * ["copy to the device"], "item", "item", "nonzero", "tolist"]
    assert report["detected"]["waits"] == [*expected, "unique"]
    assert "mixes tensors" in report["detected"]["error"]
