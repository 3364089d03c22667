"""Messages for external failures: unreadable data, a killed worker, a lost folder or process."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch.distributed import DistError

from pml_ext._errors import Terminated, UserError
from pml_ext.runner.part_errors import part_message

_PATIENCE = 5.0  # seconds for the launcher to find the process that failed first


@contextmanager
def one_message(output: Path) -> Iterator[None]:
    """Re-raises expected errors as UserError, which needs no traceback, and Ctrl-C as KeyboardInterrupt."""
    try:
        yield
    except Terminated:
        raise
    except SystemExit as stop:  # Lightning raises it on Ctrl-C
        raise KeyboardInterrupt from stop
    except Exception as error:
        message = _message(error, output)
        if message is None:
            raise
        raise UserError(message) from error


def _message(error: Exception, output: Path) -> str | None:
    """Returns the message of an expected error; None for a bug."""
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
    if message := part_message(error):
        return message
    if isinstance(error, OSError):
        gone = "" if output.is_dir() else f" OUTPUT_DIR {output} was removed while the run went on."
        return f"a file cannot be read or written: {error}.{gone}"
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
    rank = os.environ.get("RANK", "0")
    return f"rank {rank} {lost}, so the run ends; the last checkpoint can be resumed ({reason:.200})"
