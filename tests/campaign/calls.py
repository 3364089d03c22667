"""Good calls of everything public, and the same calls with an argument made wrong."""

import ast
import functools
import linecache
import signal
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from types import FrameType
from typing import NoReturn

import torch

import pml_ext
from tests.campaign.faults import faulty
from tests.campaign.public_calls import CALLS
from tests.campaign.tally import Tally

_OURS = str(Path(pml_ext.__file__).parent)
_LONGEST = 20.0  # seconds of a call on a few samples, beyond which it hangs


class HangError(BaseException):
    """Not an Exception, so that nothing takes it for a wrong argument."""


def run_calls(count: int, *, seed: int, only: str = "") -> Tally:
    """Call public functions and classes with random good arguments, and in two of three calls with a wrong one.

    Args:
        only: calls whose name holds this.
    """
    tally = Tally()
    names = [name for name in CALLS if only in name]
    warnings.simplefilter("ignore")
    for number in range(count):
        name = names[number % len(names)]
        attempt(name, seed + number, tally)
    return tally


def attempt(name: str, seed: int, tally: Tally) -> None:
    """One call, the same for the same name and seed."""
    draw = Random(f"{name} {seed}")
    torch.manual_seed(draw.getrandbits(32))
    call, arguments = CALLS[name](draw)
    what, must_refuse = f"{name}, seed {seed}", False
    if arguments and draw.random() < 2 / 3:
        argument = draw.choice(sorted(arguments))
        arguments[argument], shown, must_refuse = faulty(draw, arguments[argument])
        what += f", {argument} = {shown}"
    try:
        with time_limit(_LONGEST):
            call(**arguments)
    except HangError:
        tally.add("hang", what)
    except Exception as error:
        if is_clear(error):
            kind = next(kind for kind in type(error).__mro__ if kind.__module__ == "builtins")
            tally.add(f"clear error: {kind.__name__}", what)
        else:
            if "alloc" in str(error):  # as much as was asked for, and the message says how much that is
                tally.add("out of memory", what)
                return
            tally.add("foreign traceback", what, where(error))
    else:
        if must_refuse:
            tally.add("wrong value", what, "accepted")
        else:
            tally.add("accepted", what)


def where(error: BaseException) -> str:
    """An error in short, with the line that it comes from."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error!s:.200} ({last.filename.rpartition('site-packages/')[2]}:{last.lineno})"


def is_clear(error: BaseException) -> bool:
    """Raised by a raise statement of this package, as its own or as a ValueError or TypeError, with a message."""
    frames = list(traceback.walk_tb(error.__traceback__))
    frame, line = frames[-1]
    file = frame.f_code.co_filename
    fits = isinstance(error, (ValueError, TypeError)) or type(error).__module__.startswith("pml_ext.")
    is_ours = file.startswith(_OURS) and any(low <= line <= high for low, high in _raises(file))
    return fits and is_ours and len(str(error)) > 10


@functools.cache
def _raises(file: str) -> list[tuple[int, int]]:
    tree = ast.parse("".join(linecache.getlines(file)))
    return [(node.lineno, node.end_lineno or node.lineno) for node in ast.walk(tree) if isinstance(node, ast.Raise)]


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """HangError in the block after so many seconds."""

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        raise HangError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
