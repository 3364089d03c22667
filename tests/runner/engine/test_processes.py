"""When one process of a run ends or stands still all of them end, with one message."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pml_ext.cli import main

DIGITS = Path(__file__).parents[3] / "fastreid_configs" / "Digits" / "sap_tcm.yml"
PARENT = """
import subprocess, sys, time
from pml_ext.runner.engine.processes import Watch
children = [subprocess.Popen([sys.executable, "-c", sys.argv[1]]) for _ in range(2)]
Watch(lambda: children, standstill=1.0).start()
print(*(child.pid for child in children), flush=True)
time.sleep(100)
"""
CHILD = """
import os, sys, time
from pml_ext.runner.engine.processes import Watch
Watch(parent=os.getppid(), standstill=1.0).start()
print("ready", flush=True)
time.sleep(100)
"""
IDLE = "import time; time.sleep(100)"


def is_over(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@contextmanager
def watching(child: str) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A process that watches over two others."""
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, child], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        try:
            yield parent, pids
        finally:
            for pid in (*pids, parent.pid):
                if not is_over(pid):
                    os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (signal.SIGKILL, r"rank 2 \(\d+\) was ended by signal 9, so the run ends"),
        (signal.SIGSTOP, r"rank 2 \(\d+\) has been stopped for 1 seconds, so the run ends"),
    ],
)
def test_one_that_is_killed_or_stopped_ends_all(number: signal.Signals, message: str) -> None:
    with watching(IDLE) as (parent, pids):
        os.kill(pids[1], number)
        _, said = parent.communicate(timeout=30)
        assert parent.returncode == 2
        assert len(re.findall(message, said)) == 1
        assert said.count("\n") == 1
        assert all(map(is_over, pids))


def test_one_that_has_told_its_reason_ends_all_without_another_message() -> None:
    with watching("raise SystemExit(2)") as (parent, _):
        assert parent.communicate(timeout=30) == ("", "")
        assert parent.returncode == 2


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_none_outlives_the_first(number: signal.Signals) -> None:
    with watching(CHILD) as (parent, pids):
        assert parent.stdout is not None
        assert [parent.stdout.readline() for _ in pids] == ["ready\n"] * 2
        os.kill(parent.pid, number)
        deadline = time.monotonic() + 30
        while not all(map(is_over, (*pids, parent.pid))):
            assert time.monotonic() < deadline
            time.sleep(0.1)


def test_a_port_in_use_is_said_before_any_process_starts(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("", 0)) as other:
        url = f"tcp://127.0.0.1:{other.getsockname()[1]}"
        opts = ["--num-gpus", "2", "--dist-url", url, "MODEL.DEVICE", "cpu", "OUTPUT_DIR", str(tmp_path)]
        opts += ["DATALOADER.NUM_INSTANCE", "20"]
        assert main(["train", "--config-file", str(DIGITS), *opts]) == 2
    shown = capfd.readouterr().err
    assert re.search(r"^error: --dist-url: port \d+ is in use by another program; choose another", shown, re.MULTILINE)
    assert "Traceback" not in shown


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_rank_ends_the_run(rank: int, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pml_ext.cli", "train", "--config-file", str(DIGITS), "--num-gpus", "2"]
    opts = f"MODEL.DEVICE cpu OUTPUT_DIR {tmp_path} SOLVER.MAX_EPOCH 500 TEST.EVAL_PERIOD 500".split()
    opts += ["SOLVER.CHECKPOINT_PERIOD", "1", "DATALOADER.NUM_INSTANCE", "20"]
    with subprocess.Popen([*command, *opts], stderr=subprocess.PIPE, text=True) as first:
        try:
            while not (tmp_path / "checkpoints" / "last.ckpt").exists():
                assert first.poll() is None
                time.sleep(0.05)
            (second,) = map(int, Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text().split())
            os.kill(second if rank else first.pid, signal.SIGKILL)
            _, said = first.communicate(timeout=60)
        finally:
            first.kill()
    deadline = time.monotonic() + 30
    while not is_over(second):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert "Traceback" not in said
    if rank:
        assert first.returncode == 2
        assert len(re.findall(r"error: the process of rank 1 \(\d+\) was ended by signal 9", said)) == 1
