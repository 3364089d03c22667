"""What can end a run from outside, each as one message: unreadable data, a killed worker, a lost folder or process."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch.distributed import DistError

from pml_ext._errors import UserError

_PATIENCE = 5.0  # seconds in which the launcher finds the process that failed first


@contextmanager
def one_message(output: Path) -> Iterator[None]:
    """Errors of the block as a UserError whose text is enough, and stops as a KeyboardInterrupt."""
    try:
        yield
    except SystemExit as stop:  # Lightning turns Ctrl-C and SIGTERM into exits, the latter with status 0
        raise KeyboardInterrupt from stop
    except UserError as error:
        # A worker's comes with the worker's traceback before the message.
        raise UserError(str(error).rpartition("UserError: ")[2].strip()) from error
    except OSError as error:
        gone = "" if output.is_dir() else f" OUTPUT_DIR {output} was removed while the run went on."
        raise UserError(f"a file cannot be read or written: {error}.{gone}") from error
    except RuntimeError as error:
        reason = str(error).strip()
        if reason.startswith("DataLoader worker"):
            raise UserError(
                "a process that loads images was ended from outside, by a lack of memory for example: try fewer "
                f"DATALOADER.NUM_WORKERS; the last checkpoint can be resumed ({reason})"
            ) from error
        if isinstance(error, DistError) or "gloo" in reason:
            raise UserError(_lost_contact(reason)) from error
        raise


def _lost_contact(reason: str) -> str:
    """The message of a process that others have left, or do not answer; the launcher prefers the message of those."""
    rank = os.environ.get("RANK", "0")
    if "timed out" in reason.lower() or "timeout" in reason.lower():
        return (
            f"rank {rank} has waited --timeout seconds for the other processes: one of them is stopped or hangs, so "
            f"the run ends; the last checkpoint can be resumed ({reason:.200})"
        )
    time.sleep(_PATIENCE)
    return (
        f"rank {rank} has lost the other processes, so the run ends; the last checkpoint can be resumed ({reason:.200})"
    )
