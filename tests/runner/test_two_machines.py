"""Two launchers of torchrun train as two machines: one is killed, and both resume from the last checkpoint."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

DIGITS = "Digits/sap_tcm.yml"
pytestmark = pytest.mark.nightly


def launch(output, *options):
    """Starts a training of five epochs on both machines; returns their launchers."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    short = "MODEL.DEVICE cpu SOLVER.MAX_EPOCH 5 TEST.EVAL_PERIOD 5 SOLVER.CHECKPOINT_PERIOD 1 SOLVER.IMS_PER_BATCH 64"
    short += f" TEST.REPORT False OUTPUT_DIR {output}"
    train = ["-m", "pml_ext", "train", DIGITS, *options, *short.split()]
    meet = f"--nnodes 2 --nproc-per-node 1 --rdzv-backend c10d --rdzv-id {port} --rdzv-endpoint localhost:{port}"
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return [
        subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", *meet.split(), "--local-addr", "localhost", *train],
            env=environment, stderr=subprocess.PIPE, text=True,
        )
        for _ in range(2)
    ]  # fmt: skip


def descendants(pid):
    """Returns the processes that a process has started, and those that these have started."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()
    return [each for child in map(int, children) for each in (child, *descendants(child))]


def wait(machines):
    """Returns exit statuses and what was written to stderr."""
    shown = [machine.communicate(timeout=600)[1] for machine in machines]
    return [machine.returncode for machine in machines], shown


def weights(output):
    return torch.load(output / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]


def test_a_killed_machine_costs_the_epochs_after_the_last_checkpoint(tmp_path):
    unbroken, killed = tmp_path / "unbroken", tmp_path / "killed"
    statuses, shown = wait(launch(unbroken))
    assert statuses == [0, 0], shown

    machines = launch(killed)
    while not (killed / "checkpoints" / "last.ckpt").exists():
        assert machines[0].poll() is None
        time.sleep(0.02)
    for process in (*descendants(machines[1].pid), machines[1].pid):
        os.kill(process, signal.SIGKILL)
    statuses, shown = wait(machines)
    assert 0 not in statuses
    assert not (killed / "metrics.json").exists()

    statuses, shown = wait(launch(killed, "--resume"))
    assert statuses == [0, 0], shown
    assert any("resuming from" in text for text in shown)
    expected, resumed = weights(unbroken), weights(killed)
    assert expected.keys() == resumed.keys()
    assert all(torch.equal(expected[name], resumed[name]) for name in expected)
