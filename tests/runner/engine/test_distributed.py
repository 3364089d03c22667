"""Two processes on the CPU give what one process gives on the joint batch."""

import json
import os
import subprocess
import sys

import pytest
import torch

from pml_ext.cli import main
from tests.runner.engine.forked_ranks import run_on_ranks

CONFIG = "Digits/sap_tcm.yml"
MODULE = ("-m", "pml_ext")
# torchrun itself waits for the machine's name, which need not resolve in a container.
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--local-addr", "localhost", "--nproc-per-node", "2")
TORCHRUN += ("--log-dir", "logs", *MODULE)


def arguments(output, losses, *flags):
    # One step of plain SGD is the gradient. Batch norm would see each rank's own part of the batch.
    opts = f"""MODEL.DEVICE cpu MODEL.BACKBONE.NORM GN MODEL.HEADS.NORM GN MODEL.LOSSES.DISC.CENTROIDS simplex
        MODEL.LOSSES.DISC.CENTROID_SIZE 8 MODEL.LOSSES.LOOP.LOSS MultiSimilarityLoss SOLVER.OPT SGD
        SOLVER.BASE_LR 0.05 SOLVER.MAX_EPOCH 1 SOLVER.WARMUP_ITERS 0 SOLVER.IMS_PER_BATCH 500
        DATALOADER.NUM_INSTANCE 125 TEST.EVAL_PERIOD 1 TEST.REPORT False LOGGERS ('csv',)
        OUTPUT_DIR {output}""".split()
    return ["train", CONFIG, *flags, *opts, "MODEL.LOSSES.NAME", losses]


def weights(output):
    return torch.load(output / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]


RUNS = {
    "four_losses": (
        '("CITLoss","TCMLoss","DiscriminativeLoss","CrossEntropyLoss")',
        "0",
    ),
    "by_chunks": (
        '("SmoothAPLoss","LoOp","TripletLoss","SoftTripleLoss","ArcFaceLoss")',
        "70",
    ),
}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Name -> the folder of the run of one process."""
    folders = {name: tmp_path_factory.mktemp(name) for name in RUNS}
    for name, (losses, _) in RUNS.items():
        assert main(arguments(folders[name], losses)) == 0
    return folders


def require_equal_runs(of_one, of_two):
    one, two = weights(of_one), weights(of_two)
    assert one.keys() == two.keys()
    for key, value in one.items():
        torch.testing.assert_close(two[key], value, rtol=1e-4, atol=1e-5, msg=lambda m, n=key: f"{n}: {m}")
    results = [json.loads((run / "metrics.json").read_text())["results"]["Digits"] for run in (of_one, of_two)]
    assert results[1]["reid_mean_average_precision"] == pytest.approx(
        results[0]["reid_mean_average_precision"], abs=1e-3
    ), "every test image is measured once"


def test_two_processes_train_as_one_on_the_joint_batch(alone, tmp_path):
    commands = []
    for name, (losses, chunk) in RUNS.items():
        commands.append((2, [*arguments(tmp_path / name, losses), "SOLVER.CHUNK", chunk]))
    run_on_ranks(*commands)
    for name, of_one in alone.items():
        require_equal_runs(of_one, tmp_path / name)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("launcher", "flags", "name"), [(MODULE, ("--num-gpus", "2"), "four_losses"), (TORCHRUN, (), "by_chunks")]
)
def test_launchers_start_two_processes(alone, tmp_path, launcher, flags, name):
    losses, chunk = RUNS[name]
    words = [str(tmp_path / word) if word == "logs" else word for word in launcher]
    command = [sys.executable, *words, *arguments(tmp_path / "two", losses, *flags), "SOLVER.CHUNK", chunk]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PET_LOG_DIR": str(tmp_path / "torchrun")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    require_equal_runs(alone[name], tmp_path / "two")
