"""Training runs that are killed (SIGKILL) and resumed: they must end with the metrics and weights of a whole run."""

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import torch

from pml_ext.cli import main
from pml_ext.runner.engine import checkpoints, run  # noqa: F401, so that forks have all imported
from tests.campaign.tally import Tally

DIGITS = Path(__file__).parents[2] / "fastreid_configs" / "Digits" / "sap_tcm.yml"
SHORT = (
    *("MODEL.DEVICE", "cpu", "SOLVER.MAX_EPOCH", "6", "SOLVER.CHECKPOINT_PERIOD", "1"),
    *("TEST.EVAL_PERIOD", "3", "TEST.REPORT", "False"),
)
_LONGEST = 300.0  # seconds of a run, beyond which it hangs
_KILLED = -signal.SIGKILL
_SAID = "said.txt"  # what the last process said


def run_kills(folder: Path, *, at_random: int, while_writing: int, seed: int) -> Tally:
    """Kill runs at random moments and inside a checkpoint's writing, resume each, compare with a run left alone.

    Args:
        folder: for the runs; empty.
    """
    draw, tally = random.Random(seed), Tally()
    began = time.monotonic()
    if _in_a_process(lambda: _train(folder / "whole"), folder / _SAID) != 0:
        raise RuntimeError(f"the run to compare with fails: {_last_line(folder)}")
    whole_run = time.monotonic() - began
    expected = _outcome(folder / "whole")
    written = (folder / "whole" / "checkpoints" / "last.ckpt").stat().st_size
    for number in range(at_random + while_writing):
        output = folder / f"run{number}"
        options = ("DATALOADER.NUM_WORKERS", str(int(number % 3 == 2)))
        if number < at_random:
            moment = draw.uniform(0, 0.9 * whole_run)  # the machine may be quicker by now
            what = f"run {number}, killed after {moment:.2f} of {whole_run:.2f} s"
            code = _in_a_process(lambda to=output, of=options: _train(to, *of), folder / _SAID, kill_after=moment)
        else:
            # 1 is after the last byte, before the file takes its place.
            checkpoint, share = draw.randint(1, 6), draw.choice([draw.random(), draw.random(), 1.0])
            what = f"run {number}, killed at {share:.0%} of the bytes of checkpoint {checkpoint}"
            byte = int(share * written)
            code = _in_a_process(
                lambda to=output, of=options, n=checkpoint, b=byte: _killed_at(to, of, n, b), folder / _SAID
            )
        what += f", with {options[1]} workers"
        if code != _KILLED:
            tally.add("foreign traceback", what, f"ended with status {code} before it was killed: {_last_line(folder)}")
            continue
        resumed = _in_a_process(lambda to=output, of=options: _train(to, *of, flags=("--resume",)), folder / _SAID)
        if resumed == _KILLED:
            tally.add("hang", what, "the resumed run does not end")
        elif resumed != 0:
            tally.add("foreign traceback", what, f"--resume ends with status {resumed}: {_last_line(folder)}")
        elif not _same(expected, _outcome(output)):
            tally.add("wrong value", what, "the resumed run ends with other metrics or weights")
        else:
            tally.add("same metrics and weights", what)
        print(what, flush=True)
    return tally


def _train(output: Path, *options: str, flags: tuple[str, ...] = ()) -> int:
    return main(["train", "--config-file", str(DIGITS), *flags, "OUTPUT_DIR", str(output), *SHORT, *options])


def _killed_at(output: Path, options: tuple[str, ...], checkpoint: int, byte: int) -> int:
    """Train, and die over the given byte of the given checkpoint."""
    replacing, written = checkpoints.replacing, 0

    @contextmanager
    def fatal(path: Path) -> Iterator[Any]:
        nonlocal written
        written += 1
        with replacing(path) as file:
            if written != checkpoint:
                yield file
                return
            yield _Fatal(file, byte)
            file.flush()
            os.kill(os.getpid(), signal.SIGKILL)

    checkpoints.replacing = fatal
    return _train(output, *options)


class _Fatal:
    """A file that ends its process after so many bytes."""

    def __init__(self, file: IO[bytes], left: int) -> None:
        self.file, self.left = file, left

    def write(self, content: bytes) -> int:
        if len(content) >= self.left:
            self.file.write(content[: self.left])
            self.file.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        self.left -= len(content)
        return self.file.write(content)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


def _in_a_process(work: Callable[[], int], log: Path, kill_after: float | None = None) -> int:
    """The exit status of a fork of this process, which has everything imported; what it says goes into a file."""
    child = os.fork()
    if not child:
        code = 99
        try:
            said = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(said, 1)
            os.dup2(said, 2)
            code = work()
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stderr.flush()
            os._exit(code)
    deadline = time.monotonic() + (_LONGEST if kill_after is None else kill_after)
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _last_line(folder: Path) -> str:
    lines = (folder / _SAID).read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "nothing said"


def _outcome(output: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    metrics = json.loads((output / "metrics.json").read_text())
    state = torch.load(output / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    return {name: value for name, value in metrics.items() if name != "weights"}, state


def _same(a: tuple[dict[str, Any], dict[str, torch.Tensor]], b: tuple[dict[str, Any], dict[str, torch.Tensor]]) -> bool:
    return a[0] == b[0] and a[1].keys() == b[1].keys() and all(torch.equal(v, b[1][k]) for k, v in a[1].items())
