"""Two processes on the CPU give what one process gives on the joint batch."""

import json
import os
import subprocess
import sys
from functools import cache

import pytest
import torch

from pml_ext.cli import main
from tests.tiers import by_night

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


# Losses, and SOLVER.CHUNK of the run of two processes
RUNS = {
    "four_losses": ('("CITLoss","TCMLoss","DiscriminativeLoss","CrossEntropyLoss")', "0"),
    "by_chunks": ('("SmoothAPLoss","LoOp","TripletLoss","SoftTripleLoss","ArcFaceLoss")', "70"),
}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Name -> the folder of the run of one process."""

    @cache
    def run(name):
        folder = tmp_path_factory.mktemp(name)
        assert main(arguments(folder, RUNS[name][0])) == 0
        return folder

    return run


def commands(folder, is_nightly):
    """Of the runs that `of_ranks` has made."""
    made = {name: [*arguments(folder / name, losses), "SOLVER.CHUNK", chunk] for name, (losses, chunk) in RUNS.items()}
    return [(2, made[name]) for name in (RUNS if is_nightly else ["by_chunks"])]


def require_equal_runs(of_one, of_two):
    one, two = weights(of_one), weights(of_two)
    assert one.keys() == two.keys()
    for key, value in one.items():
        torch.testing.assert_close(two[key], value, rtol=1e-4, atol=1e-5, msg=lambda m, n=key: f"{n}: {m}")
    results = [json.loads((run / "metrics.json").read_text())["results"]["Digits"] for run in (of_one, of_two)]
    assert results[1]["reid_mean_average_precision"] == pytest.approx(
        results[0]["reid_mean_average_precision"], abs=1e-3
    ), "every test image is measured once"


@pytest.mark.parametrize("name", ["by_chunks", *by_night("four_losses")])
def test_two_processes_train_as_one_on_the_joint_batch(alone, of_ranks, name):
    require_equal_runs(alone(name), of_ranks / name)


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
    require_equal_runs(alone(name), tmp_path / "two")
