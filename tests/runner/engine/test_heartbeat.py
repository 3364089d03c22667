"""A process that stands still under torchrun ends all within a stated time, with one message."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pml_ext.runner.engine.heartbeat import SILENCE

WORKER = """
import os, sys, time
from torch import distributed as dist
from pml_ext.runner.engine.heartbeat import Heartbeat
rank = int(os.environ["RANK"])
heartbeat = Heartbeat(rank, 2, silence=2.0)
heartbeat.start()
dist.init_process_group("gloo")
dist.barrier()
print("ready", flush=True)
if sys.argv[1] == "leave" and rank == 1:
    time.sleep(1)
    heartbeat.stop(done=True)
    time.sleep(100)
if sys.argv[1] == "leave":
    time.sleep(6)
    heartbeat.stop(done=True)
    os._exit(0)
while True:
    dist.barrier()
    time.sleep(0.05)
"""


@contextmanager
def two_processes(how: str) -> Iterator[list[subprocess.Popen[str]]]:
    """As torchrun starts them, with the store in rank 0, once they are one group."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    group = os.environ | {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, how], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=group | {"RANK": str(rank)},
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        time.sleep(0.5)
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate()


@pytest.mark.parametrize(
    ("stopped", "message"),
    [
        (0, r"error: rank 0, or torchrun on its machine, has not answered for 2 seconds, so the run ends"),
        (1, r"error: the process of rank 1 has given no sign of life for 2 seconds, so the run ends"),
    ],
)
def test_a_stopped_process_ends_the_other_with_one_message(stopped: int, message: str) -> None:
    with two_processes("go on") as processes:
        processes[stopped].send_signal(signal.SIGSTOP)
        other = processes[1 - stopped]
        _, said = other.communicate(timeout=60)
        assert other.returncode == 2
        assert len(re.findall(message, said)) == 1 and said.count("error: ") == 1
        processes[stopped].send_signal(signal.SIGCONT)
        _, late = processes[stopped].communicate(timeout=60)
        assert processes[stopped].returncode != 0, "what wakes up later does not go on alone"
        assert "no sign of life" not in late


def test_one_that_has_done_its_part_is_not_missed() -> None:
    with two_processes("leave") as processes:
        _, said = processes[0].communicate(timeout=60)
        assert processes[0].returncode == 0 and "error: " not in said


def test_the_limit_is_as_documented() -> None:
    assert SILENCE == 300
