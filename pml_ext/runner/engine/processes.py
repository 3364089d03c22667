"""The processes of a run on one machine: when one ends or stands still all end, with one message.

Lightning starts the processes of the other ranks from that of rank 0. Left alone, a rank whose partner is gone can wait
in a collective operation for half an hour, or for ever for a partner that never came.
"""

import errno
import logging
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lightning

from pml_ext._errors import UserError
from pml_ext.runner.engine.heartbeat import beating

log = logging.getLogger("pml_ext")

STANDSTILL = 60.0
"""Seconds after which a stopped process (SIGSTOP, a debugger) ends its run."""

_PATIENCE = 5.0  # seconds in which processes that fail together find out about each other
_FIRST = "PML_EXT_FIRST_PROCESS"  # tells those that it starts its id, which may be gone before they can ask
_FAILED = 2  # exit status of one that has given its reason


class ToldElsewhereError(UserError):
    """The run ends for a reason that another of its processes has told."""


class Watch(threading.Thread):
    """Ends this process and its partners once one of them has failed or stands still.

    Args:
        started: those that this process has started, rank 1 first.
        parent: the process that has started this one.
        standstill: seconds.
    """

    def __init__(
        self,
        started: Callable[[], Sequence[subprocess.Popen[bytes]]] = tuple,
        *,
        parent: int | None = None,
        standstill: float = STANDSTILL,
    ) -> None:
        super().__init__(daemon=True, name="watch over the run's processes")
        self.started, self.parent, self.standstill = started, parent, standstill
        self.over = threading.Event()
        self._running: dict[int, float] = {}

    def run(self) -> None:
        while not self.over.wait(min(1.0, self.standstill / 4)):
            if self.parent is not None:
                if os.getppid() != self.parent:
                    os._exit(_FAILED)  # it has told why, or nobody is left to be told
                self._end_if_still(0, self.parent)
            if self.started():
                _silence_lightning()
            for rank, process in enumerate(self.started(), start=1):
                if code := process.poll():
                    self._end(None if code == _FAILED else _ended(rank, process))
                if code is None:
                    self._end_if_still(rank, process.pid)

    def _end_if_still(self, rank: int, pid: int) -> None:
        now = time.monotonic()
        if _state(pid) not in ("T", "t"):
            self._running[pid] = now
        if now - self._running.setdefault(pid, now) > self.standstill:
            self._end(f"the process of rank {rank} ({pid}) has been stopped for {self.standstill:g} seconds")

    def _end(self, reason: str | None) -> None:
        if reason is not None:
            log.error("error: %s, so the run ends; the last checkpoint can be resumed", reason)
        _kill(self.started())
        if self.parent is not None:
            os.kill(self.parent, signal.SIGKILL)
        os._exit(_FAILED)


def _ended(rank: int, process: subprocess.Popen[bytes]) -> str:
    code = process.returncode
    how = f"was ended by signal {-code}" if code < 0 else f"ended with status {code}"
    return f"the process of rank {rank} ({process.pid}) {how}"


def _silence_lightning() -> None:
    """Lightning's own watch kills this process within 5 seconds of another's end, without a message."""
    for thread in threading.enumerate():
        if thread.name == "child-process-observer":
            thread._child_processes = []  # type: ignore[attr-defined]


def _kill(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """End processes at once; those that have ended stay as they are."""
    for process in processes:
        process.kill()


@contextmanager
def bound_together(trainer: lightning.Trainer) -> Iterator[None]:
    """The block runs in all processes of a trainer, whoever has started them, or in none."""
    with _bound_to_those_started(trainer), beating(trainer):
        yield


@contextmanager
def _bound_to_those_started(trainer: lightning.Trainer) -> Iterator[None]:
    launcher: Any = trainer.strategy.launcher
    if trainer.local_rank and _FIRST in os.environ:
        yield from _in_a_started_one()
        return
    environment = getattr(launcher, "cluster_environment", None)
    if environment is None or environment.creates_processes_externally:  # one process, or torchrun
        yield
        return
    os.environ[_FIRST] = str(os.getpid())
    watch = Watch(lambda: launcher.procs)
    watch.start()
    try:
        yield
    except BaseException as error:
        watch.over.set()
        failed = _first_failed(launcher.procs, seconds=_PATIENCE if _may_be_an_echo(error) else 0)
        _kill(launcher.procs)
        if failed is None:
            raise
        rank, process = failed
        if process.returncode == _FAILED:
            raise ToldElsewhereError from error
        raise UserError(f"{_ended(rank, process)}; the last checkpoint can be resumed") from error
    finally:
        watch.over.set()
        del os.environ[_FIRST]


def _may_be_an_echo(error: BaseException) -> bool:
    """Whether an error may be what a collective operation says where the other process is gone."""
    return isinstance(error, RuntimeError) and not isinstance(error, UserError)


def _first_failed(
    processes: Sequence[subprocess.Popen[bytes]], *, seconds: float
) -> tuple[int, subprocess.Popen[bytes]] | None:
    """The rank and process that has failed, or fails within some time."""
    deadline = time.monotonic() + seconds
    while True:
        for rank, process in enumerate(processes, start=1):
            if process.poll():
                return rank, process
        if time.monotonic() >= deadline:
            return None
        time.sleep(0.1)


def _in_a_started_one() -> Iterator[None]:
    watch = Watch(parent=int(os.environ[_FIRST]))
    watch.start()
    try:
        yield
    except BaseException:
        # Where rank 0 fails too, its message is the one; it ends this process meanwhile.
        time.sleep(2 * _PATIENCE)
        raise
    finally:
        watch.over.set()


def require_free_port(port: int) -> None:
    """Raise a UserError where the first process cannot listen on a port."""
    try:
        with socket.create_server(("", port)):
            pass
    except OSError as error:
        reason = "in use by another program" if error.errno == errno.EADDRINUSE else f"not to be had: {error}"
        raise UserError(f"--dist-url: port {port} is {reason}; choose another, or leave --dist-url out") from error


def _state(pid: int) -> str:
    """The letter of a process's state in Linux's process table; empty elsewhere."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
