"""Exceptions for mistakes in a user's input or setup, such as a library that is not installed, and for SIGTERM."""

from importlib import import_module
from typing import Any


class UserError(ValueError):
    """A mistake in the input or setup, explained by its message; the command line prints no traceback."""


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
    """Raised when SIGTERM ends a run."""

    STATUS = 128 + 15  # exit status of the process, as shells report SIGTERM

    def __init__(self) -> None:
        super().__init__(self.STATUS)


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
