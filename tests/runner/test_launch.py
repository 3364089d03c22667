"""The processes of a run end together, with one message, and a run with restarts goes on by itself."""

import os
import signal
import socket
import subprocess
import sys
import time
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import distributed as dist
from torch.distributed.elastic.multiprocessing import PContext
from torch.distributed.rendezvous import rendezvous

from pml_ext._shared.errors import UserError
from pml_ext.runner.launch import Launch, one_message, restarts, start
from pml_ext.runner.rank_store import exchange
from tests.tiers import by_night

DIGITS = "Digits/sap_tcm.yml"


def meet(fault, folder, launch):
    """Sums over the ranks; the fault of the last rank is in its second sum."""
    ranks = [str(rank) for rank in range(launch.processes)]
    assert [exchange(os.environ["RANK"]), exchange("again")] == [ranks, ["again"] * len(ranks)]
    # On a full machine processes start minutes apart: the timeout is for what comes after.
    store, rank, size = next(rendezvous("env://", timeout=timedelta(minutes=5)))
    store.set(f"started {rank}", "")
    store.wait([f"started {each}" for each in range(size)], timedelta(minutes=5))
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=launch.timeout))
    try:
        with one_message(folder):
            for step in range(2):
                if step and rank == size - 1:
                    happen(fault)
                total = torch.ones(1)
                dist.all_reduce(total)
            dist.barrier()  # none leaves while another still connects
    finally:
        dist.destroy_process_group()  # its threads would abort a process that ends with them
    (folder / str(rank)).touch()
    return int(total) + launch.processes


def without_gloo(shown):
    """Without what gloo of torch 2.8 says of each group."""
    return "".join(line for line in shown.splitlines(keepends=True) if not line.startswith("[Gloo]"))


def happen(fault):
    if fault in ("SIGKILL", "SIGSTOP"):
        os.kill(os.getpid(), getattr(signal, fault))
    if fault == "killed once" and restarts() == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "user":
        raise UserError("no such thing")
    if fault == "bug":
        raise ZeroDivisionError("in the code")


@pytest.mark.parametrize("processes", [1, *by_night(2)])
def test_a_restarted_run_returns_what_rank_0_returned(processes, tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    launch = Launch(processes, timeout=20, max_restarts=1)
    assert start(launch, partial(meet, "killed once", tmp_path)) == 2 * processes
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(
    ("fault", "kind", "message"),
    [
        pytest.param(
            "SIGKILL",
            UserError,
            r"^rank 1 \(process \d+\) ended with exit code -9 \(SIGKILL\), so the run ends",
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            "SIGSTOP",
            UserError,
            r"^rank 0 has waited --timeout seconds for the other processes: one of them is stopped",
            marks=pytest.mark.nightly,
        ),
        pytest.param("user", UserError, "^no such thing$", marks=pytest.mark.nightly),
        ("bug", RuntimeError, r"^rank 1 has failed:\n(.|\n)*ZeroDivisionError: in the code"),
    ],
)
def test_a_rank_that_fails_ends_all(
    fault, kind, message, tmp_path, monkeypatch,
    capfd,
):  # fmt: skip
    close = PContext.close  # which gives a stopped process 30 seconds to end before it kills it
    monkeypatch.setattr(PContext, "close", lambda ranks, death_sig=None, timeout=30: close(ranks, death_sig, 1))
    with pytest.raises(kind, match=message) as caught:
        start(Launch(2, timeout=5), partial(meet, fault, tmp_path))
    assert type(caught.value) is kind
    assert not list(tmp_path.iterdir()), "none went on alone"
    shown = capfd.readouterr()
    assert (without_gloo(shown.out), shown.err) == ("", ""), "the error says all"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_gpus": 0}, "num_gpus must be at least 1"),
        ({"num_gpus": 2, "machine_rank": 1}, "machine_rank must be at most 0"),
        ({"timeout": 0}, "timeout must be above 0"),
        *(
            ({"dist_url": url}, "dist_url must be tcp://address:port with a port from 1 to 65535")
            for url in (
                "127.0.0.1:29500",
                "tcp://127.0.0.1",
                "tcp://a:65536",
                "tcp://::1:1",
                "tcp://[::1",
                "tcp://a:80/b",
            )
        ),
    ],
)
def test_a_launch_that_makes_no_sense(options, message):
    with pytest.raises(ValueError, match=message):
        Launch(**options)


def test_machines_need_an_address(tmp_path):
    with pytest.raises(UserError, match="several machines need --dist-url tcp://address:port"):
        start(Launch(num_machines=2), partial(meet, "none", tmp_path))


def test_a_port_in_use_is_one_message(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(UserError, match=rf"--dist-url: cannot listen at tcp://127.0.0.1:{port}: .*in use"):
            start(Launch(2, dist_url=f"tcp://127.0.0.1:{port}"), partial(meet, "none", tmp_path))


@pytest.mark.nightly
def test_two_machines_meet_at_an_address(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    code = f"""
from functools import partial
from pathlib import Path
from pml_ext.runner.launch import Launch, start
from tests.runner.test_launch import meet
if __name__ == "__main__":
    print(start(Launch(1, 2, 1, "{url}", timeout=60), partial(meet, "none", Path("{tmp_path}"))))
"""
    second = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert start(Launch(1, 2, 0, url, timeout=60), partial(meet, "none", tmp_path)) == 4
    assert without_gloo(second.communicate(timeout=60)[0]) == "None\n", "rank 0 is on the first machine"


@pytest.mark.nightly
def test_a_killed_run_goes_on_by_itself_to_its_end(tmp_path):
    short = f"{DIGITS} MODEL.DEVICE cpu SOLVER.MAX_EPOCH 3 TEST.EVAL_PERIOD 3 SOLVER.CHECKPOINT_PERIOD 1".split()
    short += ["TEST.REPORT", "False"]
    command = [sys.executable, "-m", "pml_ext", "train", "--max-restarts", "1", "--overwrite", *short]
    output = tmp_path / "parts"
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}  # as here: more would add up in another order
    command += ["OUTPUT_DIR", str(output)]
    with subprocess.Popen(command, env=one_thread, stderr=subprocess.PIPE, text=True) as running:
        while not (output / "checkpoints" / "last.ckpt").exists():
            assert running.poll() is None
            time.sleep(0.02)
        agent = Path(f"/proc/{running.pid}/task/{running.pid}/children")
        (worker,) = (
            int(pid) for pid in agent.read_text().split() if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
        )
        os.kill(worker, signal.SIGKILL)
        said = running.communicate(timeout=300)[1]
    assert running.returncode == 0, said
    assert "resuming from" in said
    assert (output / "metrics.json").is_file()


KILLED = "DataLoader worker (pid 7) is killed by signal: Killed. "


def fail_while_torch_reports_it(*, chained):
    try:
        raise RuntimeError(KILLED)
    except RuntimeError as error:
        if chained:
            raise SystemError("a call returned a result with an exception set") from error
        raise ValueError("while that was handled")  # noqa: B904


@pytest.mark.parametrize("chained", [True, False])
def test_a_killed_worker_is_found_behind_another_error(chained, tmp_path):
    message = r"a process that loads images was .*\(DataLoader worker \(pid 7\) is killed"
    with pytest.raises(UserError, match=message), one_message(tmp_path):
        fail_while_torch_reports_it(chained=chained)


def test_a_broken_connection_to_a_worker_is_that_of_a_killed_one(tmp_path):
    message = r"a process that loads images was ended from outside.*\(\[Errno 104\] Connection reset by peer\)"
    with pytest.raises(UserError, match=message), one_message(tmp_path):
        raise ConnectionResetError(104, "Connection reset by peer")


def test_a_bug_stays_what_it_is(tmp_path):
    error = ZeroDivisionError("in the code")
    with pytest.raises(ZeroDivisionError) as caught, one_message(tmp_path):
        raise error
    assert caught.value is error and error.__cause__ is None
