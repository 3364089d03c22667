"""Exceptions for mistakes in a user's input or setup, such as a library that is not installed, and for signals."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from threading import current_thread, main_thread
from typing import Any


class UserError(ValueError):
    """A mistake in the input or setup, explained by its message; the command line prints no traceback."""


class OutputError(UserError):
    """An error after the results are saved and printed, such as that of a page; the command line exits with 1."""


class LaterErrors:
    """Collects the errors of steps after the results, such as those of pages, and raises them as one OutputError."""

    def __init__(self) -> None:
        self._reasons: dict[str, None] = {}

    @contextmanager
    def collected(self, step: object) -> Iterator[None]:
        """Collect the error that ends the block; `step` names the output or the work."""
        try:
            yield
        except Exception as error:  # any error: the other steps do not depend on this one
            self.add(step, error)

    def add(self, step: object, error: Exception) -> None:
        text = str(error) if isinstance(error, OutputError) else f"{step}: {reason_of(error)}"
        self._reasons[text] = None

    def raise_together(self) -> None:
        """Raise an OutputError if there are errors."""
        if self._reasons:
            raise OutputError("; ".join(self._reasons))


@contextmanager
def after_results(step: object) -> Iterator[None]:
    """Raises any error in the block, which comes after the results, as an OutputError."""
    later = LaterErrors()
    with later.collected(step):
        yield
    later.raise_together()


def reason_of(error: Exception) -> str:
    """Returns an error as one line, with its class if it was not foreseen."""
    text = " ".join(str(error).split())
    return text if isinstance(error, (ValueError, OSError)) else f"{type(error).__name__}: {text}"


class ArgumentError(ValueError):
    """A wrong value of an argument: its name, and the problem as the rest of the sentence.

    The command line and `check-config` print the option or the config key in place of the name.

    >>> str(ArgumentError("margin", "must be above 0; got -1"))
    'margin must be above 0; got -1'
    """

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(name, problem)
        self.name = name
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.name} {self.problem}"


class Terminated(SystemExit):
    """Raised when a signal ends a run; the exit status is the one that shells report."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.signal_name = signal.Signals(number).name


# SIGTERM, closed terminals, and the warnings of batch systems before a time limit. Windows lacks some of them.
_NAMES = ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGXCPU")
STOPPING = [int(getattr(signal, name)) for name in _NAMES if hasattr(signal, name)]
"""Signals that end a run, without those for Ctrl-C."""


def _terminate(number: int, _: object) -> None:
    raise Terminated(number)


def stopping_signals() -> list[int]:
    """Returns the signals of STOPPING that are neither ignored, as under nohup, nor handled by the caller."""
    return [number for number in STOPPING if signal.getsignal(number) in (signal.SIG_DFL, _terminate)]


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Make `stopping_signals` raise Terminated in the block."""
    if current_thread() is not main_thread():  # only the main thread gets signals
        yield
        return
    before = {number: signal.signal(number, _terminate) for number in stopping_signals()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def import_library(name: str, *, needed_for: str, install: str) -> Any:
    """Import an optional library.

    Args:
        needed_for: feature that needs it, for the message.
        install: argument of pip install, for the message.
    Raises:
        UserError: it is not installed.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise UserError(f"{needed_for} needs {error.name or name}: pip install {install}") from error
