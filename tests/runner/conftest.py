"""What the tests of runs have in common."""

import resource
from pathlib import Path

import pytest

from pml_ext.cli import main
from pml_ext.runner.config import defaults


@pytest.fixture(scope="package", autouse=True)
def _no_report_unless_asked_for():
    """TEST.REPORT is off: its figures take longer than the short runs of most tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(defaults._TEST, "REPORT", False)
        yield


@pytest.fixture(scope="session")
def trained(made_once):
    """A run of two epochs on digits, with a threshold and without a report, for the tests that read a run."""
    return made_once("digits_run", _train) / "out"


def _train(folder: Path) -> None:
    options = """SOLVER.MAX_EPOCH 2 TEST.EVAL_PERIOD 2 SOLVER.CHECKPOINT_PERIOD 1 MODEL.DEVICE cpu TEST.REPORT False
        TEST.BASELINES True TEST.THRESHOLD.ENABLED True TEST.THRESHOLD.FAR 0.01"""
    assert main(["train", "Digits/sap_tcm.yml", "OUTPUT_DIR", str(folder / "out"), *options.split()]) == 0


@pytest.fixture
def full_disk():
    """No file may grow above 4 KiB meanwhile."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
