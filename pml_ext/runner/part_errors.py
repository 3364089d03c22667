"""Errors of users' parts in one sentence: which part of which module, what it asked for, and where a key is added."""

import logging
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from yacs.config import CfgNode as CN

from pml_ext._errors import UserError
from pml_ext.runner.plugins import imported
from pml_ext.runner.registry import user_modules

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
    """Returns what an exception says, with the full name of a missing config key; logs its traceback."""
    TRACEBACKS.info("traceback of %s", type(error).__name__, exc_info=error)
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    last = frames[-1] if frames else None
    node = last.f_locals.get("self") if last else None
    if isinstance(error, AttributeError) and isinstance(node, CN):
        key = f"{_path_of(node, frames)}{error}"
        return f"the config has no key {key}; add it in a function of CONFIG_REGISTRY"
    said = " ".join(str(error).split())
    if isinstance(error, KeyError) and said.startswith("'"):  # of a name
        return (
            f"there is no {said}; add a config key in a function of CONFIG_REGISTRY, and a column of batches in the "
            "`columns` of the data set"
        )
    return f"{type(error).__name__}: {said}"


def _module_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _path_of(node: CN, frames: list[FrameType]) -> str:
    """Returns a config node's name, such as `MODEL.LOSSES.`; empty if no variable of the frames has the config."""
    for frame in frames:
        for value in frame.f_locals.values():
            path = _path_below(value, node) if isinstance(value, CN) and "MODEL" in value else None
            if path is not None:
                return path
    return ""


def _path_below(tree: CN, node: CN) -> str | None:
    if tree is node:
        return ""
    for name, value in tree.items():
        if isinstance(value, CN) and (path := _path_below(value, node)) is not None:
            return f"{name}.{path}"
    return None
