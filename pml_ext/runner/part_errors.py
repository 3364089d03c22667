"""Errors of users' parts in one sentence: which part of which module, what it asked for, and where a key is added."""

import logging
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from yacs.config import CfgNode as CN

from pml_ext._errors import UserError
from pml_ext.runner.registry import imported, user_modules

TRACEBACKS = logging.getLogger("pml_ext.tracebacks")
"""Logs the tracebacks of errors that become one sentence: to a run's file, and with --traceback to standard error."""
TRACEBACKS.propagate = False


@contextmanager
def named_part_errors() -> Iterator[None]:
    """Re-raises an exception in the code of a user's part as a UserError."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # a user's part may raise anything
        if message := part_message(error):
            raise UserError(message) from error
        raise


def part_message(error: Exception) -> str | None:
    """Returns the sentence about an exception in the code of a user's part; None if no such code was running."""
    packages = {name.partition(".")[0] for name in (*user_modules(), *imported())}
    places = [place for place in traceback.walk_tb(error.__traceback__) if _module_of(place[0]) in packages]
    if not places:
        return None
    frame, line = places[-1]
    part = frame.f_locals.get("self")
    owner = "" if part is None else f"{type(part).__qualname__}."
    file = Path(frame.f_code.co_filename).name
    where = f"{owner}{frame.f_code.co_name} of {frame.f_globals.get('__name__')} (line {line} of {file})"
    return f"{where}: {reason_of(error)}"


def reason_of(error: Exception) -> str:
    """Returns what an exception says, with the name of a missing config key; logs its traceback."""
    TRACEBACKS.info("traceback of %s", type(error).__name__, exc_info=error)
    if isinstance(error, AttributeError) and isinstance(error.obj, CN):
        return f"the config has no key {error.name}; add it in a function of CONFIG_REGISTRY"
    said = " ".join(str(error).split())
    if isinstance(error, KeyError) and error.args and isinstance(error.args[0], str):  # of a name
        return (
            f"there is no {said}; add a config key in a function of CONFIG_REGISTRY, and a column of batches in the "
            "`columns` of the data set"
        )
    return f"{type(error).__name__}: {said}"


def _module_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]
