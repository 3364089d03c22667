"""The error for mistakes in a user's input or setup, and the end by SIGTERM."""

from importlib import import_module
from typing import Any


class UserError(ValueError):
    """A mistake that its message explains; the command line prints it without a traceback."""


class Terminated(SystemExit):
    """SIGTERM has ended a run."""

    STATUS = 128 + 15  # of the process, as a shell has it for that signal

    def __init__(self) -> None:
        super().__init__(self.STATUS)


def import_library(name: str, *, needed_for: str, install: str) -> Any:
    """Import a library that is not always installed.

    Args:
        needed_for: what needs it, for the message.
        install: what to give to pip.
    Raises:
        UserError: it is not installed.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise UserError(f"{needed_for} needs {error.name or name}: pip install {install}") from error
