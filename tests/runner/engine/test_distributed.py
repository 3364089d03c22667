"""Two processes on the CPU give what one process gives on the joint batch."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from pml_ext.cli import main

CONFIG = Path(__file__).parents[3] / "fastreid_configs" / "Digits" / "sap_tcm.yml"
MODULE = ("-m", "pml_ext")
# torchrun itself waits for the machine's name, which need not resolve in a container.
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--local-addr", "localhost", "--nproc-per-node", "2")
TORCHRUN += ("--log-dir", "logs", *MODULE)


def arguments(output: Path, losses: str, *flags: str) -> list[str]:
    # One step of plain SGD is the gradient. Batch norm would see each rank's own part of the batch.
    opts = f"""MODEL.DEVICE cpu MODEL.BACKBONE.NORM GN MODEL.HEADS.NORM GN MODEL.LOSSES.DISC.CENTROIDS simplex
        MODEL.LOSSES.DISC.CENTROID_SIZE 8 MODEL.LOSSES.LOOP.LOSS MultiSimilarityLoss SOLVER.OPT SGD
        SOLVER.BASE_LR 0.05 SOLVER.MAX_EPOCH 1 SOLVER.WARMUP_ITERS 0 SOLVER.IMS_PER_BATCH 500
        DATALOADER.NUM_INSTANCE 125 TEST.EVAL_PERIOD 1 TEST.REPORT False LOGGERS ('csv',)
        OUTPUT_DIR {output}""".split()
    return ["train", "--config-file", str(CONFIG), *flags, *opts, "MODEL.LOSSES.NAME", losses]


def weights(output: Path) -> dict[str, torch.Tensor]:
    return torch.load(output / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]


@pytest.mark.parametrize(
    ("losses", "launcher", "flags", "chunk", "told"),
    [
        (
            '("CITLoss","TCMLoss","DiscriminativeLoss","CrossEntropyLoss")',
            MODULE,
            ("--num-gpus", "2"),
            "0",
            "TCMLoss, DiscriminativeLoss; whole on each: nothing",
        ),
        (
            '("SmoothAPLoss","LoOp","TripletLoss","SoftTripleLoss","ArcFaceLoss")',
            TORCHRUN,
            (),
            "70",
            "SmoothAPLoss, LoOp, SoftTripleLoss, ArcFaceLoss; whole on each: TripletLoss",
        ),
    ],
)
def test_two_processes_train_as_one_on_the_joint_batch(
    tmp_path: Path, losses: str, launcher: tuple[str, ...], flags: tuple[str, ...], chunk: str, told: str
) -> None:
    assert main(arguments(tmp_path / "one", losses)) == 0
    launcher = tuple(str(tmp_path / word) if word == "logs" else word for word in launcher)
    done = subprocess.run(
        [sys.executable, *launcher, *arguments(tmp_path / "two", losses, *flags), "SOLVER.CHUNK", chunk],
        capture_output=True, text=True, timeout=300,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PET_LOG_DIR": str(tmp_path / "torchrun")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert told in (tmp_path / "two" / "train.log").read_text()
    one, two = weights(tmp_path / "one"), weights(tmp_path / "two")
    assert one.keys() == two.keys()
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")
    results = [json.loads((tmp_path / n / "metrics.json").read_text())["results"]["Digits"] for n in ("one", "two")]
    assert results[1]["reid_mean_average_precision"] == pytest.approx(
        results[0]["reid_mean_average_precision"], abs=1e-3
    ), "every test image is measured once"
