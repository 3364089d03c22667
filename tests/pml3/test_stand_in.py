"""The package with a stand-in for version 3 of PML: the values of version 2, and what it refuses.

PML_EXT_PML3 may name a folder with the real one, to begin with it.
"""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pml_ext import _pml
from tests.pml3.values import found

FOLDER = os.environ.get("PML_EXT_PML3", str(Path(__file__).parent))

pytestmark = pytest.mark.skipif(_pml.IS_3, reason="compares with version 2")


def run(*command, **environment):
    environment = {**os.environ, "PYTHONPATH": FOLDER, "PML_EXT_TRY_PML3": "1", **environment}
    return subprocess.run([sys.executable, *command], env=environment, capture_output=True, check=False)


def test_the_values_of_version_2():
    done = run("-m", "tests.pml3.values")
    assert done.returncode == 0, done.stderr.decode()
    theirs = pickle.loads(done.stdout)
    for name, calls in found().items():
        for title, ours in calls.items():
            if isinstance(ours, str):  # for another reason, that of our own loss
                assert name == "DiscriminativeLoss" and isinstance(theirs[name][title], str)
                continue
            for part, other in zip(ours, theirs[name][title], strict=True):
                np.testing.assert_allclose(part, other, rtol=1e-5, atol=1e-6, err_msg=f"{name}, {title}")


def test_without_the_switch_the_import_says_which_versions_work():
    done = run("-c", "import pml_ext.functional, pml_ext.losses", PML_EXT_TRY_PML3="")
    said = done.stderr.decode().splitlines()[-1]
    assert "pml_ext works with pytorch-metric-learning 2.8 and 2.9, and version 3 is installed: pip install" in said


def test_what_is_not_known_is_refused():
    """And the facts of PML's losses are those of version 3; a name of both is ours here, and stays PML's there."""
    code = """
import math, warnings, torch
from pytorch_metric_learning import distances, losses as pml, miners as pml_miners, reducers
import pml_ext
from pml_ext import losses, miners
from pml_ext.distributed import is_divisible
from pml_ext.losses._shares import _BY_NAME

class Own(distances.CosineSimilarity): pass

for refused in (
    lambda: losses.CITLoss(distance=Own()),
    lambda: losses.CITLoss(reducer=reducers.DivisorReducer()),
    lambda: miners.LoOpMiner(pml_miners.TripletMarginMiner()),
):
    try:
        refused()
    except TypeError as error:
        print(error)
assert not is_divisible(losses.TCMLoss()) and not _BY_NAME["SupConLoss"].term_of_each_anchor
made = _BY_NAME["ArcFaceLoss"].arguments({"margin": 28.6, "scale": 64.0}, None)
assert made == {"margin": math.radians(28.6), "scale": 64.0}
with warnings.catch_warnings(record=True) as said:
    added = pml_ext.register()
print(said[0].message)
assert "CITLoss" in added and "CentroidTripletLoss" not in added
assert losses.CentroidTripletLoss is not pml.CentroidTripletLoss
"""
    done = run("-c", code)
    assert done.returncode == 0, done.stderr.decode()
    starts = (
        "distance of CITLoss must be one of CosineSimilarity, ",
        "reducer of CITLoss must be one of MeanReducer, AvgNonZeroReducer, SumReducer with version 3",
        "how TripletMarginMiner of version 3 reads its distance is not known",
        "pytorch_metric_learning.losses.CentroidTripletLoss stays PML's own; ours is <class 'pml_ext.losses.",
    )
    said = done.stdout.decode().splitlines()
    assert [line.startswith(start) for line, start in zip(said, starts, strict=True)] == [True] * 4, said
