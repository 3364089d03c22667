"""Starts and monitors the processes of a run with torch's elastic agent, and explains their failures."""

import logging
import multiprocessing.util
import os
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any, TypeVar
from urllib.parse import urlsplit

import torch
from torch.distributed import DistError
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.elastic.rendezvous import RendezvousError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from pml_ext._shared.checks import check_above_zero, check_whole
from pml_ext._shared.errors import STOPPING, ArgumentError, OutputError, Terminated, UserError, stopping_signals
from pml_ext._shared.text import configure_streams
from pml_ext.runner.rank_store import launched_rank_and_ranks
from pml_ext.runner.registry import import_modules, imported, names_part, naming_parts

log = logging.getLogger("pml_ext")

T = TypeVar("T")


@dataclass(frozen=True)
class Launch:
    """Processes of a run, with FastReID's command-line names.

    num_gpus: number of processes per machine (also for CPU runs); machine_rank: from 0; dist_url: tcp://address:port of
    machine 0, or "auto" for a free port of this machine; timeout: timeout of collective operations, in seconds;
    max_restarts: number of restarts from the last checkpoint.
    """

    num_gpus: int = 1
    num_machines: int = 1
    machine_rank: int = 0
    dist_url: str = "auto"
    timeout: float = 1800.0
    max_restarts: int = 0

    def __post_init__(self) -> None:
        check_whole(self.num_gpus, "num_gpus", 1)
        check_whole(self.num_machines, "num_machines", 1)
        check_whole(self.machine_rank, "machine_rank", 0, self.num_machines - 1)
        check_above_zero(self.timeout, "timeout")
        check_whole(self.max_restarts, "max_restarts", 0)
        if self.dist_url != "auto":
            _host_and_port(self.dist_url)

    def joined(self) -> "Launch":
        """Returns the launch with the counts of the agent or torchrun that started this process."""
        if not torch.distributed.is_torchelastic_launched():
            return self
        _need_no_host_name()
        here, every = int(os.environ["LOCAL_WORLD_SIZE"]), int(os.environ["WORLD_SIZE"])
        started = Launch(here, every // here, int(os.environ["GROUP_RANK"]), timeout=self.timeout)
        if self not in (Launch(timeout=self.timeout), started):
            raise UserError(
                f"torchrun has started {started.num_gpus} processes on each of {started.num_machines} machines: "
                "leave out --num-gpus, --num-machines, --machine-rank, --dist-url and --max-restarts"
            )
        return started

    @property
    def processes(self) -> int:
        """Number of processes on all machines."""
        launch = self.joined()
        return launch.num_gpus * launch.num_machines

    @property
    def needs_agent(self) -> bool:
        """Whether `start` must start processes: several or with restarts, and not under torchrun."""
        wanted = (self.num_gpus, self.num_machines) != (1, 1) or self.max_restarts > 0
        return wanted and not torch.distributed.is_torchelastic_launched()


def is_first() -> bool:
    """Returns whether this process has rank 0."""
    return launched_rank_and_ranks()[0] == 0


def restarts() -> int:
    """Returns the number of restarts of this run by the agent."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))


def start(launch: Launch, work: Callable[..., T]) -> T | None:
    """Call `work(launch=…)` in each process of this machine, until all have returned or one has failed.

    Returns rank 0's result, None on machines without it. `work` and its result must be picklable. Raises the first
    failure: a UserError for expected errors, else a RuntimeError with the process's traceback. Raises
    KeyboardInterrupt after Ctrl-C, and Terminated if another signal ended this process.
    """
    with tempfile.TemporaryDirectory(prefix="pml_ext_") as folder:
        config = _configured(launch, DefaultLogsSpecs(log_dir=folder))
        # A new store for each attempt: in a shared store, restarted ranks could read addresses of the last attempt.
        os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
        try:
            with _quiet_agent(folder):
                arguments = (work, launch.timeout, log.getEffectiveLevel(), imported())
                results: dict[int, T | OutputError] = elastic_launch(config, _call)(*arguments)
        except ChildFailedError as error:
            raise _explained(*error.get_first_failure()) from None
        except SignalException as error:
            raise (KeyboardInterrupt() if error.sigval == signal.SIGINT else Terminated(error.sigval)) from error
        except (DistError, RendezvousError) as error:
            listens = launch.num_machines == 1 or (launch.machine_rank == 0 and "in use" in str(error))
            unmet = "cannot listen" if listens else f"the {launch.num_machines} machines have not met"
            raise UserError(f"--dist-url: {unmet} at {launch.dist_url}: {error}") from error
    result = results.get(0)
    if isinstance(result, OutputError):
        raise result
    return result


def _configured(launch: Launch, logs: DefaultLogsSpecs) -> LaunchConfig:
    # torch's static rendezvous keeps the machines' ranks; c10d takes a free port
    met: dict[str, Any] = {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0", "local_addr": "localhost"}
    settings = {"timeout": max(1, round(launch.timeout))}
    if launch.dist_url != "auto":
        host, port = _host_and_port(launch.dist_url)
        met = {"rdzv_backend": "static", "rdzv_endpoint": f"[{host}]:{port}" if ":" in host else f"{host}:{port}"}
        settings["rank"] = launch.machine_rank
    elif launch.num_machines > 1:
        raise UserError("several machines need --dist-url tcp://address:port, an address and free port of machine 0")
    return LaunchConfig(
        min_nodes=launch.num_machines,
        max_nodes=launch.num_machines,
        nproc_per_node=launch.num_gpus,
        run_id="pml_ext",
        max_restarts=launch.max_restarts,
        monitor_interval=0.1,
        start_method="spawn",
        rdzv_configs=settings,
        logs_specs=logs,
        **met,
    )


def _need_no_host_name() -> None:
    """Make rendezvous work on a machine whose host name does not resolve, as in many containers.

    Several machines use the defaults of gloo and torchrun; an existing GLOO_SOCKET_IFNAME is kept.
    """
    if os.environ["WORLD_SIZE"] != os.environ["LOCAL_WORLD_SIZE"]:
        return
    for loopback in {"lo", "lo0"} & {name for _, name in socket.if_nameindex()}:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)


@contextmanager
def _quiet_agent(folder: str) -> Iterator[None]:
    """Hides the agent's and multiprocessing's logs of a failure, and ends it by `stopping_signals` as by SIGTERM."""
    multiprocessing.util.get_temp_dir()  # created here, because it outlives the folder
    temporary, tempfile.tempdir = tempfile.tempdir, folder
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    if current_thread() is main_thread():
        numbers = stopping_signals()
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)
        resource_tracker.ensure_running()  # ignores them, too: they may be sent to all processes
        for number in numbers:
            signal.signal(number, lambda *_: signal.raise_signal(signal.SIGTERM))
    warned = os.environ.get("PYTHONWARNINGS", "")
    os.environ["PYTHONWARNINGS"] = f"{warned},ignore:resource_tracker:UserWarning".lstrip(",")
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        tempfile.tempdir = temporary
        logging.disable(logging.NOTSET)
        os.environ["PYTHONWARNINGS"] = warned
        for number, handler in handlers.items():
            if handler is not None and signal.getsignal(number) is not handler:
                signal.signal(number, handler)


def _call(work: Callable[..., T], timeout: float, level: int, imports: tuple[str, ...]) -> T | OutputError:
    """Entry point of each process: only rank 0 logs, and the agent reads errors from a file."""
    configure_streams()
    log.handlers, log.propagate = [logging.StreamHandler()], False
    try:
        import_modules(imports)
        log.setLevel(level if is_first() else logging.ERROR)  # the first process has logged what the imports do
        return work(launch=Launch(timeout=timeout))
    except OutputError as error:
        return error  # not raised, because the agent would restart a run whose results are complete
    except UserError as error:
        raise UserError(str(error)) from error  # the file has the name of the class, which may be a subclass


def _explained(rank: int, failure: ProcessFailure) -> BaseException:
    """Returns the error of the rank that failed first."""
    if failure.exitcode - 128 in STOPPING:
        return Terminated(failure.exitcode - 128)
    told = failure.message
    if isinstance(told, dict):
        kind, _, text = told["message"].partition(": ")
        if kind == UserError.__name__:
            return UserError(text)
        return RuntimeError(f"rank {rank} has failed:\n{told['extraInfo']['py_callstack']}")
    name = f" ({failure.signal_name()})" if failure.exitcode < 0 else ""
    return UserError(
        f"rank {rank} (process {failure.pid}) ended with exit code {failure.exitcode}{name}, so the run ends; "
        "the last checkpoint can be resumed"
    )


def _host_and_port(url: str) -> tuple[str, int]:
    """Parse tcp://address:port, with an IPv6 address in brackets."""
    host, port, rest = None, None, url
    with suppress(ValueError):  # of an open bracket, or a port that is no number below 2^16
        parts = urlsplit(url)
        host, port, rest = parts.hostname, parts.port, parts.path
    if not url.startswith("tcp://") or not host or not port or rest:
        raise ArgumentError(
            "dist_url",
            "must be tcp://address:port with a port from 1 to 65535, and an IPv6 address in brackets "
            f"(tcp://[::1]:29500); got {url!r}",
        )
    return host, port


_PATIENCE = 5.0  # seconds for the launcher to find the process that failed first


@contextmanager
def one_message(output: Path) -> Iterator[None]:
    """Re-raises expected errors as UserError, which needs no traceback, and Ctrl-C as KeyboardInterrupt."""
    try:
        with naming_parts():
            yield
    except (Terminated, OutputError):
        raise
    except SystemExit as stop:  # Lightning raises it on Ctrl-C
        raise KeyboardInterrupt from stop
    except Exception as error:
        message = _message(error, output)
        if message is None:
            raise
        raise UserError(message) from error


def _message(error: Exception, output: Path) -> str | None:
    """Returns the message of an expected error; None for a bug, or for an error in a user's part."""
    # torch raises this one in a signal handler: whatever runs at that moment may replace it by another error.
    killed = [str(each).strip() for each in _chain(error) if str(each).strip().startswith("DataLoader worker")]
    reason = str(error).strip()
    if isinstance(error, ConnectionError):  # to a worker of which the system has not said yet that it is gone
        killed.append(reason)
    if killed:
        return (
            "a process that loads images was ended from outside, by a lack of memory for example: try fewer "
            f"DATALOADER.NUM_WORKERS; the last checkpoint can be resumed ({killed[0]})"
        )
    if isinstance(error, UserError):
        # A worker's comes with the worker's traceback before the message.
        return reason.rpartition("UserError: ")[2].strip()
    if names_part(error):
        return None
    if isinstance(error, OSError):
        gone = "" if output.is_dir() else f" OUTPUT_DIR {output} was removed while the run went on."
        where = f" in {output}" if error.filename is None else ""
        return f"a file{where} cannot be read or written: {error}.{gone}"
    if isinstance(error, DistError) or (isinstance(error, RuntimeError) and "gloo" in reason):
        return _lost_contact(reason)
    return None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and its causes."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _lost_contact(reason: str) -> str:
    """Returns the message of a process that lost the others; the launcher prefers their messages."""
    lost = "has lost the other processes"
    if "timed out" in reason.lower() or "timeout" in reason.lower():
        lost = "has waited --timeout seconds for the other processes: one of them is stopped or hangs"
    else:
        time.sleep(_PATIENCE)
    rank, _ = launched_rank_and_ranks()
    return f"rank {rank} {lost}, so the run ends; the last checkpoint can be resumed ({reason:.200})"
