"""How losses, miners and metrics behave on a device, tested without one: see tests/pretend_device.py.

The numbers of waits are a budget: a step that makes the host wait for the device more often is a slower step, and has
to be allowed here. `python -m tests.pretend_report` prints where each of them is.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.pretend_device import needs_it

ROOT = Path(__file__).parents[1]
pytestmark = needs_it
ON_DEVICE, ON_HOST = "labels on the device", "labels on the host"

# Synchronisations in a forward and backward pass, with labels on the device and on the CPU.
BUDGET = {
    "CITLoss": (1, 0),
    "CITLoss(gamma=0.5)": (1, 0),
    "TCMLoss": (1, 0),
    "TCMLoss(divide_by='all')": (1, 0),
    "LoOp(TripletMarginLoss, mean)": (1, 0),
    "LoOp(TripletMarginLoss)": (3, 2),  # two in PML's reducer
    "LoOp(MultiSimilarityLoss)": (2, 1),  # one in PML's loss
    "LoOp(pairing='all')": (4, 3),  # three of PML's
    "DiscriminativeLoss": (1, 0),
    "DiscriminativeLoss(kmeans)": (1, 0),
    "PairWeightingLoss": (1, 0),
    "PairWeightingLoss(mining=0.1)": (1, 0),
    "RecallAtKSurrogateLoss": (3, 2),
    "HPHNTripletLoss": (2, 1),
    "LiftedHingeLoss": (2, 1),
    "CentroidTripletLoss": (2, 1),
    "SmoothAPLoss": (1, 0),
    "TCMRegularizer(TripletMarginLoss)": (4, 3),  # three in PML's loss
    "CrossBatchMemory(CITLoss)": (17, 18),  # most in PML's memory
    "TripletMarginLoss, ConcordanceMiner": (4, 5),
    "TripletMarginLoss, HPHNMiner": (3, 4),
    "TripletMarginLoss, DisjointTripletMiner": (3, 4),
    "MultiSimilarityLoss, LoOpMiner": (10, 11),  # it mines twice with PML's miner
}


@pytest.fixture(scope="module")
def report():
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.pretend_report"]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_each_case_has_a_budget(report):
    assert report["losses"].keys() == BUDGET.keys()


@pytest.mark.parametrize("name", BUDGET)
def test_values_and_gradients_equal_the_cpu(report, name):
    for way, found in report["losses"][name].items():
        assert found["size"] > 0, way
        assert found["value"] <= 1e-6, way
        assert found["gradient"] <= 1e-5 * found["size"], way


@pytest.mark.parametrize("name", BUDGET)
def test_the_host_waits_no_more_than_allowed(report, name):
    for way, allowed in zip((ON_DEVICE, ON_HOST), BUDGET[name], strict=True):
        found = report["losses"][name][way]["waits"]
        assert len(found) <= allowed, f"{way}: {len(found)} waits, {allowed} allowed: {'; '.join(found)}"
    if "large" in report["losses"][name]:
        assert len(report["losses"][name]["large"]["waits"]) <= BUDGET[name][1]


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
